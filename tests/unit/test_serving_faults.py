"""Faults of policies, endpoints, bodies and files: each ends as one clear outcome."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.api import parse_body
from actors.bodies import QueryRequest
from actors.endpoint_server import _as_event
from actors.journal import Journal
from actors.vllm_answer import EngineAnswer
from actors.workflow_actor import WorkflowActor
from runtime.config import AppConfig
from runtime.decide import Decider
from runtime.errors import InfraMindError
from runtime.events import CallDone, DeadlinePassed, Routed, RunCall
from runtime.policy import make_policy
from runtime.types import Answer, CallResult, Query, Route, Speed, Strategy, TaskKind
from runtime.workflow import WorkflowState


class _NoNeeds:
    """A plug-in without ``needs_embedding``."""

    name = "no_needs"


def _driver(config: AppConfig, policy: Any) -> WorkflowActor:
    """A workflow actor without its links to Ray."""
    actor = WorkflowActor.__new__(WorkflowActor)
    actor._config, actor._limit, actor._runners = config, 10, {}
    decider = SimpleNamespace(policy=policy)
    actor._services = SimpleNamespace(config=config, decider=lambda _: decider, log=None)
    return actor


def test_a_stream_ends_when_its_query_cannot_be_driven(config: AppConfig) -> None:
    """A long query reads the same stream, and would run for ever."""

    async def last() -> Any:
        driver = _driver(config, _NoNeeds())
        query = Query("q-1", "What?", 5.0, TaskKind.MATH)
        items = [item async for item in driver.stream(query, 0.0)]
        return items[-1]

    try:
        answer = asyncio.run(asyncio.wait_for(last(), 2.0))
    except TimeoutError:
        pytest.fail("the stream never ends")
    assert isinstance(answer, Answer)
    assert answer.error_code == "internal_error"


@pytest.mark.parametrize(
    "raw",
    [
        b'{"question": "a\xed\xa0\x80b"}',
        '{"question": "\\ud800"}'.encode("utf-16"),
        '{"question": "\\ud800"}'.encode("utf-32"),
    ],
)
def test_half_a_surrogate_pair_is_refused_however_it_is_spelled(raw: bytes) -> None:
    with pytest.raises(InfraMindError):
        parse_body(raw, QueryRequest)


@pytest.mark.parametrize("figure", ["abc", [1], {"a": 1}, -(10**9), float("nan"), float("inf")])
def test_a_usage_that_is_no_count_does_not_come_through(figure: Any) -> None:
    """Unknown (``None``), or the endpoint's failure; not ``the policy failed``, nor a 500."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"content": "hi"}}
    answer = EngineAnswer()
    try:
        answer.take_event(_as_event({"choices": [choice], "usage": {"prompt_tokens": figure}}))
        told = answer.last_chunk().prompt_tokens
    except (ValueError, TypeError, RuntimeError):
        return
    assert told is None


def test_a_journal_with_broken_pages_does_not_stop_the_records_actor(tmp_path: Path) -> None:
    """Its docstring: what cannot be read is lost. A constructor that raises is a dead actor."""
    path = tmp_path / "j.sqlite3"
    journal = Journal(path)
    for number in range(200):
        journal._db.execute(
            "INSERT INTO queries (query_id, owner, query) VALUES (?, '', ?)",
            (f"q{number}", b"x" * 3000),
        )
    journal._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    journal._db.close()
    raw = bytearray(path.read_bytes())
    for offset in range(4096, len(raw), 4096):
        raw[offset : offset + 100] = os.urandom(100)
    path.write_bytes(raw)
    assert Journal(path).entries() == []


@dataclass
class _View:
    candidates: tuple[Any, ...]
    can_stop: bool = True


@pytest.mark.parametrize(
    "route",
    [
        Route("small", Strategy.FLASH, max_tokens=-5),
        Route("small", Strategy.FLASH, temperature=float("nan")),
        Route("small", Strategy.FLASH, temperature=-1.0),
        Route("small", "Nonsense"),  # type: ignore[arg-type]
    ],
)
def test_a_route_that_no_engine_can_take_is_the_policy_s_fault(
    config: AppConfig, route: Route
) -> None:
    """It must not look like a full backlog."""
    decider = Decider(config, make_policy(config))
    small = SimpleNamespace(name="small", speed=None)
    with pytest.raises(InfraMindError):
        decider._check(route, _View((small,)))  # type: ignore[arg-type]


def test_a_result_that_cannot_be_summed_does_not_leave_a_query_without_an_outcome(
    config: AppConfig,
) -> None:
    """The sum fails once; the query must still end."""
    query = Query("q-1", "What?", 5.0, TaskKind.MATH, direct_model="small")
    state = WorkflowState(query, config, 0.0)
    state.start(0.0)
    speed = Speed(10_000, 0.01)
    [run] = state.handle(Routed(0, Route("small", Strategy.FLASH), speed), 0.1)
    assert isinstance(run, RunCall)
    result = CallResult("42", "stop", "abc", 5, 0.0, 0.1)  # type: ignore[arg-type]
    with contextlib.suppress(TypeError):
        state.handle(CallDone(run.call.call_id, result), 0.2)
    if state.answer is None:
        state.handle(DeadlinePassed(""), 5.0)
    assert state.answer is not None
