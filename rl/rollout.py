"""Plays queries with planner and executor, and records what each of them saw, chose and brought.

Decisions that are due at once are made in one batch. A record is complete: it begins with the
query's arrival and ends with its answer, whatever batch of training its decisions fell into.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rl.source import Due, Finished, QueryKey, QuerySource
from rl.spaces import TASKS, Array, Encoder, decision_of, plan_of
from runtime.policy import PlanView, StepView

_MAX_OCCUPANCY = 4.0

Choose = Callable[[Array], tuple[npt.NDArray[np.int64], Array]]
"""Observations [B, floats] to actions ([B] or [B, 2 + max_agents]) and log-probabilities [B]."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One decision: ``elapsed_s`` after the query's arrival, with the pool ``occupancy`` calls per
    slot full (at most 4)."""

    seen: Array
    action: npt.NDArray[np.int64]
    log_p: np.float32
    elapsed_s: float
    occupancy: float
    step_id: int = -1


@dataclass(frozen=True, slots=True)
class Costs:
    """What the executor's choices of a query took, [n] each, in decision time.

    ``time`` is the wall time to the next choice (of the last: to the answer) over the budget, cut
    off where the sum passes the clip; ``money`` likewise, dollars over the budget of money.
    ``work`` is seconds in an engine over the budget, ``loaded`` the same times the occupancy.
    """

    time: Array
    money: Array
    work: Array
    loaded: Array


@dataclass(slots=True)
class Record:
    """A query from its plan to its answer; ``finished`` is ``None`` while it is in flight."""

    plan: Choice
    steps: list[Choice] = field(default_factory=list)
    finished: Finished | None = None

    @property
    def outcome(self) -> Finished:
        assert self.finished is not None
        return self.finished

    @property
    def latency_share(self) -> float:
        """Latency over the budget, as it is."""
        answer = self.outcome.answer
        return answer.latency_s / answer.budget_s

    @property
    def money_share(self) -> float:
        """Dollars over the budget of money; NaN where there is none."""
        answer = self.outcome.answer
        if not answer.budget_usd:
            return math.nan
        return (answer.usage.cost_usd or 0.0) / answer.budget_usd

    @property
    def on_time(self) -> bool:
        return self.outcome.answer.status == "ok"

    @property
    def task_index(self) -> int:
        return TASKS.index(self.outcome.task)

    def costs(self, clip: float) -> Costs:
        """What its executor's choices took; see ``Costs``."""
        answer = self.outcome.answer
        traces = {trace.step_id: trace for trace in answer.steps}
        times_s = [choice.elapsed_s for choice in self.steps]
        ends = np.minimum(np.array([*times_s[1:], answer.latency_s]) / answer.budget_s, clip)
        starts = np.minimum(np.array(times_s) / answer.budget_s, clip)
        work = np.zeros(len(self.steps))
        money = np.zeros(len(self.steps))
        charged: set[int] = set()
        for place in range(len(self.steps) - 1, -1, -1):  # of a step tried again, the last try
            trace = traces.get(self.steps[place].step_id)
            if trace is None or trace.step_id in charged:
                continue
            charged.add(trace.step_id)
            work[place] = (trace.service_s or 0.0) / answer.budget_s
            if answer.budget_usd:
                money[place] = (trace.cost_usd or 0.0) / answer.budget_usd
        occupancy = np.array([choice.occupancy for choice in self.steps])
        work = np.minimum(work, clip)
        return Costs(
            time=(ends - starts).astype(np.float32),
            money=np.minimum(money, clip).astype(np.float32),
            work=work.astype(np.float32),
            loaded=(work * occupancy).astype(np.float32),
        )


class Rollout:
    """Queries of ``source``, decided by ``plan`` and ``route``."""

    def __init__(self, source: QuerySource, encoder: Encoder, plan: Choose, route: Choose) -> None:
        self._source = source
        self._encoder = encoder
        self._plan, self._route = plan, route
        self._flying: dict[QueryKey, Record] = {}
        self.num_decisions = 0
        self.num_undecided = 0
        """Queries that ended before their executor was asked: they teach nothing."""

    @property
    def num_in_flight(self) -> int:
        return len(self._flying)

    def play(self, queries: int) -> list[Record]:
        """The next ``queries`` that end, or somewhat more; fewer where the source has no more."""
        done: list[Record] = []
        while len(done) < queries:
            due = self._source.due()
            if not due:
                return done + self._ended()
            self._decide(due)
            done += self._ended()
        return done

    def _decide(self, due: Sequence[Due]) -> None:
        plans = [d for d in due if isinstance(d.view, PlanView)]
        steps = [d for d in due if not isinstance(d.view, PlanView)]
        layout = self._encoder.layout
        if plans:
            seen = np.stack([self._encoder.planner(d.view) for d in plans])  # type: ignore[arg-type]
            actions, log_p = self._plan(seen)
            for row, d in enumerate(plans):
                self._flying[d.key] = Record(_choice(d, seen[row], actions[row], log_p[row]))
                self._source.decide(d, plan_of(layout, d.view.task, actions[row]))  # type: ignore[union-attr]
        if steps:
            seen = np.stack([self._encoder.executor(d.view) for d in steps])  # type: ignore[arg-type]
            actions, log_p = self._route(seen)
            for row, d in enumerate(steps):
                self._flying[d.key].steps.append(_choice(d, seen[row], actions[row], log_p[row]))
                self._source.decide(d, decision_of(layout, int(actions[row])))
        self.num_decisions += len(due)

    def _ended(self) -> list[Record]:
        ended = []
        for finished in self._source.finished():
            record = self._flying.pop(finished.key, None)
            if record is None or not record.steps:
                self.num_undecided += 1
                continue
            record.finished = finished
            ended.append(record)
        return ended


def _choice(due: Due, seen: Array, action: npt.NDArray[np.int64], log_p: np.float32) -> Choice:
    step_id = due.view.step.step_id if isinstance(due.view, StepView) else -1
    occupancy = min(due.view.pool.occupancy, _MAX_OCCUPANCY)
    return Choice(seen, action, log_p, due.elapsed_s, occupancy, step_id)
