"""DispatchState: leases, waiting, refusal, lost holders, recovery; and the cases it answers for."""

import math
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from runtime.dispatch import MAX_RETRY_S, MIN_RETRY_S, DispatchState
from runtime.events import (
    Acquire,
    Cancel,
    CapacityChanged,
    Drop,
    EngineCalls,
    Grant,
    Held,
    HolderLost,
    LeaseId,
    Lost,
    Refuse,
    Register,
    Release,
    Tick,
)

ALL_ORDERS = ("edf", "edf_plain", "fcfs")


def make(slots=1, order="edf", *, max_backlog=100, now=0.0, recovering=False, epoch=1):
    return DispatchState(
        "m",
        epoch=epoch,
        slots=slots,
        order=order,
        max_backlog=max_backlog,
        now=now,
        recovering=recovering,
    )


def ask(call_id, remaining_s=60.0, *, holder="h", service_s=0.0, path_s=0.0, hard=True):
    return Acquire(call_id, holder, remaining_s, service_s, path_s, hard)


def registered(*calls, holder="h"):
    return Register(holder, tuple(Held(call) for call in calls))


def play(state, script):
    """Handle ``(now, event)`` pairs; return all commands."""
    commands = []
    for now, event in script:
        commands += state.handle(event, now)
        state.check_invariants()
    return commands


def ids(commands, kind=Grant):
    return [c.call_id for c in commands if isinstance(c, kind)]


def lease_of(state, call_id, now=0.0):
    """The lease of a call that has one, as its holder learns it by asking again."""
    grant, *_ = state.handle(ask(call_id), now)
    return grant.lease


def serve_all(state, running, now, service_s=0.0):
    """Release call after call; the order in which the waiting ones are granted."""
    order = []
    while running is not None:
        now += service_s
        granted = ids(state.handle(Release(lease_of(state, running, now)), now))
        running = granted[0] if granted else None
        order += granted
    return order


def nothing_left(state, now=0.0):
    report = state.report(now)
    figures = (report.backlog, report.leased, report.oldest_s, report.backlog_work_s)
    return figures == (0, 0, 0.0, 0.0) and not state.orphans and state.next_wakeup(now) is None


# --- the cases -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "expected"),
    [("edf", ["5", "30", "60"]), ("edf_plain", ["5", "30", "60"]), ("fcfs", ["60", "5", "30"])],
)
def test_case_1_budgets_decide_the_order_and_fcfs_differs(order, expected):
    state = make(order=order)
    play(state, [(0.0, ask("busy", 600)), *((0.0, ask(b, float(b))) for b in ("60", "5", "30"))])
    assert serve_all(state, "busy", 0.0) == expected


