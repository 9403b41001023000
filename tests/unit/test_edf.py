"""The waiting queues: order, lazy removal, expiry, and the engine's priority."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime.edf import COMPACT_SLACK, MAX_PRIORITY, ORDERS, Entry, WaitQueue, engine_priority
from runtime.edf import make_queue as make

ALL_ORDERS = sorted(ORDERS)


def entry(call_id, deadline_s, arrival=0, *, service_s=0.0, path_s=0.0, hard=False, at_s=0.0):
    return Entry(call_id, "h", deadline_s, arrival, at_s, service_s, path_s, hard)


def filled(order, entries) -> WaitQueue:
    queue = make(order)
    for item in entries:
        queue.push(item)
    return queue


def drain(queue, now=0.0):
    ids = []
    while (item := queue.pop(now)) is not None:
        ids.append(item.call_id)
    return ids


# (name, entries as (id, deadline, service, path), now, order of each queue)
ORDER_TABLE = [
    (
        "case 1: budgets 60, 5, 30",
        [("60", 60, 1, 0), ("5", 5, 1, 0), ("30", 30, 1, 0)],
        0,
        {"edf": "5 30 60", "edf_plain": "5 30 60", "fcfs": "60 5 30"},
    ),
    (
        "equal deadlines go by arrival",
        [("a", 9, 1, 0), ("b", 9, 1, 0), ("c", 9, 1, 0)],
        0,
        {"edf": "a b c", "edf_plain": "a b c", "fcfs": "a b c"},
    ),
    (
        "case 6: the late yield, and go by arrival among themselves",
        [("late2", 6, 9, 0), ("late1", 5, 9, 0), ("ok", 30, 9, 0)],
        0,
        {"edf": "ok late2 late1", "edf_plain": "late1 late2 ok", "fcfs": "late2 late1 ok"},
    ),
    (
        "the path that must follow counts as well",
        [("path", 10, 1, 10), ("ok", 20, 1, 0)],
        0,
        {"edf": "ok path", "edf_plain": "path ok", "fcfs": "path ok"},
    ),
    (
        "to the moment is on time",
        [("just", 10, 4, 3), ("ok", 20, 1, 0)],
        3,
        {"edf": "just ok", "edf_plain": "just ok", "fcfs": "just ok"},
    ),
]


@pytest.mark.parametrize("order", ALL_ORDERS)
@pytest.mark.parametrize(("name", "calls", "now", "expected"), ORDER_TABLE)
def test_order(name, calls, now, expected, order):
    entries = [
        entry(call, deadline, i, service_s=service, path_s=path)
        for i, (call, deadline, service, path) in enumerate(calls)
    ]
    assert " ".join(drain(filled(order, entries), now)) == expected[order], name


def test_lateness_is_judged_when_served_not_when_pushed():
    queue = filled("edf", [entry("a", 10, 0, service_s=5), entry("b", 20, 1, service_s=5)])
    assert drain(queue, now=6.0) == ["b", "a"]


def test_case_5_a_requeued_call_keeps_its_place():
    queue = filled("edf", [entry("a", 9, 0), entry("b", 9, 1), entry("c", 9, 2)])
    first = queue.pop(0.0)
    queue.push(replace(first, gone=False))
    assert drain(queue) == ["a", "b", "c"]


def test_an_old_arrival_number_is_the_oldest_again():
    queue = filled("fcfs", [entry("b", 9, 1), entry("c", 9, 2)])
    queue.push(entry("a", 99, 0))
    assert queue.oldest().call_id == "a"
    assert drain(queue) == ["a", "b", "c"]


@pytest.mark.parametrize("order", ALL_ORDERS)
def test_push_refuses_a_second_entry_and_a_used_one(order):
    first = entry("a", 9, 0)
    queue = filled(order, [first])
    with pytest.raises(ValueError, match="already waits"):
        queue.push(entry("a", 1, 1))
    queue.remove("a")
    with pytest.raises(ValueError, match="push a copy"):
        queue.push(first)
    assert (len(queue), queue.work_s) == (0, 0.0)


@pytest.mark.parametrize("order", ALL_ORDERS)
def test_a_copy_pushed_after_a_cancel_takes_its_own_deadline(order):
    queue = filled(order, [entry("a", 5, 0), entry("b", 6, 1)])
    queue.remove("a")
    queue.push(entry("a", 7, 2))
    assert drain(queue) == ["b", "a"]


@pytest.mark.parametrize("order", ALL_ORDERS)
def test_expired_takes_hard_deadlines_only_and_from_anywhere(order):
    queue = filled(
        order,
        [
            entry("soft", 1, 0),
            entry("later", 30, 1, hard=True),
            entry("now", 10, 2, hard=True),
            entry("before", 9, 3, hard=True, service_s=50),
        ],
    )
    assert queue.next_expiry_s() == 9
    assert [e.call_id for e in queue.expired(8.0)] == []
    assert [e.call_id for e in queue.expired(10.0)] == ["before", "now"]
    assert queue.next_expiry_s() == 30
    assert sorted(drain(queue, 10.0)) == ["later", "soft"]


def test_a_late_call_still_expires():
    queue = filled("edf", [entry("late", 5, 0, service_s=9, hard=True), entry("ok", 99, 1)])
    assert queue.pop(0.0).call_id == "ok"
    assert [e.call_id for e in queue.expired(5.0)] == ["late"]
    assert queue.pop(5.0) is None


@pytest.mark.parametrize("order", ALL_ORDERS)
def test_memory_stays_bounded_when_calls_are_cancelled(order):
    queue = make(order)
    for i in range(5000):
        queue.push(entry(f"c{i}", 1e6 - i, i, hard=True, service_s=0.1))
        if i >= 10:
            queue.remove(f"c{i}")
    assert len(queue) == 10
    assert queue.work_s == pytest.approx(1.0)
    assert max(len(heap) for heap in queue._heaps) <= 2 * (len(queue) + COMPACT_SLACK) + 1
    assert len(drain(queue)) == 10
    assert queue.work_s == 0.0


def test_make_queue_names_what_there_is():
    with pytest.raises(ValueError, match=r"'lifo'.*edf_plain"):
        make("lifo")


# --- case 7: the engine's priority ---------------------------------------------------------------


def test_case_7_lower_is_earlier():
    assert engine_priority(5.0) < engine_priority(30.0) < engine_priority(60.0)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=20))
@settings(max_examples=50, deadline=None)
def test_case_7_priority_is_monotone_and_fits(deadlines):
    priorities = [engine_priority(deadline) for deadline in sorted(deadlines)]
    assert priorities == sorted(priorities)
    assert all(type(p) is int and abs(p) <= MAX_PRIORITY < 2**63 for p in priorities)


def test_case_7_a_long_uptime_does_not_clamp():
    year_s = 365 * 86400.0
    assert engine_priority(10 * year_s + 0.002) - engine_priority(10 * year_s) in (1, 2)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_priority_refuses_what_is_not_finite(bad):
    with pytest.raises(ValueError, match="finite"):
        engine_priority(bad)


# --- every order against a list that is searched from end to end ---------------------------------


def naive_key(order, item, now):
    if order == "fcfs":
        return (item.arrival,)
    if order == "edf" and now + item.service_s + item.path_s > item.deadline_s:
        return (1, item.arrival)
    return (0, item.deadline_s, item.arrival)


class QueueMachine(RuleBasedStateMachine):
    """A queue and a plain list, given the same operations, say the same."""

    @initialize(order=st.sampled_from(ALL_ORDERS))
    def start(self, order):
        self.order = order
        self.queue = make(order)
        self.model: list[Entry] = []
        self.now = 0.0
        self.arrivals = 0
        self.left: list[Entry] = []

    @rule(
        budget=st.integers(-2, 12),
        service=st.integers(0, 5),
        path=st.integers(0, 3),
        hard=st.booleans(),
    )
    def push(self, budget, service, path, hard):
        item = Entry(
            f"c{self.arrivals}",
            "h",
            self.now + budget,
            self.arrivals,
            self.now,
            service,
            path,
            hard,
        )
        self.arrivals += 1
        self.queue.push(item)
        self.model.append(item)

    @rule(data=st.data())
    @precondition(lambda self: self.left)
    def requeue(self, data):
        item = data.draw(st.sampled_from(self.left))
        self.left.remove(item)
        item = replace(item, gone=False)
        self.queue.push(item)
        self.model.append(item)

    @rule(times=st.integers(1, 3))
    def pop(self, times):
        for _ in range(times):
            first = min(self.model, key=lambda e: naive_key(self.order, e, self.now), default=None)
            assert self.queue.pop(self.now) is first
            self.gone([first] if first else [])

    @rule(data=st.data())
    @precondition(lambda self: self.model)
    def remove(self, data):
        item = data.draw(st.sampled_from(self.model))
        assert self.queue.remove(item.call_id) is item
        assert self.queue.remove(item.call_id) is None
        self.gone([item])

    @rule()
    def expire(self):
        passed = [e for e in self.model if e.hard and e.deadline_s <= self.now]
        passed.sort(key=lambda e: (e.deadline_s, e.arrival))
        assert self.queue.expired(self.now) == passed
        self.gone(passed)

    @rule(by=st.integers(0, 4))
    def wait(self, by):
        self.now += by

    @rule()
    def compact(self):
        self.queue._compact()

    def gone(self, items):
        self.left += items
        self.model = [e for e in self.model if e not in items]

    @invariant()
    def same(self):
        assert len(self.queue) == len(self.model)
        assert {e.call_id for e in self.queue} == {e.call_id for e in self.model}
        assert self.queue.work_s == sum(e.service_s for e in self.model)
        assert self.queue.oldest() is min(self.model, key=lambda e: e.arrival, default=None)
        hard = [e.deadline_s for e in self.model if e.hard]
        assert self.queue.next_expiry_s() == min(hard, default=None)


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
