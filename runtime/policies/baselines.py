"""Baselines that look at one thing or at nothing: random, fixed, cheapest, least loaded."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from runtime.config import AppConfig
from runtime.errors import ConfigError
from runtime.policies.base import ConfiguredPolicy, Options, make_plan, unit_price
from runtime.policy import PlanView, StepView
from runtime.roles import roles_for
from runtime.topology import TOPOLOGIES, topologies_for
from runtime.types import STRATEGIES, Decision, Plan, Route, Stop, Strategy, Topology


class RandomPolicy(ConfiguredPolicy):
    """Uniform over plans and routes; stops as often as it takes any one route."""

    name = "random"

    def plan(self, view: PlanView) -> Plan:
        topology = view.rng.choice(topologies_for(view.task))
        agents = view.rng.randint(1, self.config.limits.max_agents)
        names = [role.name for role in roles_for(view.task)]
        return Plan(topology, tuple(view.rng.choice(names) for _ in range(agents)), view.task)

    def route(self, view: StepView) -> Decision:
        actions: list[Decision] = [
            Route(model.name, strategy) for model in view.candidates for strategy in STRATEGIES
        ]
        if view.can_stop:
            actions.append(Stop())
        return view.rng.choice(actions)


class _PlanOptions(Options):
    topology: str = Topology.IO
    agents: int = Field(default=1, ge=1, le=6)
    strategy: Strategy = Strategy.CONCISE


class _OnePlan(ConfiguredPolicy):
    """The same topology and depth for every query; IO where the task does not admit it."""

    options_type: type[Options] = _PlanOptions

    def __init__(self, config: AppConfig, options: Any) -> None:
        super().__init__(config, options)
        if options.topology not in TOPOLOGIES:
            raise ConfigError(
                f"policy {self.name}: unknown topology {options.topology!r}; "
                f"there are {', '.join(sorted(TOPOLOGIES))}"
            )

        if options.agents > config.limits.max_agents:
            raise ConfigError(
                f"policy {self.name}: agents is {options.agents}, "
                f"limits.max_agents {config.limits.max_agents}"
            )

    def plan(self, view: PlanView) -> Plan:
        allowed = self.options.topology in topologies_for(view.task)
        topology = self.options.topology if allowed else Topology.IO
        return make_plan(view.task, topology, self.options.agents)


class _FixedOptions(_PlanOptions):
    model: str | None = None


class Fixed(_OnePlan):
    """One plan, one model (by default the pool's first): load-blind."""

    name = "fixed"
    options_type = _FixedOptions

    def __init__(self, config: AppConfig, options: Any) -> None:
        super().__init__(config, options)
        names = [model.name for model in config.models]
        if options.model is not None and options.model not in names:
            raise ConfigError(f"policy fixed: no such model {options.model!r}; there are {names}")
        self._model = options.model or names[0]

    def route(self, view: StepView) -> Decision:
        """Its model while that can take the step, else the first that can."""
        names = [model.name for model in view.candidates]
        return Route(self._model if self._model in names else names[0], self.options.strategy)


class Cheapest(_OnePlan):
    """The model with the lowest price per token, then the fastest: load-blind."""

    name = "cheapest"

    def route(self, view: StepView) -> Decision:
        model = min(view.candidates, key=lambda m: unit_price(m.config))
        return Route(model.name, self.options.strategy)


class LeastLoaded(_OnePlan):
    """The model with the fewest calls per slot; ties by chance, so that equals share the load."""

    name = "least_loaded"

    def route(self, view: StepView) -> Decision:
        least = min(model.occupancy for model in view.candidates)
        equals = [model for model in view.candidates if model.occupancy == least]
        return Route(view.rng.choice(equals).name, self.options.strategy)
