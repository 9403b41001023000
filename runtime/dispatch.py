"""DispatchState: who holds the slots of one model, who waits for them, and who is next.

A pure state machine: ``handle(event, now)`` returns the commands to carry out. A *lease* is one
slot lent to one call. Leases only order the work: the bound on what an engine runs is the
deployment's own ``max_ongoing_requests``. ``now`` is in monotonic seconds of the scheduler's
process and never goes back from call to call.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import assert_never

from runtime.edf import Entry, make_queue
from runtime.events import (
    Acquire,
    Cancel,
    CapacityChanged,
    DispatchCommand,
    DispatchEvent,
    Drop,
    EngineCalls,
    Grant,
    Held,
    HolderLost,
    LeaseId,
    Limited,
    Lost,
    Refuse,
    Register,
    Release,
    Sent,
    Tick,
)
from runtime.ratelimit import RateWindow
from runtime.telemetry import QueueReport

MIN_RETRY_S = 1.0
"""Least ``Refuse.retry_after_s``; HTTP's ``Retry-After`` counts in whole seconds."""

MAX_RETRY_S = 3600.0
"""Largest ``Refuse.retry_after_s``."""

COUNTERS = (
    "granted",  # leases given in turn
    "registered",  # leases re-created for a holder
    "released",  # leases given back by `Release`
    "cancelled",  # calls withdrawn by `Cancel`, waiting or leased
    "dropped",  # calls whose hard deadline passed
    "refused",  # calls that found the backlog full
    "limited",  # refusals of the provider for its rate
    "lost_waiting",  # waiting calls that went with their holder
    "orphaned",  # leases whose holder was lost
    "orphans_freed",  # of those, freed because the engines no longer run the call
    "stale_release",  # ignored: a lease of another epoch
    "unknown_release",  # ignored: no such lease, or given back before
)


