"""From a state machine's question to a policy's decision: masks, views, generators, checks.

Production and simulator ask policies through this one class, so that they see the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, cast

from runtime.config import AppConfig
from runtime.errors import PlanError
from runtime.events import AskRoute, Planned, Routed
from runtime.load import ModelView, PoolView
from runtime.paying import least_usd, no_money, payable
from runtime.policy import PlanView, Policy, StepView
from runtime.prompts import needed_tokens
from runtime.token_estimate import count_tokens
from runtime.types import Decision, Plan, Query, Route, Speed, Stop, Strategy, TaskKind, Wait
from runtime.workflow import WorkflowState

_PROMPT_OVERHEAD_TOKENS = 160


class Decider:
    """Asks one policy. Decisions are sampled from a generator seeded by query and step."""

    def __init__(self, config: AppConfig, policy: Policy) -> None:
        self._config = config
        self.policy = policy

    def plan(
        self,
        query: Query,
        task: TaskKind,
        pool: PoolView,
        remaining_s: float,
        embedding: Sequence[float] | None,
    ) -> Planned:
        """Ask the planner."""
        view = self.plan_view(query, task, pool, remaining_s, embedding)
        return self.planned(self.policy.plan(view))

    def plan_view(
        self,
        query: Query,
        task: TaskKind,
        pool: PoolView,
        remaining_s: float,
        embedding: Sequence[float] | None,
    ) -> PlanView:
        """What the planner is shown; ``planned`` takes its answer."""
        return PlanView(
            query=query,
            task=query.task or task,
            remaining_s=remaining_s,
            pool=pool,
            candidates=tuple(m for m in pool.models if m.available) or pool.models,
            prompt_tokens=question_tokens(query),
            embedding=embedding,
            rng=self._rng(query, "plan"),
            money_left_usd=least_usd(query.budget_usd, pool.hour_left_usd),
        )

    def planned(self, plan: Plan) -> Planned:
        """The planner's answer as an event."""
        return Planned(plan, self.policy.name)

    def route(
        self,
        state: WorkflowState,
        ask: AskRoute,
        pool: PoolView,
        now: float,
        embedding: Sequence[float] | None,
    ) -> Routed:
        """Ask the executor, or decide without it where there is no choice.

        Raises:
            PlanError: the policy chose a model that cannot take the step, or stopped when it
                may not.
        """
        view = self.step_view(state, ask, pool, now, embedding)
        return view if isinstance(view, Routed) else self.routed(view, self.policy.route(view))

    def step_view(
        self,
        state: WorkflowState,
        ask: AskRoute,
        pool: PoolView,
        now: float,
        embedding: Sequence[float] | None,
    ) -> StepView | Routed:
        """What the executor is shown, or the decision itself where there is no choice;
        ``routed`` takes the executor's answer."""
        query, step_id = state.query, ask.step_id
        if not any(model.available for model in pool.models):
            return self._nobody(step_id, pool, ask, query, 0)
        needed = needed_tokens(state.parts(step_id, Strategy.DEEPTHINK))
        candidates = allowed_models(pool, needed, ask.excluded, query.direct_model)
        if not candidates:
            return self._nobody(step_id, pool, ask, query, needed)
        unpaid = candidates
        candidates = payable(self._config, state, pool, unpaid, needed)
        if not candidates:
            return Routed(step_id, no_money(self._config, state, pool, unpaid, needed))
        if query.direct_model is not None:
            route = Route(query.direct_model, Strategy.DEEPTHINK)
            return Routed(step_id, route, candidates[0].speed)
        assert state.plan is not None
        return StepView(
            query=query,
            plan=state.plan,
            step=state.steps[step_id].step,
            remaining_s=state.deadline_s - now,
            pool=pool,
            candidates=candidates,
            prompt_tokens=needed,
            steps_after=state.steps_after(step_id),
            agreement=state.agreement,
            can_stop=ask.can_stop,
            used=state.used,
            embedding=embedding,
            rng=self._rng(query, str(step_id)),
            money_left_usd=least_usd(state.purse.left_usd, pool.hour_left_usd),
        )

    def routed(self, view: StepView, decision: Decision) -> Routed:
        """The executor's answer to ``view`` as an event.

        Raises:
            PlanError: it chose a model that cannot take the step, or stopped when it may not.
        """
        return Routed(view.step.step_id, decision, self._check(decision, view))

    def _nobody(
        self, step_id: int, pool: PoolView, ask: AskRoute, query: Query, needed: int
    ) -> Routed:
        """Wait for a model that has no replica or only failed lately; where the prompt fits none,
        the largest says so."""
        left = [m for m in pool.models if m.name not in ask.excluded]
        if query.direct_model is not None:
            left = [m for m in left if m.name == query.direct_model]
        away = [m for m in left if not m.available and needed <= m.config.context_tokens]
        if away:
            tripped = [m.retry_after_s for m in away if m.retry_after_s is not None]
            return Routed(step_id, Wait(min(tripped, default=None)))
        largest = max(left, key=lambda m: m.config.context_tokens)
        return Routed(step_id, Route(largest.name, Strategy.FLASH), largest.speed)

    def _check(self, decision: Decision, view: StepView) -> Speed | None:
        if isinstance(decision, Stop):
            if not view.can_stop:
                raise PlanError(f"policy {self.policy.name} stopped before the first answer")
            return None
        if isinstance(decision, Wait):
            return None
        if not _possible(decision):
            raise PlanError(f"policy {self.policy.name} chose what no engine can do: {decision}")
        for model in view.candidates:
            if model.name == decision.model:
                return model.speed
        raise PlanError(f"policy {self.policy.name} chose {decision.model!r}, which cannot serve")

    def _rng(self, query: Query, what: str) -> Random:
        return lazy_random(f"{self._config.policy.seed}:{query.query_id}:{what}")


def _possible(route: Route) -> bool:
    """Whether the route's depth and numbers are such as engines take."""
    most, heat = route.max_tokens, route.temperature
    known = isinstance(route.strategy, Strategy)
    return known and (most is None or most >= 1) and (heat is None or 0 <= heat <= 2)


class _LazyRandom:
    """Stands for ``Random(seed)``, which is made when it is first asked for a number: seeding
    costs more than most decisions, and most use no chance."""

    __slots__ = ("_random", "_seed")

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._random: Random | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of no use here, and how copies are probed
            raise AttributeError(name)
        if self._random is None:
            self._random = Random(self._seed)
        return getattr(self._random, name)


def lazy_random(seed: str) -> Random:
    """A generator that draws what ``Random(seed)`` draws."""
    return cast(Random, _LazyRandom(seed))


def question_tokens(query: Query) -> int:
    """Estimate of what every call of the query must read: question, history, instructions."""
    texts = [query.question, *query.choices, *(m.content for m in query.context)]
    return _PROMPT_OVERHEAD_TOKENS + sum(count_tokens(text) for text in texts)


def allowed_models(
    pool: PoolView, needed: int, excluded: frozenset[str], only: str | None = None
) -> tuple[ModelView, ...]:
    """The action mask: models with a replica whose context fits and that have not failed yet."""
    return tuple(
        model
        for model in pool.models
        if model.available
        and model.name not in excluded
        and needed <= model.config.context_tokens
        and (only is None or model.name == only)
    )