@pytest.mark.parametrize("field", ["remaining_s", "service_s", "path_s"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_case_2_numbers_that_are_none_are_refused_and_nothing_changes(field, bad):
    state = make()
    with pytest.raises(ValueError, match=r"'x'.*" + field):
        state.handle(replace(ask("x"), **{field: bad}), 0.0)
    assert nothing_left(state)


@pytest.mark.parametrize("remaining_s", [0.0, -1.0, -1e9])
@pytest.mark.parametrize("slots", [0, 1])
def test_case_3_no_budget_left_is_dropped_before_any_grant(slots, remaining_s):
    state = make(slots)
    assert state.handle(ask("x", remaining_s), 0.0) == [Drop("x", "h", 0.0)]
    assert (state.counters["dropped"], state.counters["granted"]) == (1, 0)
    assert nothing_left(state)


@pytest.mark.parametrize("order", ALL_ORDERS)
def test_case_3_a_deadline_that_passes_while_waiting_is_dropped_not_run(order):
    state = make(order=order)
    play(state, [(0.0, ask("busy", 600)), (1.0, ask("x", 5)), (1.0, ask("soft", 5, hard=False))])
    assert state.next_wakeup(1.0) == 6.0
    assert state.handle(Tick(), 5.9) == []
    assert state.handle(Tick(), 6.0) == [Drop("x", "h", 5.0)]
    assert (state.counters["dropped"], state.counters["cancelled"]) == (1, 0)
    assert serve_all(state, "busy", 7.0) == ["soft"]


@pytest.mark.parametrize("order", ALL_ORDERS)
def test_case_3_without_a_tick_the_release_drops_it(order):
    state = make(order=order)
    play(state, [(0.0, ask("busy", 600)), (0.0, ask("x", 5)), (0.0, ask("y", 50))])
    commands = state.handle(Release(lease_of(state, "busy")), 5.0)
    assert (ids(commands, Drop), ids(commands)) == (["x"], ["y"])


def test_case_3_a_leased_call_without_budget_gives_its_lease_back():
    state = make()
    play(state, [(0.0, ask("a", 5)), (0.0, ask("b", 50))])
    commands = state.handle(ask("a", -0.1), 5.1)
    assert (ids(commands, Drop), ids(commands)) == (["a"], ["b"])


def test_case_4_the_engine_gets_no_more_than_its_slots_and_the_urgent_wait_in_our_queue():
    state = make(slots=2)
    commands = play(
        state, [(0.0, ask("a")), (0.0, ask("b")), (0.0, ask("c", 9)), (0.0, ask("d", 1))]
    )
    assert ids(commands) == ["a", "b"]
    assert (state.report(0.0).leased, state.report(0.0).backlog) == (2, 2)
    assert ids(state.handle(Release(lease_of(state, "a")), 0.5)) == ["d"]


@pytest.mark.parametrize(("order", "expected"), [("edf", ["a", "b"]), ("fcfs", ["a", "b"])])
def test_case_5_asking_again_keeps_the_place_and_the_deadline(order, expected):
    state = make(order=order)
    play(state, [(0.0, ask("busy", 600)), (0.0, ask("a", 20)), (0.0, ask("b", 20))])
    assert state.handle(ask("a", 19.0), 5.0) == []  # would be due at 24, behind b
    assert state.report(5.0).backlog == 2
    assert serve_all(state, "busy", 6.0) == expected


def kept_deadlines(order):
    """One slot at twice its capacity: how many of 40 calls of 1 s end in their 4 s."""
    state = make(order=order)
    due, free_at_s, kept, running = {}, math.inf, 0, None
    for tick in range(400):
        now = tick * 0.25
        granted = []
        if now == free_at_s:
            kept += now <= due[running]
            granted = state.handle(Release(lease_of(state, running, now)), now)
            free_at_s = math.inf
        if tick % 2 == 0 and len(due) < 40:
            call_id = f"c{len(due)}"
            due[call_id] = now + 4.0
            granted += state.handle(ask(call_id, 4.0, service_s=1.0, hard=False), now)
        if granted:
            running, free_at_s = granted[0].call_id, now + 1.0
        state.check_invariants()
    assert nothing_left(state)
    return kept


def test_case_6_the_late_yield_and_plain_edf_falls_like_dominoes():
    kept = {order: kept_deadlines(order) for order in ALL_ORDERS}
    assert kept["edf"] >= 20
    assert kept["edf_plain"] <= 10
    assert kept["edf"] > 2 * kept["edf_plain"]


def test_case_6_the_age_of_the_oldest_is_reported():
    state = make()
    play(state, [(0.0, ask("busy", 600)), (2.0, ask("loose", 500)), (3.0, ask("tight", 9))])
    assert state.report(7.5).oldest_s == 5.5


@pytest.mark.parametrize("shift_s", [-3600.0, 3600.0])
def test_case_8_only_differences_of_now_matter(shift_s):
    script = [
        (0.0, ask("busy", 600)),
        (0.25, ask("late", 4, service_s=9)),
        (0.5, ask("soft", 1, hard=False)),
        (1.0, ask("a", 30, service_s=2)),
        (1.5, ask("b", 20, service_s=2)),
        (4.25, Tick()),
        (5.0, CapacityChanged(2)),
        (6.5, CapacityChanged(4)),
        (7.0, Cancel("a")),
    ]

    def run(shift):
        state = make(now=shift, recovering=True)
        commands = play(state, [(now + shift, event) for now, event in script])
        return commands, state.report(9.0 + shift), state.counters

    assert run(shift_s) == run(0.0)
    assert all(command.waited_s >= 0 for command in run(shift_s)[0])


def test_case_15_cancel_leaves_nothing():
    state = make(slots=2)
    calls = [f"c{i}" for i in range(6)]
    play(state, [(0.0, ask(call, service_s=0.1)) for call in calls])
    play(state, [(1.0, Cancel(call)) for call in [*calls, *calls, "unknown"]])
    assert state.counters["cancelled"] == len(calls)
    assert nothing_left(state, 1.0)


def test_case_16_no_timer_ends_a_lease():
    state = make()
    play(state, [(0.0, ask("long", 30)), (0.0, ask("next", 7200))])
    assert play(state, [(now, Tick()) for now in (60.0, 600.0, 3600.0)]) == []
    assert state.report(3600.0).leased == 1
    assert serve_all(state, "long", 3601.0) == ["next"]


def test_case_21_the_backlog_is_bounded_and_refusal_says_when():
    state = make(slots=2, max_backlog=3)
    script = [(0.0, ask(f"c{i}", 600, service_s=10)) for i in range(6)]
    *_, refused = play(state, script)
    assert refused == Refuse("c5", "h", retry_after_s=15.0)
    assert state.report(0.0).backlog == 3
    state.handle(Release(lease_of(state, "c0")), 1.0)
    assert state.handle(script[5][1], 1.0) == []  # judged anew: there is room now


@pytest.mark.parametrize(
    ("slots", "service_s", "retry_s"),
    [(1, 0.0, MIN_RETRY_S), (0, 0.0, MIN_RETRY_S), (0, 7.0, 7.0), (1, 1e300, MAX_RETRY_S)],
)
def test_case_21_the_retry_time_is_positive_and_finite(slots, service_s, retry_s):
    state = make(slots=slots, max_backlog=1)
    play(state, [(0.0, ask(call, service_s=service_s)) for call in "abc"[: slots + 1]])
    assert state.handle(ask("x"), 0.0) == [Refuse("x", "h", retry_s)]


def test_case_21_the_retry_time_includes_what_is_left_of_recovery():
    state = make(slots=2, max_backlog=1, recovering=True)
    state.handle(ask("a", service_s=10), 0.0)
    assert state.handle(ask("x"), 0.5) == [Refuse("x", "h", 5.5)]


@pytest.mark.parametrize("max_backlog", [0, 1])
def test_case_21_a_call_that_can_start_is_never_refused(max_backlog):
    state = make(slots=2, max_backlog=max_backlog)
    assert ids(play(state, [(0.0, ask("a")), (0.0, ask("b"))])) == ["a", "b"]
    # A full backlog at the moment that recovery ends: the most urgent starts at once.
    state = make(slots=1, max_backlog=1, recovering=True)
    commands = play(state, [(0.0, ask("loose", 60)), (1.0, ask("urgent", 5))])
    assert ids(commands)[-1] == "urgent"


def test_case_21_waiting_calls_that_expired_take_no_room():
    state = make(max_backlog=1)
    play(state, [(0.0, ask("busy", 600)), (0.0, ask("old", 5))])
    assert state.handle(ask("new", 50), 6.0) == [Drop("old", "h", 6.0)]


# --- leases --------------------------------------------------------------------------------------


def test_asking_again_gives_the_same_grant():
    state = make(slots=2)
    (first,) = state.handle(ask("a"), 0.0)
    assert state.handle(ask("a", 59), 1.0) == [first]
    assert state.report(1.0).leased == 1
    assert state.counters["granted"] == 1


def test_a_lease_is_given_back_once():
    state = make()
    play(state, [(0.0, ask("a")), (0.0, ask("b")), (0.0, ask("c"))])
    lease = lease_of(state, "a")
    assert ids(play(state, [(1.0, Release(lease)), (1.0, Release(lease))])) == ["b"]
    assert state.counters["unknown_release"] == 1


@pytest.mark.parametrize(
    ("lease", "counter"),
    [(LeaseId(1, 99), "unknown_release"), (LeaseId(0, 0), "stale_release")],
)
def test_a_lease_that_is_not_ours_is_ignored(lease, counter):
    state = make()
    state.handle(ask("a"), 0.0)
    assert state.handle(Release(lease), 1.0) == []
    assert state.report(1.0).leased == 1
    assert state.counters[counter] == 1


def test_a_release_after_a_cancel_frees_no_other_call():
    state = make()
    play(state, [(0.0, ask("a")), (0.0, ask("b"))])
    lease = lease_of(state, "a")
    assert ids(play(state, [(1.0, Cancel("a")), (1.0, Release(lease))])) == ["b"]
    assert state.report(1.0).leased == 1


def test_capacity_grows_at_once_and_a_shrink_revokes_nothing():
    state = make(slots=1)
    play(state, [(0.0, ask(call)) for call in "abcd"])
    assert ids(state.handle(CapacityChanged(3), 1.0)) == ["b", "c"]
    assert state.handle(CapacityChanged(1), 2.0) == []
    assert state.report(2.0).leased == 3
    leases = [lease_of(state, call, 2.0) for call in "abc"]
    assert ids(play(state, [(3.0, Release(lease)) for lease in leases])) == ["d"]


# --- holders -------------------------------------------------------------------------------------


def test_a_lost_holder_leaves_orphans_until_its_engine_calls_end():
    state = make(slots=2)
    play(state, [(0.0, ask(call, holder="gone")) for call in "abx"])
    play(state, [(0.0, ask("y", holder="here"))])
    lost = play(state, [(1.0, HolderLost("gone")), (1.0, HolderLost("gone"))])
    assert lost == [Lost("x", "gone")]
    assert state.orphans == {"a", "b"}
    assert (state.report(1.0).backlog, state.report(1.0).leased) == (1, 2)
    assert state.counters["orphaned"] == 2
    assert state.handle(EngineCalls(frozenset({"a", "b"})), 2.0) == []
    assert ids(state.handle(EngineCalls(frozenset({"a"})), 3.0)) == ["y"]
    play(state, [(4.0, EngineCalls(frozenset())), (4.0, Cancel("y"))])
    assert nothing_left(state, 4.0)


def test_engine_calls_never_free_the_lease_of_a_holder_that_lives():
    state = make()
    play(state, [(0.0, ask("a")), (1.0, EngineCalls(frozenset()))])
    assert state.report(1.0).leased == 1


@pytest.mark.parametrize("back", [ask("a", holder="h"), registered("a")])
def test_a_holder_that_comes_back_keeps_the_calls_it_names(back):
    state = make(slots=2)
    play(state, [(0.0, ask("a")), (0.0, ask("b")), (1.0, HolderLost("h"))])
    lease = LeaseId(1, 0)
    assert state.handle(back, 2.0) == [Grant("a", "h", lease, 0.0)]
    assert state.orphans == {"b"}
    play(state, [(3.0, EngineCalls(frozenset()))])
    assert state.report(3.0).leased == 1


def test_a_call_follows_the_holder_that_asks_for_it():
    state = make()
    play(state, [(0.0, ask("a", holder="old")), (0.0, ask("b", holder="old"))])
    (grant,) = state.handle(ask("a", holder="new"), 1.0)
    assert grant.holder == "new"
    play(state, [(1.0, ask("b", holder="new")), (2.0, HolderLost("old"))])
    assert not state.orphans
    (grant,) = state.handle(Release(grant.lease), 3.0)
    assert (grant.call_id, grant.holder) == ("b", "new")


def test_recovery_grants_nothing_until_it_ends():
    state = make(slots=2, recovering=True, epoch=7, now=10.0)
    assert play(state, [(10.0, ask("a")), (10.5, Tick())]) == []
    assert state.next_wakeup(10.5) == 11.0
    assert state.handle(Tick(), 11.0) == [Grant("a", "h", LeaseId(7, 0), 1.0)]
    assert state.next_wakeup(11.0) is None


def test_recovery_drops_what_expires_meanwhile():
    state = make(recovering=True)
    play(state, [(0.0, ask("a", 0.5))])
    assert state.next_wakeup(0.0) == 0.5
    assert state.handle(Tick(), 0.5) == [Drop("a", "h", 0.5)]


def test_an_event_at_fault_does_not_swallow_the_end_of_recovery():
    state = make(recovering=True)
    state.handle(ask("a"), 0.0)
    with pytest.raises(ValueError, match="negative"):
        state.handle(CapacityChanged(-1), 2.0)
    assert ids(state.handle(Tick(), 2.0)) == ["a"]


def test_register_recreates_leases_once_even_beyond_the_slots():
    state = make(slots=1, recovering=True, epoch=2)
    commands = play(state, [(0.1, registered("a", "b", "a")), (0.2, registered("a"))])
    assert [(c.call_id, c.lease.number) for c in commands] == [
        ("a", 0),
        ("b", 1),
        ("a", 0),
        ("a", 0),
    ]
    assert state.counters["registered"] == 2
    play(state, [(0.3, ask("c")), (1.0, Tick()), (2.0, Release(LeaseId(1, 0)))])
    assert (state.report(2.0).leased, state.report(2.0).backlog) == (2, 1)
    assert state.handle(Release(LeaseId(2, 0)), 3.0) == []
    assert ids(state.handle(Release(LeaseId(2, 1)), 3.0)) == ["c"]


def test_register_of_a_waiting_call_takes_it_out_of_the_queue():
    state = make(recovering=True)
    play(state, [(0.0, ask("a", service_s=3))])
    assert state.handle(registered("a"), 0.5) == [Grant("a", "h", LeaseId(1, 0), 0.5)]
    assert (state.report(0.5).backlog, state.report(0.5).backlog_work_s) == (0, 0.0)


@pytest.mark.parametrize(
    "bad", [{"slots": -1}, {"max_backlog": -1}, {"recovery_s": math.nan}, {"order": "lifo"}]
)
def test_bad_arguments(bad):
    good = {"epoch": 1, "slots": 1, "max_backlog": 1, "now": 0.0, "recovering": False}
    with pytest.raises(ValueError, match=r"must be finite|unknown order"):
        DispatchState("m", **{**good, **bad})


# --- against a naive model -----------------------------------------------------------------------

CALLS = st.sampled_from([f"c{i}" for i in range(8)])
HOLDERS = st.sampled_from(["h0", "h1"])
RECOVERY_S = 1.0
MAX_BACKLOG = 3


class DispatchMachine(RuleBasedStateMachine):
    """Lists searched from end to end, by the rules as they are written down."""

    @initialize(
        order=st.sampled_from(ALL_ORDERS), slots=st.integers(0, 3), recovering=st.booleans()
    )
    def start(self, order, slots, recovering):
        self.order, self.slots, self.now, self.arrival = order, slots, 0.0, 0
        self.ends_s = RECOVERY_S if recovering else 0.0
        self.state = make(slots, order, max_backlog=MAX_BACKLOG, recovering=recovering)
        self.waiting: dict[str, dict] = {}
        self.leased: dict[str, str] = {}
        self.lease_ids: dict[str, LeaseId] = {}
        self.orphans: set[str] = set()

    def give(self, event, expected=(), asked=None):
        """Handle ``event``; after ``expected`` come the drops and grants that follow."""
        expected = [*expected, *self.expected_drops(), *self.expected_grants()]
        if asked in self.waiting and len(self.waiting) > MAX_BACKLOG:
            del self.waiting[asked]
            expected.append((Refuse, asked))
        commands = self.state.handle(event, self.now)
        assert [(type(c), c.call_id) for c in commands] == expected
        for command in commands:
            if isinstance(command, Grant):
                assert self.lease_ids.setdefault(command.call_id, command.lease) == command.lease
                assert command.holder == self.leased[command.call_id]
                assert command.waited_s >= 0
            elif isinstance(command, Refuse):
                assert MIN_RETRY_S <= command.retry_after_s <= MAX_RETRY_S

    def expected_drops(self):
        passed = [c for c, w in self.waiting.items() if w["hard"] and w["due"] <= self.now]
        passed.sort(key=lambda c: (self.waiting[c]["due"], self.waiting[c]["arrival"]))
        for call in passed:
            del self.waiting[call]
        return [(Drop, call) for call in passed]

    def expected_grants(self):
        grants = []
        while self.now >= self.ends_s and self.waiting and len(self.leased) < self.slots:
            call = min(self.waiting, key=self.key)
            self.leased[call] = self.waiting.pop(call)["holder"]
            grants.append((Grant, call))
        return grants

    def key(self, call):
        w = self.waiting[call]
        if self.order == "fcfs":
            return (w["arrival"],)
        if self.order == "edf" and self.now + w["work"] > w["due"]:
            return (1, w["arrival"])
        return (0, w["due"], w["arrival"])

    def forget(self, call):
        self.waiting.pop(call, None)
        self.leased.pop(call, None)
        self.lease_ids.pop(call, None)
        self.orphans.discard(call)

    @rule(
        call=CALLS,
        holder=HOLDERS,
        budget=st.integers(-1, 12),
        service=st.integers(0, 4),
        path=st.integers(0, 3),
        hard=st.booleans(),
    )
    def acquire(self, call, holder, budget, service, path, hard):
        expected = []
        if hard and budget <= 0:
            self.forget(call)
            expected = [(Drop, call)]
        elif call in self.leased:
            self.leased[call] = holder
            self.orphans.discard(call)
            expected = [(Grant, call)]
        elif call in self.waiting:
            self.waiting[call]["holder"] = holder
        else:
            self.arrival += 1
            self.waiting[call] = {
                "holder": holder,
                "due": self.now + budget,
                "work": service + path,
                "arrival": self.arrival,
                "hard": hard,
            }
        self.give(Acquire(call, holder, budget, service, path, hard), expected, asked=call)

    @rule(call=CALLS, epoch=st.sampled_from([0, 1, 1, 1]))
    def release(self, call, epoch):
        lease = self.lease_ids.get(call, LeaseId(1, 10**6))
        if epoch == 1 and call in self.leased:
            self.forget(call)
        self.give(Release(replace(lease, epoch=epoch)))

    @rule(call=CALLS)
    def cancel(self, call):
        self.forget(call)
        self.give(Cancel(call))

    @rule(holder=HOLDERS, calls=st.lists(CALLS, max_size=3))
    def register(self, holder, calls):
        for call in calls:
            self.waiting.pop(call, None)
            self.leased[call] = holder
            self.orphans.discard(call)
        held = tuple(Held(call) for call in calls)
        self.give(Register(holder, held), [(Grant, call) for call in calls])

    @rule(holder=HOLDERS)
    def lose(self, holder):
        lost = [(Lost, c) for c, w in self.waiting.items() if w["holder"] == holder]
        self.waiting = {c: w for c, w in self.waiting.items() if w["holder"] != holder}
        self.orphans |= {c for c, h in self.leased.items() if h == holder}
        self.give(HolderLost(holder), lost)

    @rule(calls=st.frozensets(CALLS, max_size=4))
    def engine_calls(self, calls):
        for call in self.orphans - calls:
            self.forget(call)
        self.give(EngineCalls(calls))

    @rule(slots=st.integers(0, 4))
    def resize(self, slots):
        self.slots = slots
        self.give(CapacityChanged(slots))

    @rule(by=st.sampled_from([0.0, 0.5, 1.0, 4.0]))
    def tick(self, by):
        self.now += by
        self.give(Tick())

    @invariant()
    def same(self):
        self.state.check_invariants()
        report = self.state.report(self.now)
        assert report.backlog == len(self.waiting)
        assert report.leased == len(self.leased)
        assert self.state.orphans == self.orphans

    def teardown(self):
        for call in [*self.waiting, *self.leased]:
            self.state.handle(Cancel(call), self.now)
        while report := self.state.report(self.now):  # what was granted meanwhile
            if not report.backlog + report.leased:
                break
            for i in range(8):
                self.state.handle(Cancel(f"c{i}"), self.now)
        self.state.handle(Tick(), self.now + RECOVERY_S)
        assert nothing_left(self.state, self.now)


TestDispatchMachine = DispatchMachine.TestCase
TestDispatchMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