class DispatchState:
    """The leases and the queue of one model.

    ``counters`` (see ``COUNTERS``) only grow; what is out at the moment is in ``report``.

    Args:
        model: name of the model, for reports.
        epoch: incarnation of the scheduler; leases of other epochs are not its own.
        slots: calls that may run at once, over all replicas.
        order: ``edf``, ``edf_plain`` or ``fcfs`` (see ``runtime.edf``).
        max_backlog: calls that may wait; a call that can start at once is never refused.
        now: time of creation.
        recovery_s: how long a restarted scheduler lets holders register before it grants.
        recovering: whether this incarnation replaces one that may have had leases out.
        window: of an API model, the account of its requests; a grant is one. What it does not let
            out waits in the queue, in the queue's order.

    Raises:
        ValueError: a negative or non-finite number, or an unknown order.
    """

    def __init__(
        self,
        model: str,
        *,
        epoch: int,
        slots: int,
        order: str = "edf",
        max_backlog: int,
        now: float,
        recovery_s: float = 1.0,
        recovering: bool,
        window: RateWindow | None = None,
    ) -> None:
        if slots < 0 or max_backlog < 0 or not 0 <= recovery_s < math.inf:
            raise ValueError("slots, max_backlog and recovery_s must be finite and not negative")
        self.model = model
        self.epoch = epoch
        self.counters = dict.fromkeys(COUNTERS, 0)
        self._slots = slots
        self._max_backlog = max_backlog
        self._recovers_at_s = now + recovery_s if recovering else None
        self._queue = make_queue(order)
        self._window = window
        self._restored: set[LeaseId] = set()
        self._leases: dict[str, Grant] = {}
        self._call_of_lease: dict[int, str] = {}
        self._orphans: set[str] = set()
        self._next_arrival = 0
        self._next_lease = 0
        # Leases that a shrink or a registration leaves out beyond the slots; only they may be.
        self._allowed = 0

    def handle(self, event: DispatchEvent, now: float) -> list[DispatchCommand]:
        """Take one event; return what to tell holders, in order.

        Whatever the event, calls whose hard deadline has passed (``deadline <= now``) are dropped
        and free slots are granted.

        Raises:
            ValueError: an ``Acquire`` with a non-finite number or a negative prediction, or a
                negative capacity; nothing has changed then.
        """
        commands = self._apply(event, now)
        commands += self._drop_expired(now)
        commands += self._grant_free(now)
        if isinstance(event, Acquire) and len(self._queue) > self._max_backlog:
            commands.append(self._refuse(event, now))
        return commands

    def report(self, now: float) -> QueueReport:
        """The figures of this moment; ``oldest_s`` is 0 when nothing waits."""
        oldest = self._queue.oldest()
        return QueueReport(
            model=self.model,
            backlog=len(self._queue),
            leased=len(self._leases),
            slots=self._slots,
            oldest_s=0.0 if oldest is None else now - oldest.enqueued_s,
            backlog_work_s=self._queue.work_s,
            rate=None if self._window is None else self._window.report(len(self._queue), now),
        )

    def next_wakeup(self, now: float) -> float | None:
        """When a ``Tick`` is next useful, not before ``now``; ``None`` if only events matter."""
        when = (self._recovers_at_s, self._queue.next_expiry_s(), self.opens_s(now))
        times = [t for t in when if t is not None]
        return max(now, min(times)) if times else None

    @property
    def idle(self) -> bool:
        """Whether no call waits and no lease is out."""
        return not self._leases and len(self._queue) == 0

    def opens_s(self, now: float) -> float | None:
        """When the window may let out the next call; ``None`` where it holds back none."""
        if self._window is None or not len(self._queue) or len(self._leases) >= self._slots:
            return None
        return self._window.look_s(now)

    def steady(self, now: float) -> bool:
        """Whether its report stays the same as long as nothing happens."""
        return self.idle and (self._window is None or self._window.quiet(now))

    @property
    def contended(self) -> bool:
        """Whether leases that holders keep idle are wanted back. Those of an API model always
        are: each of its requests needs a grant of its own."""
        busy = len(self._queue) > 0 or len(self._leases) > self._slots
        return busy or self._window is not None

    @property
    def orphans(self) -> frozenset[str]:
        """Calls whose holder was lost and that still take a slot."""
        return frozenset(self._orphans)

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` if the state contradicts itself; for tests."""
        waiting = {entry.call_id for entry in self._queue}
        assert not waiting & self._leases.keys(), "a call both waits and holds a lease"
        assert self._orphans <= self._leases.keys(), "an orphan without a lease"
        by_number = {grant.lease.number: call_id for call_id, grant in self._leases.items()}
        assert by_number == self._call_of_lease, "lease numbers and calls disagree"
        assert len(self._leases) <= max(self._slots, self._allowed), "more leases than slots"
        assert len(self._queue) <= self._max_backlog, "the backlog is beyond its bound"
        if self._recovers_at_s is None and self._window is None:
            assert not waiting or len(self._leases) >= self._slots, "calls wait beside free slots"

    # --- events --------------------------------------------------------------------------------

    def _apply(self, event: DispatchEvent, now: float) -> list[DispatchCommand]:
        match event:
            case Acquire():
                return self._acquire(event, now)
            case Release():
                self._release(event.lease)
            case Cancel():
                self.counters["cancelled"] += self._withdraw(event.call_id)
            case Register():
                self._recall(event.sent, now)
                registered = (self._register(held, event.holder, now) for held in event.held)
                return [grant for grant in registered if grant is not None]
            case HolderLost():
                return self._lose(event.holder)
            case EngineCalls():
                self._free_orphans(event.calls)
            case CapacityChanged():
                self._resize(event.slots)
            case Limited():
                self._limited(event, now)
            case Tick():
                pass
            case _:
                assert_never(event)
        return []

    def _acquire(self, event: Acquire, now: float) -> list[DispatchCommand]:
        _check(event)
        if event.hard and event.remaining_s <= 0:
            return [self._drop_unserved(event, now)]
        if event.call_id in self._leases:
            return [self._adopt(event.call_id, event.holder)]
        waiting = self._queue.get(event.call_id)
        if waiting is None:
            self._enqueue(event, now)
        else:
            waiting.holder = event.holder
        return []

    def _enqueue(self, event: Acquire, now: float) -> None:
        entry = Entry(
            call_id=event.call_id,
            holder=event.holder,
            deadline_s=now + event.remaining_s,
            arrival=self._next_arrival,
            enqueued_s=now,
            service_s=event.service_s,
            path_s=event.path_s,
            hard=event.hard,
        )
        self._next_arrival += 1
        self._queue.push(entry)

    def _drop_unserved(self, event: Acquire, now: float) -> Drop:
        """Who still asks when its budget is gone has not started: what it had here goes."""
        entry, grant = self._queue.get(event.call_id), self._leases.get(event.call_id)
        waited_s = now - entry.enqueued_s if entry else grant.waited_s if grant else 0.0
        self._withdraw(event.call_id)
        self.counters["dropped"] += 1
        return Drop(event.call_id, event.holder, waited_s)

    def _release(self, lease: LeaseId) -> None:
        call_id = self._call_of_lease.get(lease.number)
        if lease.epoch != self.epoch:
            self.counters["stale_release"] += 1
        elif call_id is None:
            self.counters["unknown_release"] += 1
        else:
            self._free(call_id)
            self.counters["released"] += 1

    def _register(self, held: Held, holder: str, now: float) -> Grant | None:
        """The holder knows what it runs: it has a lease from now on, even beyond the slots."""
        if held.lease is not None and held.lease.epoch == self.epoch:
            last = self._call_of_lease.get(held.lease.number)
            if last is not None:
                self._reuse(last, held, holder, now)
                return None
        if held.call_id in self._leases:
            return self._adopt(held.call_id, holder)
        entry = self._queue.remove(held.call_id)
        self.counters["registered"] += 1
        grant = self._lend(held.call_id, holder, now - entry.enqueued_s if entry else 0.0)
        self._allowed = len(self._leases)
        return grant

    def _reuse(self, last: str, held: Held, holder: str, now: float) -> None:
        """The lease of ``last``, a call that ended, serves ``held`` now."""
        grant = self._adopt(last, holder)
        if last == held.call_id:
            return
        if held.call_id in self._leases:  # granted twice: this lease is one too many
            self._free(last)
            return
        self._queue.remove(held.call_id)
        del self._leases[last]
        self._leases[held.call_id] = replace(grant, call_id=held.call_id)
        self._call_of_lease[grant.lease.number] = held.call_id
        if self._window is not None:
            self._window.send(now)

    def _recall(self, sent: tuple[Sent, ...], now: float) -> None:
        """What went out under earlier incarnations; one's own grants are known."""
        if self._window is None:
            return
        for one in sent:
            if one.lease.epoch != self.epoch and one.lease not in self._restored:
                self._restored.add(one.lease)
                self._window.restore(now - max(0.0, one.age_s))

    def _limited(self, event: Limited, now: float) -> None:
        self.counters["limited"] += 1
        if self._window is not None:
            self._window.refuse(event.retry_after_s, now)

    def _lose(self, holder: str) -> list[DispatchCommand]:
        entries = sorted(self._queue, key=lambda entry: entry.arrival)
        waiting = [entry.call_id for entry in entries if entry.holder == holder]
        for call_id in waiting:
            self._queue.remove(call_id)
        leased = {call for call, grant in self._leases.items() if grant.holder == holder}
        self.counters["lost_waiting"] += len(waiting)
        self.counters["orphaned"] += len(leased - self._orphans)
        self._orphans |= leased
        return [Lost(call_id, holder) for call_id in waiting]

    def _free_orphans(self, running: frozenset[str]) -> None:
        for call_id in self._orphans - running:
            self._free(call_id)
            self.counters["orphans_freed"] += 1

    def _resize(self, slots: int) -> None:
        if slots < 0:
            raise ValueError(f"slots must not be negative, not {slots}")
        self._slots = slots
        self._allowed = len(self._leases)

    # --- what every event may bring about ------------------------------------------------------

    def _drop_expired(self, now: float) -> list[DispatchCommand]:
        expired = self._queue.expired(now)
        self.counters["dropped"] += len(expired)
        return [Drop(entry.call_id, entry.holder, now - entry.enqueued_s) for entry in expired]

    def _grant_free(self, now: float) -> list[DispatchCommand]:
        if self._recovers_at_s is not None and now < self._recovers_at_s:
            return []
        self._recovers_at_s = None
        grants: list[DispatchCommand] = []
        window = self._window
        while len(self._leases) < self._slots and (window is None or window.open(now)):
            if (entry := self._queue.pop(now)) is None:
                break
            if window is not None:
                window.send(now)
            grants.append(self._lend(entry.call_id, entry.holder, now - entry.enqueued_s))
        self.counters["granted"] += len(grants)
        return grants

    def _refuse(self, event: Acquire, now: float) -> Refuse:
        self._queue.remove(event.call_id)
        self.counters["refused"] += 1
        retry_s = self._queue.work_s / max(1, self._slots)
        if self._recovers_at_s is not None:
            retry_s += self._recovers_at_s - now
        if self._window is not None:
            retry_s = max(retry_s, self._window.next_s(len(self._queue), now) - now)
        retry_s = min(max(retry_s, MIN_RETRY_S), MAX_RETRY_S)
        return Refuse(event.call_id, event.holder, retry_s)

    # --- leases --------------------------------------------------------------------------------

    def _lend(self, call_id: str, holder: str, waited_s: float) -> Grant:
        number = self._next_lease
        self._next_lease += 1
        grant = Grant(call_id, holder, LeaseId(self.epoch, number), waited_s)
        self._leases[call_id] = grant
        self._call_of_lease[number] = call_id
        return grant

    def _free(self, call_id: str) -> None:
        grant = self._leases.pop(call_id)
        del self._call_of_lease[grant.lease.number]
        self._orphans.discard(call_id)
        self._allowed = min(self._allowed, len(self._leases))

    def _adopt(self, call_id: str, holder: str) -> Grant:
        """The lease is now that of ``holder``, who named the call; orphaned or not."""
        grant = self._leases[call_id]
        self._orphans.discard(call_id)
        if grant.holder != holder:
            grant = self._leases[call_id] = replace(grant, holder=holder)
        return grant

    def _withdraw(self, call_id: str) -> bool:
        """Take the call out of wherever it is; False if it is nowhere."""
        if call_id in self._leases:
            self._free(call_id)
            return True
        return self._queue.remove(call_id) is not None


def _check(event: Acquire) -> None:
    if not math.isfinite(event.remaining_s):
        raise ValueError(f"call {event.call_id!r}: remaining_s is {event.remaining_s}")
    if not (0 <= event.service_s < math.inf and 0 <= event.path_s < math.inf):
        raise ValueError(f"call {event.call_id!r}: service_s and path_s must be finite and >= 0")
