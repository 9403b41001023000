"""The call log that a simulated pool would have left, had it been a live one."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pyarrow as pa

from runtime.call_log import CallRow, OutcomeRow
from runtime.log_tables import table_of, with_outcomes
from runtime.sim.results import Results

WALL = 1_700_000_000.0


def call_rows(results: Results, tasks: Mapping[str, str], dispatch_s: float = 0.0) -> list[CallRow]:
    """Every call; ``tasks`` by data set, ``dispatch_s`` as it was simulated. Times to the first
    token are an engine's own."""
    queries = {row["query"]: row for row in results.queries.rows()}
    return [_call(c, queries[c["query"]], tasks, dispatch_s) for c in results.calls.rows()]


def _call(c: dict, query: dict, tasks: Mapping[str, str], dispatch_s: float) -> CallRow:  # type: ignore[type-arg]
    began, ok = not math.isnan(c["granted_s"]), c["status"] == "ok"
    return CallRow(
        query_id=f"q{c['query']}",
        step_id=c["step"],
        attempt=c["attempt"],
        kind=c["kind"],
        role=c["role"],
        task=tasks[query["dataset"]],
        topology=query["topology"],
        policy="test",
        model=c["model"],
        strategy=c["strategy"],
        replica=f"{c['model']}#0" if ok else None,
        status=c["status"],
        finish_reason=("length" if c["cut"] else "stop") if ok else None,
        agrees=True if ok and query["num_calls"] == 1 else None,
        num_shown=0 if c["kind"] == "answer" else 1,
        prompt_tokens=c["prompt_tokens"] if ok else None,
        estimated_tokens=c["prompt_tokens"],
        completion_tokens=c["completion_tokens"] if ok else None,
        max_tokens=c["max_tokens"],
        arrival_at=WALL + query["arrival_s"],
        deadline_at=WALL + query["arrival_s"] + query["budget_s"],
        hard=False,
        asked_at=WALL + c["asked_s"],
        granted_at=WALL + c["granted_s"] if began else None,
        ended_at=WALL + c["ended_s"],
        budget_left_s=query["budget_s"],
        queue_s=(c["granted_s"] if began else c["ended_s"]) - c["asked_s"],
        service_s=c["ended_s"] - c["granted_s"] if began else None,
        ttft_s=c["first_token_s"] - c["granted_s"] - dispatch_s if ok else None,
        load=(),
        simulated=False,
        config="test",
    )


def outcome_rows(results: Results, dataset: str | None = None) -> list[OutcomeRow]:
    """What a grader says of every query; with its ``dataset`` where that is given."""
    return [
        OutcomeRow(f"q{q['query']}", WALL, "grader", bool(q["solved"]), None, dataset, q["item"])
        for q in results.queries.rows()
    ]


def log_table(calls: list[CallRow], outcomes: list[OutcomeRow]) -> pa.Table:
    """The two as ``runtime.sim.calibrate`` takes them."""
    return with_outcomes(table_of("calls", calls), table_of("outcomes", outcomes))
