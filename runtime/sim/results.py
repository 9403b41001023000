"""What a simulation leaves behind: one row per query offered, one per call.

The denominator of every share is the queries offered, also those that were refused or failed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.sim.columns import Columns, Names
from runtime.types import STRATEGIES, Answer, Call, Step, StepKind

_QUERY_TYPES = {
    "query": "i",  # its number, from 0 in order of arrival
    "item": "i",
    "dataset": "h",
    "arrival_s": "d",
    "budget_s": "d",
    "latency_s": "d",
    "status": "b",
    "solved": "b",
    "topology": "h",
    "num_agents": "b",
    "num_calls": "h",
    "prompt_tokens": "i",
    "completion_tokens": "i",
    "error": "h",
    "cost_usd": "d",  # nan where no model with a price took part
}
_CALL_TYPES = {
    "query": "i",
    "step": "h",
    "attempt": "b",
    "kind": "b",
    "role": "h",
    "model": "b",
    "strategy": "b",
    "status": "b",  # ok, cancelled, dropped, or why it failed
    "asked_s": "d",
    "granted_s": "d",  # nan where it never was; so below
    "first_token_s": "d",
    "ended_s": "d",
    "prompt_tokens": "i",
    "completion_tokens": "i",
    "max_tokens": "i",
    "cut": "b",
    "in_system": "i",  # of its model, as the one who chose it saw it
    "running": "h",  # in its replica, when it began; -1 where it did not
}
ANSWERED = ("ok", "late", "degraded")


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one run. Shares and ``accuracy`` are percent of all queries offered.

    ``slo`` is whole answers on time, ``correct_on_time`` those of them that are right. Latencies
    are over the queries that got an answer; ``nan`` where none did. ``cost_gpu_s`` is the time
    that engines computed per query, as if each had had its GPU alone; ``cost_usd`` is money per
    query at the models' prices, ``nan`` where no query cost any.
    """

    n_offered: int
    accuracy: float
    slo: float
    correct_on_time: float
    answered: float
    latency_mean_s: float
    latency_p50_s: float
    latency_p90_s: float
    calls_per_query: float
    cost_gpu_s: float
    cost_usd: float = math.nan


class Results:
    """Grows while a simulation runs.

    ``queries`` and ``calls`` are tables; ``gpu_s`` and ``preemptions`` are per model, and hold once
    the simulation has ended, as does ``end_s``.
    """

    def __init__(self, models: tuple[str, ...]) -> None:
        items, datasets, topologies, errors = Names(), Names(), Names(), Names([""])
        statuses = Names([*ANSWERED, "error"])
        query_names = {
            "item": items,
            "dataset": datasets,
            "status": statuses,
            "topology": topologies,
            "error": errors,
        }
        call_names = {
            "kind": Names([kind.value for kind in StepKind]),
            "role": Names(),
            "model": Names(models),
            "strategy": Names([strategy.value for strategy in STRATEGIES]),
            "status": Names(["ok", "cancelled", "dropped"]),
        }
        self.queries = Columns(_QUERY_TYPES, query_names)
        self.calls = Columns(_CALL_TYPES, call_names)
        self._call_numbers = {column: names.number for column, names in call_names.items()}
        self.gpu_s = dict.fromkeys(models, 0.0)
        self.preemptions = dict.fromkeys(models, 0)
        self.num_arrivals = 0
        self.end_s = 0.0

    def add_query(
        self,
        number: int,
        item_id: str,
        dataset: str,
        arrival_s: float,
        answer: Answer,
        solved: bool,
    ) -> None:
        """The outcome of a query."""
        names = self.queries.names
        self.queries.append(
            number,
            names["item"].number(item_id),
            names["dataset"].number(dataset),
            arrival_s,
            answer.budget_s,
            answer.latency_s,
            names["status"].number(answer.status),
            solved,
            names["topology"].number(answer.topology or ""),
            len(answer.roles),
            sum(step.attempts for step in answer.steps),
            answer.usage.prompt_tokens,
            answer.usage.completion_tokens,
            names["error"].number(answer.error_code or ""),
            math.nan if answer.usage.cost_usd is None else answer.usage.cost_usd,
        )

    def add_call(
        self,
        query: int,
        call: Call,
        step: Step,
        status: str,
        times_s: tuple[float, float, float, float],
        tokens: tuple[int, int],
        cut: bool,
        load: tuple[int, int],
    ) -> None:
        """A call that is over.

        Args:
            query: number of its query.
            call: what was asked of the engine.
            step: the step that it is for.
            status: ``ok``, ``cancelled``, ``dropped``, or the kind of the failure.
            times_s: when it asked for its turn, got it, gave a token, ended.
            tokens: how many it gave, and may have given.
            cut: whether it would have given more.
            load: calls of its model in the system, as seen, and in its replica.
        """
        numbers = self._call_numbers
        self.calls.append(
            query,
            call.step_id,
            int(call.call_id.rpartition(".")[2]),
            numbers["kind"](step.kind),
            numbers["role"](step.role),
            numbers["model"](call.model),
            numbers["strategy"](call.strategy),
            numbers["status"](status),
            *times_s,
            call.prompt_tokens,
            *tokens,
            cut,
            *load,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of both tables."""
        return self.queries.nbytes + self.calls.nbytes

    def on_time(self) -> npt.NDArray[np.bool_]:
        """Per row of ``queries``, whether the answer was whole and on time."""
        on_time: npt.NDArray[np.bool_] = self.queries.named("status") == "ok"
        return on_time

    def summary(self) -> Summary:
        """The figures of the run; with no query offered, shares are ``nan``."""
        solved = self.queries["solved"].astype(bool)
        on_time = self.on_time()
        answered = np.isin(self.queries.named("status"), ANSWERED)
        latency = self.queries["latency_s"][answered]
        offered = len(self.queries)

        def percent(rows: npt.NDArray[np.bool_]) -> float:
            return 100.0 * float(rows.sum()) / offered if offered else math.nan

        def quantile(share: float) -> float:
            return float(np.quantile(latency, share)) if len(latency) else math.nan

        return Summary(
            n_offered=offered,
            accuracy=percent(solved),
            slo=percent(on_time),
            correct_on_time=percent(solved & on_time),
            answered=percent(answered),
            latency_mean_s=float(latency.mean()) if len(latency) else math.nan,
            latency_p50_s=quantile(0.5),
            latency_p90_s=quantile(0.9),
            calls_per_query=len(self.calls) / offered if offered else math.nan,
            cost_gpu_s=sum(self.gpu_s.values()) / offered if offered else math.nan,
            cost_usd=self._cost_usd(),
        )

    def _cost_usd(self) -> float:
        """Mean over all queries offered; one that used no priced model cost nothing."""
        cost = self.queries["cost_usd"]
        known = ~np.isnan(cost)
        return float(cost[known].sum()) / len(cost) if known.any() else math.nan
