"""The window of an API model: its arithmetic, the queue behind it, refusals, a new scheduler."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.dispatch import DispatchState
from runtime.events import (
    Acquire,
    Cancel,
    Drop,
    Grant,
    Held,
    LeaseId,
    Limited,
    Mail,
    Refuse,
    Register,
    Release,
    Sent,
    Tick,
)
from runtime.leasing import LeaseStock
from runtime.ratelimit import FIRST_PAUSE_S, MAX_PAUSE_S, RECOVERY_S, WINDOW_S, RateWindow

TIMES = st.lists(st.floats(0, 300, allow_nan=False), min_size=1, max_size=60).map(sorted)


def scheduler(rpm, *, slots=100, order="edf", epoch=1, now=0.0, recovering=False, backlog=1000):
    return DispatchState(
        "m", epoch=epoch, slots=slots, order=order, max_backlog=backlog, now=now,
        recovering=recovering, window=RateWindow(rpm),
    )  # fmt: skip


def ask(call_id, remaining_s=600.0, **more):
    return Acquire(call_id, "h", remaining_s, **more)


def granted(commands):
    return [c.call_id for c in commands if isinstance(c, Grant)]


def drain(state, now, until_s=math.inf):
    """Look when the scheduler wants to be woken; returns (time, call) of each grant."""
    out = []
    while (wake := state.next_wakeup(now)) is not None and wake <= until_s:
        now = wake
        out += [(now, call) for call in granted(state.handle(Tick(), now))]
    return out


# --- the window itself -------------------------------------------------------------------------


@settings(deadline=None)
@given(TIMES, st.integers(1, 10))
def test_no_window_of_a_minute_ever_has_more_than_the_limit(times, rpm):
    window, sent = RateWindow(rpm), []
    for now in times:
        if window.open(now):
            window.send(now)
            sent.append(now)
    for begin in sent:
        assert sum(begin <= at < begin + WINDOW_S for at in sent) <= rpm


@settings(deadline=None)
@given(TIMES, st.integers(1, 10), st.integers(0, 25))
def test_it_predicts_to_the_very_time_when_each_request_may_go(times, rpm, ahead):
    window = RateWindow(rpm)
    for now in times:
        if window.open(now):
            window.send(now)
    now = times[-1]
    predicted = window.next_s(ahead, now)
    for _ in range(ahead):
        now = window.next_s(0, now)
        assert window.open(now)
        window.send(now)
    assert window.next_s(0, now) == predicted


@settings(deadline=None)
@given(TIMES, st.integers(1, 10))
def test_a_request_may_go_exactly_when_it_says_and_not_before(times, rpm):
    window = RateWindow(rpm)
    for now in times:
        next_s = window.next_s(0, now)
        assert window.open(now) == (next_s == now)
        if next_s > now:
            assert not window.open(math.nextafter(next_s, 0.0))
        if window.open(now):
            window.send(now)


def test_a_place_is_free_again_a_minute_after_it_was_taken():
    window = RateWindow(2)
    window.send(0.0)
    window.send(10.0)
    assert not window.open(59.999)
    assert window.open(60.0)
    window.send(60.0)
    assert (window.recent(60.0), window.next_s(0, 60.0)) == (2, 70.0)


def test_a_limit_below_one_is_refused():
    with pytest.raises(ValueError, match="rpm"):
        RateWindow(0)


def test_congestion_counts_what_is_held_and_passes_one():
    window = RateWindow(10)
    for _ in range(9):
        window.send(0.0)
    assert window.report(0, 1.0).congestion == pytest.approx(0.9)
    window.send(1.0)
    report = window.report(5, 1.0)
    assert report.congestion == pytest.approx(1.5)
    assert report.hold_s == pytest.approx(59.0)
    assert window.report(0, 61.0).congestion == 0.0


def test_later_counts_what_it_did_not_know_of():
    window = RateWindow(4)
    for _ in range(4):
        window.send(0.0)
    report = window.report(0, 10.0)
    later = report.later(2, 5.0)
    assert later.hold_s == pytest.approx(45.0 + 2 * 15.0)
    assert later.congestion == pytest.approx(1.5)
    assert report.later(0, 100.0).hold_s == 0.0
    assert RateWindow(4).report(0, 0.0).later(2, 0.0).hold_s == 0.0


# --- the provider's own word -------------------------------------------------------------------


def test_nothing_goes_out_for_as_long_as_the_provider_asks():
    window = RateWindow(10)
    window.send(0.0)
    window.refuse(30.0, 0.5)
    assert not window.open(30.4)
    assert window.open(30.5)
    assert window.report(0, 0.5).closed_s == pytest.approx(30.0)
    assert window.report(0, 0.5).congestion > 0.5
    window.refuse(1.0, 0.6)
    assert not window.open(30.4)  # the longer one counts


def test_the_limit_falls_to_what_was_let_through_and_comes_back():
    window = RateWindow(20)
    for i in range(6):
        window.send(float(i))
    window.refuse(None, 6.0)
    assert window.limit(6.0) == 6  # the five that passed, and the refused one
    assert not window.open(7.0)
    half = window.limit(7.0 + RECOVERY_S / 2)
    assert 6 < half < 20
    assert window.limit(7.0 + RECOVERY_S) == 20


def test_who_says_when_has_room_for_one_then():
    window = RateWindow(20)
    for i in range(6):
        window.send(float(i))
    window.refuse(2.0, 6.0)
    assert window.open(8.0)
    window.send(8.0)
    assert not window.open(8.0)


def test_a_limit_that_was_learned_never_falls_below_one():
    window = RateWindow(5)
    for at_s in range(3):
        window.send(float(at_s))
        window.refuse(None, float(at_s))
    assert window.limit(2.0) == 4  # three that were refused, and one more
    assert window.limit(62.5) < 4


def test_without_a_time_pauses_double_and_a_burst_of_refusals_is_one():
    window, now, pauses = RateWindow(100), 0.0, []
    for _ in range(10):
        window.send(now)
        window.refuse(None, now)
        window.refuse(None, now)
        opens_s = now + window.report(0, now).closed_s
        pauses.append(opens_s - now)
        now = opens_s
    assert pauses[:4] == pytest.approx([FIRST_PAUSE_S * 2**i for i in range(4)])
    assert max(pauses) == pytest.approx(MAX_PAUSE_S)
    now += 2 * WINDOW_S
    window.refuse(None, now)
    assert window.report(0, now).closed_s == pytest.approx(FIRST_PAUSE_S)


# --- the queue behind it -----------------------------------------------------------------------


def test_held_calls_go_out_in_the_order_of_their_deadlines():
    state = scheduler(2)
    assert granted(state.handle(ask("first"), 0.0)) == ["first"]
    assert granted(state.handle(ask("second"), 1.0)) == ["second"]
    for call_id, budget_s in (("late", 300.0), ("soon", 100.0), ("middle", 200.0)):
        assert state.handle(ask(call_id, budget_s), 2.0) == []
    assert drain(state, 2.0, until_s=100) == [(60.0, "soon"), (61.0, "middle")]
    assert drain(state, 100.0, until_s=130) == [(120.0, "late")]


@pytest.mark.parametrize(("order", "first"), [("edf", "urgent"), ("fcfs", "loose")])
def test_the_order_of_the_config_holds_behind_the_window(order, first):
    state = scheduler(1, order=order)
    state.handle(ask("running"), 0.0)
    state.handle(ask("loose", 500.0), 1.0)
    state.handle(ask("urgent", 100.0), 2.0)
    assert drain(state, 2.0, until_s=60)[0] == (60.0, first)


def test_slots_bind_as_well_as_the_window():
    state = scheduler(10, slots=1)
    state.handle(ask("a"), 0.0)
    assert state.handle(ask("b"), 1.0) == []
    assert state.next_wakeup(1.0) == 601.0  # its hard deadline: no window holds it
    lease = LeaseId(1, 0)
    assert granted(state.handle(Release(lease), 2.0)) == ["b"]


def test_a_held_call_is_dropped_at_its_hard_deadline_and_takes_no_place():
    state = scheduler(1)
    state.handle(ask("a"), 0.0)
    state.handle(ask("short", 5.0), 1.0)
    state.handle(ask("long", 300.0), 1.0)
    (drop,) = state.handle(Tick(), 6.0)
    assert isinstance(drop, Drop)
    assert drain(state, 6.0, until_s=60) == [(60.0, "long")]


def test_a_full_backlog_says_when_the_window_has_room():
    state = scheduler(1, backlog=2)
    for call_id in ("a", "b", "c"):
        state.handle(ask(call_id), 0.0)
    refuse = state.handle(ask("d"), 10.0)[-1]
    assert isinstance(refuse, Refuse)
    assert refuse.retry_after_s == pytest.approx(170.0)  # behind b and c: at 180 s


def test_asking_twice_takes_one_place():
    state = scheduler(2)
    for _ in range(3):
        assert granted(state.handle(ask("a"), 0.0)) in (["a"], [])
    assert granted(state.handle(ask("b"), 0.0)) == ["b"]


def test_a_refusal_of_the_provider_holds_the_queue():
    state = scheduler(10)
    state.handle(ask("a"), 0.0)
    state.handle(Limited(20.0), 1.0)
    assert state.handle(ask("b"), 2.0) == []
    assert state.counters["limited"] == 1
    assert state.report(2.0).rate.closed_s == pytest.approx(19.0)
    granted_at = [at for at, _ in drain(state, 2.0, until_s=70)]
    assert 21.0 <= granted_at[0] <= 61.0


def test_the_report_has_the_window_and_is_steady_only_when_it_is_empty():
    state = scheduler(4)
    state.handle(ask("a"), 0.0)
    report = state.report(1.0)
    assert (report.rate.recent, report.rate.limit, report.rate.held) == (1, 4, 0)
    state.handle(Release(LeaseId(1, 0)), 2.0)
    assert state.idle
    assert not state.steady(2.0)
    assert state.steady(60.0)


KINDS = ["ask", "release", "cancel", "tick", "limited"]
ACTIONS = st.lists(st.tuples(st.sampled_from(KINDS), st.floats(0.0, 20.0)), min_size=1, max_size=80)


@settings(deadline=None)
@given(ACTIONS, st.integers(1, 5), st.integers(1, 3))
def test_grants_never_exceed_the_limit_in_any_minute(actions, rpm, slots):
    state, now, calls = scheduler(rpm, slots=slots), 0.0, 0
    leases, grants = {}, []
    for action, gap_s in actions:
        now += gap_s
        if action == "ask":
            calls += 1
            event = ask(f"c{calls}", 10.0 + 37.0 * calls % 200)
        elif action == "release" and leases:
            event = Release(leases.pop(sorted(leases)[0]))
        elif action == "cancel":
            event = Cancel(f"c{calls}")
            leases.pop(f"c{calls}", None)
        elif action == "limited":
            event = Limited(gap_s if calls % 2 else None)
        else:
            event = Tick()
        for command in state.handle(event, now):
            if isinstance(command, Grant):
                grants.append(now)
                leases[command.call_id] = command.lease
        state.check_invariants()
        assert state.report(now).leased <= slots
    for begin in grants:
        assert sum(begin <= at < begin + WINDOW_S for at in grants) <= rpm


# --- holders, and a new scheduler --------------------------------------------------------------


def test_no_lease_of_an_api_model_is_kept_for_the_next_call():
    stock = LeaseStock("h", metered=True)
    stock.start(ask("a"), 0.0)
    state = scheduler(5)
    mail = Mail(1, 1, tuple(state.handle(ask("a"), 0.0)), state.contended)
    stock.receive(mail, 0.1)
    stock.outbox.clear()
    stock.end("a", 1.0)
    assert stock.outbox == [Release(LeaseId(1, 0))]
    assert not stock.start(ask("b"), 1.1)


def test_a_new_scheduler_learns_what_was_sent_and_counts_it_once():
    old, new = scheduler(3), scheduler(3, epoch=2, now=20.0, recovering=True)
    stock = LeaseStock("h", metered=True)
    for call_id, at_s in (("a", 0.0), ("b", 10.0)):
        stock.start(ask(call_id), at_s)
        stock.receive(Mail(1, 1, tuple(old.handle(ask(call_id), at_s)), True), at_s)
    stock.end("a", 15.0)
    for _ in range(2):  # told twice, as after a lost message
        stock.start_over(20.0)
        for event in stock.outbox:
            new.handle(event, 20.0)
    new.handle(Tick(), 21.0)
    assert new.report(21.0).rate.recent == 2
    assert granted(new.handle(ask("c"), 22.0)) == ["c"]
    assert new.handle(ask("d"), 22.0) == []
    assert new.next_wakeup(22.0) == pytest.approx(60.0)


def test_its_own_grants_are_not_counted_again():
    state = scheduler(3)
    state.handle(ask("a"), 0.0)
    lease = LeaseId(1, 0)
    state.handle(Register("h", (Held("a", lease),), (Sent(lease, 1.0),)), 1.0)
    assert state.report(1.0).rate.recent == 1


def test_what_a_holder_sent_is_forgotten_after_a_minute():
    stock, state = LeaseStock("h", metered=True), scheduler(3)
    stock.start(ask("a"), 0.0)
    stock.receive(Mail(1, 1, tuple(state.handle(ask("a"), 0.0)), True), 0.0)
    stock.start_over(59.0)
    assert [sent.age_s for sent in stock.outbox[1].sent] == [59.0]
    stock.start_over(61.0)
    assert stock.outbox[1].sent == ()
