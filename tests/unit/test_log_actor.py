"""The log's two ends: a sender that never holds a query up, and an actor that outlives its disk."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors import log_actor, log_sender
from actors.log_actor import LogActor
from actors.log_sender import LogSender, LogState
from runtime.call_log import LogEntry, OutcomeRow, QueryRow
from runtime.config import AppConfig, parse_config
from runtime.log_tables import parts, read_table
from tests.conftest import app_args


def entry(query_id: str, owner: str | None = None, text: str | None = None) -> LogEntry:
    return LogEntry(
        QueryRow(
            query_id, owner, "ok", None, "math", "IO", ("MathSolver",), "greedy", None, True,
            1.7e9, 1.7e9, 1.0, 9.0, 0, 0, 0, False, "abc", text=text,
        )
    )  # fmt: skip


def outcome(query_id: str, correct: bool = True, comment: str | None = None) -> OutcomeRow:
    return OutcomeRow(query_id, 1.7e9, "user", correct, None, comment=comment)


def actor(folder: Path, **changes: Any) -> LogActor:
    log = {"folder": str(folder), "flush_s": 3600.0, **changes}
    return LogActor(app_args(call_log=log))


async def test_rows_are_on_disk_after_a_flush(tmp_path: Path) -> None:
    log = actor(tmp_path)
    await log.add([entry("q-1"), entry("q-2")])
    assert parts(tmp_path, "queries") == []
    state = await log.flush()
    assert state.rows_written == 2
    assert len(read_table(tmp_path, "queries")) == 2
    assert len(parts(tmp_path, "queries")) == 1
    assert (await log.flush()).rows_written == 2


async def test_rows_wait_for_a_disk_that_is_in_the_way_and_then_come(tmp_path: Path) -> None:
    folder = tmp_path / "calls"
    folder.write_text("a file")
    log = actor(folder)
    await log.add([entry("q-1")])
    state = await log.flush()
    assert (state.rows_written, state.faults) == (0, 1)
    assert "calls" in (state.last_fault or "")
    assert await log.feedback(outcome("q-1"), "") is False
    folder.unlink()
    assert (await log.flush()).rows_written == 1
    assert await log.feedback(outcome("q-1"), "") is True


async def test_memory_is_bounded_and_what_is_lost_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_actor, "MAX_ROWS", 10)
    log = actor(tmp_path)
    assert (await log.add([entry(f"q-{i}") for i in range(25)])).rows_lost == 15
    assert (await log.flush()).rows_written == 10
    assert (await log.add([entry("q-x")])).rows_lost == 15
    monkeypatch.setattr(log_actor, "MAX_CHARS", 5000)
    assert (await log.add([entry("q-y", text="x" * 6000)])).rows_lost == 16


async def test_outcomes_find_queries_in_memory_and_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_actor, "UNHEARD_S", 0.05)
    log = actor(tmp_path)
    await log.add([entry("q-new"), entry("q-long", owner="me")])
    assert await log.feedback(outcome("q-new"), "") is True
    await log.flush()
    again = actor(tmp_path)
    assert await again.feedback(outcome("q-new", False), "anybody") is True
    assert await again.feedback(outcome("q-long"), "") is None
    assert await again.feedback(outcome("q-long"), "me") is True
    assert await again.feedback(outcome("q-never"), "") is None
    rows = read_table(tmp_path, "outcomes")["query_id"].to_pylist()
    assert sorted(rows) == ["q-long", "q-new", "q-new"]


async def test_an_outcome_may_overtake_its_query(tmp_path: Path) -> None:
    """The answer is with the client a moment before its rows are with the actor."""
    log = actor(tmp_path)
    told = asyncio.create_task(log.feedback(outcome("q-1"), ""))
    await asyncio.sleep(0.05)
    await log.add([entry("q-1")])
    assert await told is True


@pytest.mark.parametrize(("content", "kept"), [(False, None), (True, "my name is")])
async def test_comments_are_content(tmp_path: Path, content: bool, kept: str | None) -> None:
    log = actor(tmp_path, log_content=content)
    await log.add([entry("q-1")])
    await log.feedback(outcome("q-1", comment="my name is"), "")
    assert read_table(tmp_path, "outcomes")["comment"].to_pylist() == [kept]


# --- the sender ----------------------------------------------------------------------------------


class FakeActor:
    """Stands for the log actor's handle."""

    def __init__(self) -> None:
        self.batches: list[tuple[LogEntry, ...]] = []
        self.answer: Any = LogState("here", rows_written=3)
        self.add = self

    async def _reply(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def remote(self, batch: tuple[LogEntry, ...]) -> Any:
        self.batches.append(batch)
        return self._reply()


@pytest.fixture
def config() -> AppConfig:
    return parse_config(app_args())


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeActor:
    handle = FakeActor()
    monkeypatch.setattr(log_sender.ActorRef, "get", lambda _: handle)
    monkeypatch.setattr(log_sender, "SEND_GAP_S", 0.01)
    return handle


async def test_entries_go_out_in_batches_and_the_state_comes_back(
    config: AppConfig, fake: FakeActor
) -> None:
    sender = LogSender(config)
    for i in range(log_sender.MAX_BATCH + 1):
        sender.add(entry(f"q-{i}"))
    await asyncio.sleep(0.1)
    assert [len(batch) for batch in fake.batches] == [log_sender.MAX_BATCH, 1]
    assert sender.state["rows_written"] == 3
    assert sender.state["queries_lost"] == 0


async def test_a_sender_with_nothing_to_send_still_hears_how_the_log_fares(
    config: AppConfig, fake: FakeActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_sender, "ASK_S", 0.01)
    sender = LogSender(config)
    await asyncio.sleep(0.1)
    assert sender.state["rows_written"] == 3
    assert set(map(len, fake.batches)) == {0}


async def test_a_sender_ends_when_it_is_told_to_just_as_an_answer_comes(
    config: AppConfig, fake: FakeActor
) -> None:
    sender, answer = LogSender(config), asyncio.get_running_loop().create_future()
    fake.remote = lambda _: answer  # type: ignore[method-assign,assignment]
    sender.add(entry("q-1"))
    await asyncio.sleep(0.1)
    answer.set_result(LogState())
    sender._task.cancel()
    done, _ = await asyncio.wait([sender._task], timeout=2.0)
    assert done == {sender._task}


async def test_what_cannot_be_sent_is_counted_and_the_next_goes_out(
    config: AppConfig, fake: FakeActor
) -> None:
    sender = LogSender(config)
    fake.answer = ValueError("no such actor")
    sender.add(entry("q-1"))
    await asyncio.sleep(0.1)
    fake.answer = LogState()
    sender.add(entry("q-2"))
    await asyncio.sleep(0.1)
    assert sender.state["queries_lost"] == 1
    assert [e.query.query_id for e in fake.batches[-1]] == ["q-2"]


async def test_what_waits_to_be_sent_is_bounded(config: AppConfig, fake: FakeActor) -> None:
    sender = LogSender(config)
    for i in range(log_sender.MAX_WAITING + 7):
        sender.add(entry(f"q-{i}"))
    assert sender.state["queries_lost"] == 7
    long = "x" * (log_sender.MAX_WAITING_CHARS + 1)
    fresh = LogSender(config)
    fresh.add(entry("q-long", text=long))
    assert fresh.state["queries_lost"] == 1
