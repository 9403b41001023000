"""The rows of the call log: what becomes of calls and queries, and what is never written."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from runtime.call_log import CallRow, Clock, LogEntry, OutcomeRow, QueryRecord, public_id
from runtime.config import AppConfig
from runtime.events import (
    AskPlan,
    AskRoute,
    CallDone,
    CallDropped,
    CallFailed,
    Cancelled,
    FailureKind,
    Planned,
    Routed,
    RunCall,
    WorkflowCommand,
)
from runtime.load import LocalLoad
from runtime.log_tables import SCHEMAS, table_of, with_outcomes
from runtime.types import (
    Call,
    CallResult,
    Plan,
    Query,
    Route,
    Strategy,
    TaskKind,
)
from runtime.workflow import WorkflowState

SECRET = "the secret question"
WALL = 1_700_000_000.0


class Live:
    """One query driven by hand, with its record kept as a driver keeps it."""

    def __init__(self, config: AppConfig, content: bool = False, **changes: Any) -> None:
        self.query = Query("q-1", SECRET, 30.0, TaskKind.MATH, **changes)
        self.state = WorkflowState(self.query, config, 100.0)
        self.record = QueryRecord(self.query, 100.0, Clock(100.0, WALL), config.digest, content)
        self.load = LocalLoad(config)
        self.calls: list[Call] = []
        self.route = Route("small", Strategy.CONCISE)
        self.perform(self.state.start(100.0), 100.0)

    def perform(self, commands: list[WorkflowCommand], now: float) -> None:
        for command in commands:
            if isinstance(command, AskPlan):
                plan = Plan("Debate", ("MathSolver", "MathAnalyst"), TaskKind.MATH)
                self.perform(self.state.handle(Planned(plan, "test"), now), now)
            elif isinstance(command, AskRoute):
                self.perform(self.state.handle(Routed(command.step_id, self.route), now), now)
            elif isinstance(command, RunCall):
                self.start(command.call, now)

    def start(self, call: Call, now: float) -> None:
        step = self.state.steps[call.step_id].step
        self.record.asked(call, step, self.state.num_shown(step), self.load.view(now), now)
        self.load.sent(call.call_id, call.model, now)
        self.calls.append(call)

    def end(self, call: Call, event: Any, now: float) -> None:
        self.record.ended(call.call_id, event, now)
        self.load.ended(call.call_id, call.model, now, event)
        self.perform(self.state.handle(event, now), now)

    def done(self, call: Call, text: str, now: float) -> None:
        self.record.granted(call.call_id, 77, now - 1.0)
        result = CallResult(text, "stop", 50, 9, 0.25, 1.0, 0.1, "r-1")
        self.end(call, CallDone(call.call_id, result), now)

    def entry(self, now: float) -> LogEntry:
        assert self.state.answer is not None
        return self.record.finished(self.state.answer, now, [0.5, 0.25])


def debated(config: AppConfig, content: bool = False) -> LogEntry:
    """Two answers, one of them to be overruled, two of the second round, and the decision."""
    live = Live(config, content)
    first, second = live.calls
    live.done(first, "Answer: 7", 103.0)
    live.done(second, "Answer: 8", 104.0)
    for call in live.calls[2:4]:
        live.done(call, "Answer: 7", 106.0)
    live.done(live.calls[4], "Answer: 7", 108.0)
    return live.entry(108.0)


def test_every_call_and_the_query_have_a_row(config: AppConfig) -> None:
    entry = debated(config)
    query, calls = entry.query, entry.calls
    assert (query.status, query.topology, query.num_calls) == ("ok", "Debate", 5)
    assert (query.latency_s, query.arrival_at, query.ended_at) == (8.0, WALL, WALL + 8)
    assert [c.agrees for c in calls] == [True, False, True, True, True]
    assert [c.num_shown for c in calls] == [0, 0, 2, 2, 2]
    first = calls[0]
    assert (first.model, first.strategy, first.replica) == ("small", "Concise", "r-1")
    assert (first.asked_at, first.granted_at, first.ended_at) == (WALL, WALL + 2, WALL + 3)
    assert (first.queue_s, first.service_s, first.ttft_s) == (0.25, 1.0, 0.1)
    assert (first.max_tokens, first.prompt_tokens, first.completion_tokens) == (77, 50, 9)
    assert (first.budget_left_s, first.deadline_at) == (30.0, WALL + 30)


def test_the_load_is_what_the_decider_saw(config: AppConfig) -> None:
    """The second call was routed when the first was on its way already."""
    first, second = debated(config).calls[:2]
    assert [one.model for one in first.load] == ["small", "middle", "large"]
    assert [first.load[0].in_system, second.load[0].in_system] == [0, 1]
    assert first.load[0].running is None  # nothing has been heard: not 0


def test_no_text_is_written_unless_it_is_asked_for(config: AppConfig) -> None:
    without, with_content = debated(config), debated(config, content=True)
    assert SECRET not in repr(without)
    assert "Answer" not in repr(without)
    assert without.query.embedding is None
    assert with_content.query.question == SECRET
    assert with_content.query.embedding == (0.5, 0.25)
    assert all(SECRET in (call.prompt or "") for call in with_content.calls)
    assert with_content.calls[0].text == "Answer: 7"


@pytest.mark.parametrize(
    ("event", "status"),
    [
        (lambda i: CallFailed(i, FailureKind.LOST, "the replica died"), "lost"),
        (lambda i: CallFailed(i, FailureKind.REFUSED, "full"), "refused"),
        (CallDropped, "dropped"),
    ],
)
def test_failed_and_dropped_calls_have_rows(config: AppConfig, event: Any, status: str) -> None:
    live = Live(config)
    first, second = live.calls[:2]
    live.end(first, event(first.call_id), 102.0)
    live.end(second, Cancelled(), 103.0)
    entry = live.entry(103.0)
    row = entry.calls[0]
    assert (row.status, row.service_s, row.queue_s, row.agrees) == (status, None, 2.0, None)
    assert row.completion_tokens is None


def test_withdrawn_calls_have_rows_and_end_with_the_query(config: AppConfig) -> None:
    live = Live(config)
    live.perform(live.state.handle(Cancelled(), 104.0), 104.0)
    entry = live.entry(104.0)
    assert [c.status for c in entry.calls] == ["cancelled", "cancelled"]
    assert all(c.ended_at == WALL + 4 for c in entry.calls)
    assert (entry.query.status, entry.query.error) == ("error", "cancelled")


def test_a_retry_has_a_row_of_its_own(config: AppConfig) -> None:
    live = Live(config)
    first = live.calls[0]
    live.route = Route("middle", Strategy.FLASH)
    live.end(first, CallFailed(first.call_id, FailureKind.MODEL, "broke"), 102.0)
    again = live.calls[-1]
    live.end(again, Cancelled(), 103.0)
    rows = [c for c in live.entry(103.0).calls if c.step_id == first.step_id]
    assert [(r.attempt, r.model, r.status) for r in rows] == [
        (1, "small", "model"),
        (2, "middle", "cancelled"),
    ]


def test_a_query_that_ran_again_keeps_its_id() -> None:
    assert public_id("q-abc.1") == public_id("q-abc") == "q-abc"


def test_rows_and_schemas_have_the_same_columns() -> None:
    for name, kind in (("calls", CallRow), ("outcomes", OutcomeRow)):
        assert {f.name for f in fields(kind)} == set(SCHEMAS[name].names)


def test_rows_survive_the_way_through_a_table(config: AppConfig) -> None:
    entry = debated(config, content=True)
    calls = table_of("calls", entry.calls).to_pylist()
    assert [c["agrees"] for c in calls] == [True, False, True, True, True]
    assert calls[0]["load"][0] == {
        "model": "small", "in_system": 0, "slots": 4, "running": None, "waiting": None,
        "backlog": None, "kv_usage": None, "age_s": None,
    }  # fmt: skip
    assert calls[0]["ended_at"].timestamp() == WALL + 3
    query = table_of("queries", [entry.query]).to_pylist()[0]
    assert query["roles"] == ["MathSolver", "MathAnalyst"]
    assert query["embedding"] == [0.5, 0.25]


def outcome(query_id: str, at: float, **changes: Any) -> OutcomeRow:
    return OutcomeRow(query_id, at, "user", **{"correct": None, "score": None, **changes})


def test_the_last_outcome_counts_and_others_stay_unknown(config: AppConfig) -> None:
    row = debated(config).query
    told = [outcome("q-1", 5.0, correct=True), outcome("q-1", 4.0, score=0.3)]
    told += [outcome("q-other", 9.0, correct=False)]
    joined = with_outcomes(table_of("queries", [row]), table_of("outcomes", told))
    assert joined["correct"].to_pylist() == [True]
    assert joined["score"].to_pylist() == [1.0]
    without = with_outcomes(table_of("queries", [row]), table_of("outcomes", told[2:]))
    assert without["correct"].to_pylist() == without["score"].to_pylist() == [None]
