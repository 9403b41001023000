"""Greedy: not learned, but aware of load, budget and depth.

For every (model, depth) it predicts when the call would be done from the backlog, the service
time and the token cap, and takes the best expected quality among those that fit, less a price on
the work that rises with the load. What a plan adds to one call is assumed (``PlanOption.gain``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import Field

from runtime.config import AppConfig
from runtime.errors import ConfigError
from runtime.load import ModelView
from runtime.policies.base import ConfiguredPolicy, Options, make_plan
from runtime.policy import PlanView, StepView
from runtime.roles import role
from runtime.topology import TOPOLOGIES, build_steps, path_lengths, topologies_for
from runtime.types import STRATEGIES, Decision, Plan, Route, Stop, Strategy, TaskKind, Topology

_MAX_OCCUPANCY = 4.0


class PlanOption(Options):
    """A plan that greedy considers; ``gain`` is the share of the errors of one call that it is
    assumed to mend."""

    topology: str
    agents: int = Field(ge=1, le=6)
    gain: float = Field(ge=0, le=1)


_DEFAULT_PLANS = (
    PlanOption(topology=Topology.IO, agents=1, gain=0.0),
    PlanOption(topology=Topology.REFLECTION, agents=1, gain=0.06),
    PlanOption(topology=Topology.ADAPTIVE, agents=3, gain=0.10),
    PlanOption(topology=Topology.DEBATE, agents=3, gain=0.12),
)


class _GreedyOptions(Options):
    """``price_idle + price_loaded * occupancy`` is what a budget's worth of engine time costs, in
    units of expected quality; ``margin`` is the share of the time left that may be planned for;
    ``diversity`` is what a model that the query has not used yet is worth."""

    price_idle: float = Field(default=0.02, ge=0)
    price_loaded: float = Field(default=0.15, ge=0)
    margin: float = Field(default=0.85, gt=0, le=1)
    diversity: float = Field(default=0.02, ge=0)
    plans: tuple[PlanOption, ...] = _DEFAULT_PLANS


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A plan, its calls in all, how many of them in sequence, and its assumed gain."""

    plan: Plan
    calls: int
    depth: int
    gain: float


@dataclass(frozen=True, slots=True)
class _Option:
    """One (model, depth): seconds until a slot, seconds in the engine, expected quality."""

    model: ModelView
    strategy: Strategy
    wait_s: float
    service_s: float
    quality: float


class Greedy(ConfiguredPolicy):
    """The best expected quality that fits, less a load-dependent price on work."""

    name = "greedy"
    options_type = _GreedyOptions

    def __init__(self, config: AppConfig, options: Any) -> None:
        super().__init__(config, options)
        self._candidates = {task: self._plans(task) for task in TaskKind}

    def _plans(self, task: TaskKind) -> list[_Candidate]:
        """The plans that may serve ``task``, with their number of calls and critical path."""
        plans = []
        for option in self.options.plans:
            if option.topology not in TOPOLOGIES:
                raise ConfigError(f"policy greedy: unknown topology {option.topology!r}")
            too_many = option.agents > self.config.limits.max_agents
            if too_many or option.topology not in topologies_for(task):
                continue
            if TOPOLOGIES[option.topology].votes and task is TaskKind.CODE:
                continue  # code has no canonical answer to agree on without running it
            plan = make_plan(task, option.topology, option.agents)
            follow_ups = [role(task, name).follow_up is not None for name in plan.roles]
            steps = build_steps(plan, follow_ups, self.config.limits.max_agents)
            depth = 1 + max(path_lengths(steps))
            plans.append(_Candidate(plan, len(steps), depth, option.gain))
        return plans

    def plan(self, view: PlanView) -> Plan:
        """The plan whose best route promises most; one quick call where nothing fits."""
        price = self._price(view.pool.occupancy) / view.query.budget_s
        limit_s = view.remaining_s * self.options.margin
        options = self._options(view.task, view.candidates, view.prompt_tokens)
        best, chosen = float("-inf"), make_plan(view.task, Topology.IO, 1)
        for candidate in self._candidates[view.task]:
            for option in options:
                if option.wait_s + candidate.depth * option.service_s > limit_s:
                    continue
                quality = option.quality + candidate.gain * (1.0 - option.quality)
                value = quality - price * candidate.calls * option.service_s
                if value > best:
                    best, chosen = value, candidate.plan
        return chosen

    def route(self, view: StepView) -> Decision:
        """The best that fits its share of the time left; the soonest where nothing fits."""
        if view.can_stop and view.agreement.unanimous:
            return Stop()
        price = self._price(view.pool.occupancy) / view.query.budget_s
        limit_s = view.remaining_s * self.options.margin / (1 + view.steps_after)
        options = self._options(view.plan.task, view.candidates, view.prompt_tokens)
        fitting = [o for o in options if o.wait_s + o.service_s <= limit_s]
        if fitting:
            used = set(view.used.values())
            best = max(fitting, key=lambda o: self._value(o, price, used))
            return Route(best.model.name, best.strategy)
        if view.can_stop:
            return Stop()
        soonest = min(options, key=lambda o: o.wait_s + o.service_s)
        return Route(soonest.model.name, soonest.strategy)

    def _price(self, occupancy: float) -> float:
        loaded: float = self.options.price_loaded * min(occupancy, _MAX_OCCUPANCY)
        return float(self.options.price_idle + loaded)

    def _value(self, option: _Option, price: float, used: set[str]) -> float:
        fresh = 0.0 if option.model.name in used else float(self.options.diversity)
        return option.quality + fresh - price * (option.wait_s + option.service_s)

    def _options(
        self, task: TaskKind, models: tuple[ModelView, ...], prompt_tokens: int
    ) -> list[_Option]:
        strategies, expected = self.config.strategies, self.config.quality.expected
        options = []
        for model in models:
            speed, most = model.speed, model.config.max_output_tokens
            for strategy in STRATEGIES:
                cap = min(strategies.max_tokens(strategy), most)
                service_s = speed.service_s(prompt_tokens, cap)
                quality = expected(task, model.name, strategy)
                options.append(_Option(model, strategy, speed.wait_s, service_s, quality))
        return options
