"""LeaseStock against the real DispatchState, with messages that are late, lost or doubled."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.dispatch import DispatchState
from runtime.events import Acquire, Cancel, Grant, HolderLost, LeaseId, Mail, Register, Release
from runtime.leasing import KEEP_IDLE_S, LeaseStock


def ask(call_id, holder="h", remaining_s=60.0):
    return Acquire(call_id, holder, remaining_s)


def granted(call_id, number=0, box=1, contended=False):
    return Mail(box, 1, (Grant(call_id, "h", LeaseId(1, number), 0.0),), contended)


def sent(stock):
    events, stock.outbox = stock.outbox, []
    return events


@pytest.fixture
def stock():
    """One that ran a call and kept its lease."""
    stock = LeaseStock("h")
    assert not stock.start(ask("a"), 0.0)
    assert [v.call_id for v in stock.receive(granted("a"), 0.1)] == ["a"]
    stock.end("a", 1.0)
    assert sent(stock) == [ask("a")]
    return stock


def test_a_kept_lease_starts_the_next_call_without_a_message(stock):
    assert stock.start(ask("b"), 1.1)
    assert (sent(stock), stock.num_running, stock.num_idle) == ([], 1, 0)
    assert not stock.start(ask("c"), 1.1)
    assert sent(stock) == [ask("c")]


def test_a_call_on_its_way_to_the_scheduler_is_no_contention(stock):
    stock.start(ask("b"), 1.1)
    stock.start(ask("c"), 1.1)
    stock.end("b", 1.2)
    assert sent(stock) == [ask("c")]
    assert stock.start(ask("d"), 1.2)


def test_when_others_wait_idle_leases_go_back_and_none_is_kept(stock):
    stock.receive(Mail(1, 1, (), contended=True), 1.1)
    assert sent(stock) == [Release(LeaseId(1, 0))]
    stock.start(ask("b"), 1.2)
    stock.receive(granted("b", 1, contended=True), 1.3)
    stock.end("b", 1.4)
    assert sent(stock) == [ask("b"), Release(LeaseId(1, 1))]
    assert stock.num_idle == 0


def test_an_idle_lease_goes_back_after_a_while(stock):
    stock.tidy(1.0 + KEEP_IDLE_S / 2)
    assert sent(stock) == []
    stock.tidy(1.0 + KEEP_IDLE_S)
    assert (sent(stock), stock.num_idle) == ([Release(LeaseId(1, 0))], 0)


def test_a_call_withdrawn_while_it_waits_gives_back_what_crosses(stock):
    stock.start(ask("b"), 1.1)
    stock.start(ask("c"), 1.1)
    stock.end("c", 1.2)
    assert sent(stock) == [ask("c"), Cancel("c")]
    assert stock.receive(granted("c", 7), 1.3) == []
    assert sent(stock) == [Release(LeaseId(1, 7))]


def test_a_new_box_is_told_everything_and_old_leases_are_void(stock):
    stock.start(ask("b"), 2.0)
    stock.start(ask("c", remaining_s=10.0), 3.0)
    sent(stock)
    assert stock.receive(Mail(2, 0), 5.0) == []
    lost, register, again = sent(stock)
    assert lost == HolderLost("h")
    assert [held.call_id for held in register.held] == ["b"]
    assert (again.call_id, again.remaining_s) == ("c", 8.0)


def test_a_new_box_takes_idle_leases_away(stock):
    stock.receive(Mail(2, 0), 5.0)
    assert stock.num_idle == 0
    assert sent(stock) == [HolderLost("h"), Register("h", ())]


def test_a_call_that_runs_without_a_lease_takes_one_later_and_is_cancelled_by_id():
    stock = LeaseStock("h")
    stock.start(ask("a"), 0.0)
    stock.run_without("a")
    assert (stock.num_running, stock.waiting) == (1, False)
    assert stock.receive(granted("a", 3), 1.0) == []
    assert [held.lease for held in stock.held] == [LeaseId(1, 3)]
    other = LeaseStock("h")
    other.start(ask("b"), 0.0)
    other.run_without("b")
    other.end("b", 1.0)
    assert sent(other)[-1] == Cancel("b")


class World:
    """Holders and one scheduler; messages travel in order, each side restarts at random."""

    def __init__(self, seed, holders=2, slots=2):
        self.random = random.Random(seed)
        self.slots, self.now, self.epoch, self.calls = slots, 0.0, 0, 0
        self.stocks = {f"h{i}": LeaseStock(f"h{i}") for i in range(holders)}
        self.running = {name: set() for name in self.stocks}
        self.waiting = {name: set() for name in self.stocks}
        self.restart()

    def restart(self):
        self.epoch += 1
        self.state = DispatchState(
            "m", epoch=self.epoch, slots=self.slots, max_backlog=100, now=self.now,
            recovering=self.epoch > 1,
        )  # fmt: skip
        self.boxes = {name: (self.epoch * 1000, []) for name in self.stocks}

    def give_up(self, name):
        self.boxes[name] = (self.boxes[name][0] + 1, [])
        self.apply(HolderLost(name))

    def apply(self, event):
        for command in self.state.handle(event, self.now):
            self.boxes[command.holder][1].append(command)
        self.state.check_invariants()

    def exchange(self, name):
        """Outbox to the scheduler, mail back."""
        stock = self.stocks[name]
        for event in sent(stock):
            self.apply(event)
        box, commands = self.boxes[name]
        mail = Mail(box, 1, tuple(commands), self.state.contended)
        commands.clear()
        for verdict in stock.receive(mail, self.now):
            self.waiting[name].discard(verdict.call_id)
            if isinstance(verdict, Grant):
                self.running[name].add(verdict.call_id)

    def begin(self, name):
        self.calls += 1
        call_id = f"c{self.calls}"
        kept = self.stocks[name].start(ask(call_id, name), self.now)
        (self.running if kept else self.waiting)[name].add(call_id)

    def finish(self, name):
        pool = self.running[name] | self.waiting[name]
        if pool:
            call_id = self.random.choice(sorted(pool))
            self.running[name].discard(call_id)
            self.waiting[name].discard(call_id)
            self.stocks[name].end(call_id, self.now)

    def settle(self):
        """Everybody exchanges until nothing changes."""
        for _ in range(8):
            self.now += 1.1
            for name in self.stocks:
                self.apply(Register(name, self.stocks[name].held))
                self.exchange(name)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9), st.integers(10, 60))
def test_whatever_happens_no_lease_leaks_and_everybody_is_served(seed, steps):
    world = World(seed)
    for _ in range(steps):
        world.now += world.random.choice([0.0, 0.1, 0.5])
        name = world.random.choice(sorted(world.stocks))
        action = world.random.choices(
            [world.begin, world.finish, world.exchange, world.give_up, lambda _: world.restart()],
            [5, 4, 8, 0.3, 0.2],
        )[0]
        action(name)
    world.settle()
    for _ in range(200):
        for name in world.stocks:
            world.finish(name)
        world.settle()
        if not any(world.running.values()) and not any(world.waiting.values()):
            break
    assert not any(world.waiting.values())
    for stock in world.stocks.values():
        stock.tidy(world.now + 10)
    world.settle()
    report = world.state.report(world.now)
    orphans = len(world.state.orphans)
    assert (report.backlog, report.leased - orphans) == (0, 0)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**9))
def test_without_faults_running_calls_never_exceed_the_slots(seed):
    world = World(seed, holders=3, slots=2)
    for _ in range(60):
        name = world.random.choice(sorted(world.stocks))
        world.random.choices([world.begin, world.finish, world.exchange], [4, 3, 8])[0](name)
        assert sum(len(calls) for calls in world.running.values()) <= 2
