"""The journal of long queries: what it gives back, and files that are not what they should be."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

import pytest

from actors.journal import Journal, dump
from runtime.outcome import Progress, build_answer
from runtime.types import Answer, DeadlineKind, Message, Query, Sampling, TaskKind, ToolCall


def query(query_id: str) -> Query:
    return Query(
        query_id,
        "Was heißt 水?",
        30.0,
        task=TaskKind.KNOWLEDGE,
        context=(Message("system", "Be brief."), Message("user", "Hi", name="ann")),
        choices=("water", "fire"),
        deadline_kind=DeadlineKind.SOFT,
        sampling=Sampling(temperature=0.5, seed=-3, stop=("a", "b"), logit_bias=(("7", -1.0),)),
        last=Message("assistant", "", tool_calls=(ToolCall("c", "f", "{}"),)),
    )


def answer(query_id: str) -> Answer:
    facts = Progress(query(query_id), 0.0, None, (), "fixed")
    return build_answer(facts, 1.0, "ok", None, "42", None)


def begin(journal: Journal, query_id: str, wall_s: float) -> None:
    journal.begin(query(query_id), dump(query(query_id)), "owner", wall_s)


def test_the_next_process_reads_what_this_one_wrote(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    for i, query_id in enumerate(("runs", "late", "early", "gone")):
        begin(journal, query_id, 100.0 + i)
    journal.end("late", answer("late"), 120.0, 7)
    journal.end("early", answer("early"), 110.0, 9)
    journal.remove(["gone"])
    journal.restart("runs")

    again = Journal(path)
    assert (journal.num_starts, again.num_starts) == (0, 1)
    early, late, runs = again.entries()
    assert (early.query_id, early.last_number, early.ended_wall_s) == ("early", 9, 110.0)
    assert (late.answer, late.query) == (answer("late"), None)
    assert (runs.query, runs.answer, runs.restarts) == (query("runs"), None, 1)
    assert (runs.owner, runs.budget_s, runs.arrival_wall_s) == ("owner", 30.0, 100.0)


def test_only_its_user_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    begin(Journal(path), "a", 1.0)
    assert {file.stat().st_mode & 0o077 for file in tmp_path.iterdir()} == {0}


def test_a_question_is_forgotten_when_it_is_answered(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    begin(journal, "a", 1.0)
    journal.end("a", answer("a"), 2.0, 1)
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT query FROM queries").fetchall() == [(None,)]
    db.close()


@pytest.mark.parametrize("content", [b"not a database, but long enough to be one " * 100])
def test_a_broken_file_is_replaced(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "journal"
    path.write_bytes(content)
    with caplog.at_level(logging.ERROR):
        journal = Journal(path)
    assert "cannot be read" in caplog.text
    begin(journal, "a", 1.0)
    assert [entry.query_id for entry in journal.entries()] == ["a"]


def test_a_row_that_cannot_be_read_is_dropped_and_the_others_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    begin(journal, "a", 1.0)
    journal.begin(query("b"), b'{"query_id": "b", "unknown": 1}', "owner", 2.0)
    with caplog.at_level(logging.ERROR):
        assert [entry.query_id for entry in journal.entries()] == ["a"]
    assert "long query b" in caplog.text
    assert [entry.query_id for entry in Journal(path).entries()] == ["a"]
