"""What is kept of long queries: bounds, order, owners and event numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.config import LongQueriesConfig
from runtime.errors import (
    DeadlineExceeded,
    InfraMindError,
    Overloaded,
    QueryCancelled,
    QueryNotFound,
)
from runtime.outcome import Progress, build_answer
from runtime.records import (
    EVENT_BYTES,
    MAX_BATCH,
    MAX_EVENTS,
    RECORD_BYTES,
    Record,
    RecordBook,
    status_of,
)
from runtime.types import Answer, Query


def answer(query_id: str, error: InfraMindError | None = None) -> Answer:
    facts = Progress(Query(query_id, "?", 10.0), 0.0, None, (), "fixed")
    return build_answer(facts, 1.0, "error" if error else "ok", None, "42", error)


def book(**limits: float) -> RecordBook:
    return RecordBook(LongQueriesConfig.model_validate(limits))


def begin(records: RecordBook, *ids: str, owner: str = "", size: int = 10) -> list[str]:
    return [gone for i in ids for gone in records.accept(i, owner, 0.0, 10.0, size)]


def end(records: RecordBook, query_id: str, now: float = 1.0) -> list[str]:
    return records.end(query_id, answer(query_id), "answer", "{}", now)


def test_what_ended_first_goes_first_and_what_runs_stays() -> None:
    records = book(max_kept=3)
    begin(records, "a", "b", "c")
    assert end(records, "b", 1.0) == []
    assert end(records, "a", 2.0) == []
    assert begin(records, "d") == ["b"]
    assert begin(records, "e") == ["a"]
    with pytest.raises(Overloaded) as refused:
        begin(records, "f")
    assert refused.value.retry_after_s >= 1.0
    assert "f" not in records
    assert (records.num_kept, records.num_running) == (3, 3)


def test_a_refused_query_drops_nothing() -> None:
    records = book(max_kept_bytes=4 * RECORD_BYTES)
    begin(records, "runs", "ended")
    end(records, "ended")
    with pytest.raises(Overloaded):
        begin(records, "large", size=3 * RECORD_BYTES)
    assert "ended" in records
    assert begin(records, "fits", size=2 * RECORD_BYTES - 10) == ["ended"]


def test_bytes_are_bounded_by_dropping_what_ended_then_the_first_events_of_what_runs() -> None:
    records = book(max_kept_bytes=10_000)
    begin(records, "old", "runs")
    end(records, "old")
    dropped = [gone for _ in range(50) for gone in records.append("runs", "delta", "x" * 100)]
    assert dropped == ["old"]
    assert records.kept_bytes <= 10_000
    batch = records.events_after("runs", "", 0)
    assert batch.missed
    assert batch.events[-1].number == 50
    assert batch.events[0].number > 1
    assert not records.events_after("runs", "", batch.events[0].number - 1).missed


def test_the_record_that_just_ended_is_kept_even_if_it_is_too_large() -> None:
    records = book(max_kept_bytes=5000)
    begin(records, "a")
    assert records.end("a", answer("a"), "answer", "x" * 10_000, 1.0) == []
    assert records.view("a", "", 1.0).status == "ok"
    assert begin(records, "b") == ["a"]


def test_events_of_one_record_are_bounded() -> None:
    records = book()
    begin(records, "a")
    for _ in range(MAX_EVENTS + 7):
        records.append("a", "delta", "")
    batch = records.events_after("a", "", 0)
    assert (batch.missed, batch.events[0].number) == (True, 8)
    assert len(batch.events) == MAX_BATCH


def test_another_owner_and_an_unknown_id_look_the_same() -> None:
    records = book()
    begin(records, "a", owner="alice")
    for query_id, owner in (("a", "bob"), ("a", ""), ("b", "alice")):
        with pytest.raises(QueryNotFound) as error:
            records.view(query_id, owner, 0.0)
        assert error.value.message == f"no query {query_id!r} is kept"
        with pytest.raises(QueryNotFound):
            records.events_after(query_id, owner, 0)
    assert records.view("a", "alice", 0.0).status == "running"


def test_events_resume_and_end() -> None:
    records = book()
    begin(records, "a")
    records.append("a", "plan", "{}")
    records.append("a", "delta", "{}")
    assert not records.events_after("a", "", 2).ended
    end(records, "a")
    rest = records.events_after("a", "", 2)
    assert [(e.number, e.kind) for e in rest.events] == [(3, "answer")]
    assert (rest.ended, rest.missed) == (True, False)
    assert records.events_after("a", "", 3).events == ()
    assert records.append("a", "delta", "late") == []
    assert records.last_number("a") == 3


def test_a_batch_ends_the_stream_only_when_it_has_the_last_event() -> None:
    records = book()
    begin(records, "a")
    for _ in range(MAX_BATCH):
        records.append("a", "delta", "")
    end(records, "a")
    first = records.events_after("a", "", 0)
    assert (len(first.events), first.ended) == (MAX_BATCH, False)
    assert records.events_after("a", "", MAX_BATCH).ended


def test_what_ended_is_kept_for_its_time_and_what_runs_for_ever() -> None:
    records = book(keep_s=100.0)
    begin(records, "a", "b", "c")
    end(records, "b", 5.0)
    end(records, "a", 10.0)
    assert records.view("a", "", 60.0).keep_s == 50.0
    assert records.expire(104.9) == []
    assert records.expire(105.0) == ["b"]
    assert records.expire(1e9) == ["a"]
    assert records.view("c", "", 1e9).keep_s is None


def test_a_second_outcome_changes_nothing() -> None:
    records = book()
    begin(records, "a")
    end(records, "a")
    lost = answer("a", DeadlineExceeded("too late"))
    assert records.end("a", lost, "error", "{}", 2.0) == []
    assert records.view("a", "", 3.0).status == "ok"


def test_a_restored_record_keeps_its_number_and_says_what_is_missing() -> None:
    records = RecordBook(LongQueriesConfig(), first_number=1001)
    record = Record("a", "alice", 0.0, 10.0, status="ok", answer=answer("a"), ended_s=2.0)
    records.restore(record, 58, "answer", "{}")
    late = records.events_after("a", "alice", 0)
    assert ([e.number for e in late.events], late.missed, late.ended) == ([58], True, True)
    assert not records.events_after("a", "alice", 57).missed
    assert records.events_after("a", "alice", 58).events == ()
    begin(records, "b")
    records.append("b", "restart", "{}")
    assert records.events_after("b", "", 57).events[0].number == 1001


def test_a_cancelled_query_has_a_status_of_its_own() -> None:
    assert status_of(answer("a", QueryCancelled("gone"))) == "cancelled"
    assert status_of(answer("a", DeadlineExceeded("late"))) == "error"
    assert status_of(answer("a")) == "ok"


_OPS = st.one_of(
    st.tuples(st.just("accept"), st.integers(0, 9), st.integers(0, 3000)),
    st.tuples(st.just("append"), st.integers(0, 9), st.integers(0, 500)),
    st.tuples(st.just("end"), st.integers(0, 9), st.integers(0, 3000)),
    st.tuples(st.just("expire"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("remove"), st.integers(0, 9), st.just(0)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_OPS, max_size=80), st.integers(1, 5), st.integers(1, 20_000))
def test_whatever_happens_the_bounds_hold_and_nothing_that_runs_is_dropped(
    ops: list[tuple[str, int, int]], max_kept: int, max_kept_bytes: int
) -> None:
    records = book(max_kept=max_kept, max_kept_bytes=max_kept_bytes, keep_s=20.0)
    running: set[str] = set()
    ended: list[str] = []
    for now, (name, number, size) in enumerate(ops):
        query_id, dropped = f"q{number}", []
        if name == "accept" and query_id not in records:
            try:
                dropped = begin(records, query_id, size=size)
                running.add(query_id)
            except Overloaded:
                sizes = [records.find(i, "").size for i in running]
                full = sum(sizes) + size + RECORD_BYTES > max_kept_bytes
                assert full or len(running) == max_kept
        elif name == "append":
            dropped = records.append(query_id, "delta", "x" * size)
        elif name == "end" and query_id in running:
            dropped = records.end(query_id, answer(query_id), "answer", "x" * size, now)
            running.discard(query_id)
            ended.append(query_id)
        elif name == "expire":
            dropped = records.expire(now)
        elif name == "remove" and query_id in ended:
            records.remove(query_id)
            ended.remove(query_id)
        assert dropped == ended[: len(dropped)]
        del ended[: len(dropped)]
        assert running | set(ended) == {i for i in (f"q{n}" for n in range(10)) if i in records}
        assert records.num_running == len(running)
        assert records.num_kept <= max_kept
        _check_bytes(records, running, ended, max_kept_bytes)


def _check_bytes(
    records: RecordBook, running: set[str], ended: list[str], max_kept_bytes: int
) -> None:
    """Above the bound there is nothing left to drop: one record that ended, one event of each."""
    if records.kept_bytes > max_kept_bytes:
        assert len(ended) <= 1
        assert all(len(records.find(i, "").events) < 2 for i in running)
    sizes = [records.find(i, "").size for i in (*running, *ended)]
    assert records.kept_bytes == sum(sizes)
    for query_id in running:
        record = records.find(query_id, "")
        assert record.size == record.base + sum(e.size for e in record.events)
        assert all(e.size >= EVENT_BYTES for e in record.events)
