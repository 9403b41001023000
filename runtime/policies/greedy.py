"""Greedy: not learned, but aware of load, budget and depth.

For every (model, depth) it predicts when the call would be done from the backlog, the service
time and the token cap, and takes the best expected quality among those that fit, less a price on
the work that rises with the load. What a plan adds to one call is assumed (``PlanOption.gain``).
Work is counted by the expected length of an answer; one fits if twice that does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import Field

from runtime.config import AppConfig
from runtime.errors import ConfigError
from runtime.load import ModelView, PoolView
from runtime.policies.base import ConfiguredPolicy, Options, comparable, make_plan
from runtime.policy import PlanView, StepView
from runtime.roles import role
from runtime.topology import TOPOLOGIES, build_steps, path_lengths, topologies_for
from runtime.types import (
    STRATEGIES,
    Decision,
    Plan,
    Route,
    Speed,
    Stop,
    Strategy,
    TaskKind,
    Topology,
)

_MAX_OCCUPANCY = 4.0


class PlanOption(Options):
    """A plan that greedy considers; ``gain`` is the share of the errors of one call that it is
    assumed to mend. The defaults are rounded down from what plans mend on the simulator's
    validation items, where a revision by the same model mends nothing."""

    topology: str
    agents: int = Field(ge=1, le=6)
    gain: float = Field(ge=0, le=1)


_DEFAULT_PLANS = (
    PlanOption(topology=Topology.IO, agents=1, gain=0.0),
    PlanOption(topology=Topology.ADAPTIVE, agents=3, gain=0.12),
    PlanOption(topology=Topology.DEBATE, agents=3, gain=0.15),
)


class _GreedyOptions(Options):
    """``price_idle + price_loaded * occupancy`` is what a budget's worth of engine time costs, in
    units of expected quality; ``margin`` is the share of the time left that may be planned for;
    ``diversity`` is what a model that the query has not used yet is worth. Both prices at 0 are
    greedy without its price, and one of ``depths`` is the ablation to a fixed depth."""

    price_idle: float = Field(default=0.02, ge=0)
    price_loaded: float = Field(default=0.5, ge=0)
    margin: float = Field(default=0.85, gt=0, le=1)
    diversity: float = Field(default=0.1, ge=0)
    plans: tuple[PlanOption, ...] = _DEFAULT_PLANS
    depths: tuple[Strategy, ...] = Field(default=STRATEGIES, min_length=1)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A plan, its calls in all, how many of them in sequence, and its assumed gain."""

    plan: Plan
    calls: int
    depth: int
    gain: float


@dataclass(frozen=True, slots=True)
class _Option:
    """One (model, depth): seconds until a slot, seconds in the engine as expected and for a long
    answer, expected quality."""

    model: ModelView
    strategy: Strategy
    wait_s: float
    service_s: float
    long_s: float
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
            if TOPOLOGIES[option.topology].votes and not comparable(self.config, task):
                continue
            plan = make_plan(task, option.topology, option.agents)
            follow_ups = [role(task, name).follow_up is not None for name in plan.roles]
            steps = build_steps(plan, follow_ups, self.config.limits.max_agents)
            depth = 1 + max(path_lengths(steps))
            plans.append(_Candidate(plan, len(steps), depth, option.gain))
        return plans

    def plan(self, view: PlanView) -> Plan:
        """The plan whose best route promises most; one quick call where nothing fits."""
        price = self._price(self._occupancy(view.pool)) / view.query.budget_s
        limit_s = view.remaining_s * self.options.margin
        options = self._options(view.task, view.candidates, view.prompt_tokens)
        best, chosen = float("-inf"), make_plan(view.task, Topology.IO, 1)
        for candidate in self._candidates[view.task]:
            for option in options:
                if option.wait_s + candidate.depth * option.long_s > limit_s:
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
        price = self._price(self._occupancy(view.pool)) / view.query.budget_s
        limit_s = view.remaining_s * self.options.margin / (1 + view.steps_after)
        options = self._options(view.plan.task, view.candidates, view.prompt_tokens)
        fitting = [o for o in options if o.wait_s + o.long_s <= limit_s]
        if fitting:
            used = set(view.used.values())
            best = max(fitting, key=lambda o: self._value(o, price, used))
            return Route(best.model.name, best.strategy)
        if view.can_stop:
            return Stop()
        soonest = min(options, key=lambda o: o.wait_s + o.service_s)
        return Route(soonest.model.name, soonest.strategy)

    def _occupancy(self, pool: PoolView) -> float:
        return pool.occupancy

    def _speed(self, model: ModelView) -> Speed:
        return model.speed

    def _price(self, occupancy: float) -> float:
        loaded: float = self.options.price_loaded * min(occupancy, _MAX_OCCUPANCY)
        return float(self.options.price_idle + loaded)

    def _value(self, option: _Option, price: float, used: set[str]) -> float:
        fresh = 0.0 if option.model.name in used else float(self.options.diversity)
        return option.quality + fresh - price * (option.wait_s + option.service_s)

    def _options(
        self, task: TaskKind, models: tuple[ModelView, ...], prompt_tokens: int
    ) -> list[_Option]:
        strategies, quality = self.config.strategies, self.config.quality
        options = []
        for model in models:
            speed, most = self._speed(model), model.config.max_output_tokens
            for strategy in self.options.depths:
                cap = min(strategies.max_tokens(strategy), most)
                tokens = quality.expected_tokens(task, model.name, strategy, cap)
                options.append(
                    _Option(
                        model,
                        strategy,
                        speed.wait_s,
                        service_s=speed.service_s(prompt_tokens, tokens),
                        long_s=speed.service_s(prompt_tokens, min(cap, 2 * tokens)),
                        quality=quality.expected(task, model.name, strategy),
                    )
                )
        return options


class QualityOnly(Greedy):
    """Greedy that takes the pool for idle at every moment (paper table 3: quality-only routing).

    It fits plans and depths to the time left at each model's idle speed, and is blind to queues,
    batches and measured times.
    """

    name = "quality_only"

    def _occupancy(self, pool: PoolView) -> float:
        return 0.0

    def _speed(self, model: ModelView) -> Speed:
        prior = model.config.speed
        token_s = prior.token_s + prior.token_s_per_seq
        return Speed(prior.prefill_tokens_per_s, token_s, start_s=prior.start_s)
