"""Waiting queues behind one interface: ``edf``, ``edf_plain`` and ``fcfs``.

Every order keeps its heaps lazily: removing a call only forgets it, and what is forgotten leaves
a heap when it surfaces, or when a compaction rebuilds the heap. No clock: ``now`` is in monotonic
seconds, the same clock as ``Entry.deadline_s``, and never goes back from call to call.

======================  ====================================================================
order                   trade-off
======================  ====================================================================
``edf``                 Keeps most deadlines at overload; a call that is late waits until no
                        call that is on time is left.
``edf_plain``           Optimal while every deadline can be kept; at overload one late call
                        makes the next one late (domino effect).
``fcfs``                Starves nobody; urgent calls wait behind loose ones.
======================  ====================================================================
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Protocol

COMPACT_SLACK = 64
"""A queue is compacted when it forgot this many calls more than it still holds."""

MAX_PRIORITY = 2**53 - 1
"""Largest magnitude of ``engine_priority``: the integers that every JSON reader keeps exact."""


@dataclass(slots=True, eq=False)
class Entry:
    """One waiting call. It enters a queue once (requeue a copy); only ``holder`` may be changed.

    ``deadline_s`` and ``enqueued_s`` are monotonic seconds of the queue's process. ``arrival`` is
    unique in a queue and grows with the time of arrival; a requeued call keeps its own.
    ``service_s`` is the predicted time of this call, ``path_s`` that of the steps that must still
    follow it, both finite and not negative. The queue sets ``gone`` when the call leaves.
    """

    call_id: str
    holder: str
    deadline_s: float
    arrival: int
    enqueued_s: float
    service_s: float
    path_s: float
    hard: bool
    gone: bool = False

    def __lt__(self, other: Entry) -> bool:
        """Settles heap ties between an entry that is gone and its copy of the same arrival."""
        return self.arrival < other.arrival


class WaitQueue(Protocol):
    """Calls that wait for a slot.

    Operations are O(log n) amortised or better, but for a ``push`` whose arrival number is below
    one that was pushed before (a requeued call): that is O(n).
    """

    @property
    def work_s(self) -> float:
        """Sum of ``service_s`` over the waiting calls, in O(1); exactly 0.0 when empty."""
        ...

    def push(self, entry: Entry) -> None:
        """Add a call. Raises ``ValueError`` if its id already waits or the entry is gone."""
        ...

    def pop(self, now: float) -> Entry | None:
        """Remove and return the call to serve next, ``None`` when empty.

        Hard deadlines are not looked at here: take out what ``expired`` returns first.
        """
        ...

    def get(self, call_id: str) -> Entry | None:
        """The waiting call of that id, which stays, or ``None``."""
        ...

    def remove(self, call_id: str) -> Entry | None:
        """Take a call out in O(1) amortised; ``None`` if it does not wait."""
        ...

    def expired(self, now: float) -> list[Entry]:
        """Take out the calls with a hard deadline ``<= now``, earliest deadline first."""
        ...

    def next_expiry_s(self) -> float | None:
        """The earliest hard deadline that waits, or ``None``."""
        ...

    def oldest(self) -> Entry | None:
        """The waiting call with the lowest arrival number, or ``None``."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Entry]:
        """The waiting calls, in no promised order."""
        ...


class _LazyHeap(list[tuple[float, int, Entry]]):
    """A heap of ``(key, arrival, entry)`` that may still hold entries that are gone."""

    __slots__ = ()

    def head(self) -> Entry | None:
        """The first entry that still waits; those before it leave the heap."""
        while self:
            entry = self[0][2]
            if not entry.gone:
                return entry
            heappop(self)
        return None

    def compact(self) -> None:
        self[:] = [item for item in self if not item[2].gone]
        heapify(self)


class _Arrivals(deque[Entry]):
    """Entries by arrival number, some of them gone."""

    def push(self, entry: Entry) -> None:
        if not self or self[-1].arrival < entry.arrival:
            self.append(entry)
        else:
            insort(self, entry)

    def head(self) -> Entry | None:
        while self:
            entry = self[0]
            if not entry.gone:
                return entry
            self.popleft()
        return None

    def compact(self) -> None:
        waiting = [entry for entry in self if not entry.gone]
        self.clear()
        self.extend(waiting)


class _Queue:
    """What the three orders share; a subclass adds its heaps, ``_place`` and ``_first``."""

    def __init__(self) -> None:
        self._live: dict[str, Entry] = {}
        self._arrivals = _Arrivals()
        self._hard = _LazyHeap()
        self._heaps: list[_LazyHeap | _Arrivals] = [self._arrivals, self._hard]
        self._work_s = 0.0
        self._forgotten = 0

    def _new_heap(self) -> _LazyHeap:
        heap = _LazyHeap()
        self._heaps.append(heap)
        return heap

    def _place(self, entry: Entry) -> None:
        raise NotImplementedError

    def _first(self, now: float) -> Entry | None:
        raise NotImplementedError

    @property
    def work_s(self) -> float:
        return max(0.0, self._work_s)

    def push(self, entry: Entry) -> None:
        if entry.call_id in self._live:
            raise ValueError(f"call {entry.call_id!r} already waits")
        if entry.gone:
            raise ValueError(f"call {entry.call_id!r}: this entry left a queue; push a copy")
        self._live[entry.call_id] = entry
        self._work_s += entry.service_s
        self._arrivals.push(entry)
        if entry.hard:
            heappush(self._hard, (entry.deadline_s, entry.arrival, entry))
        self._place(entry)

    def pop(self, now: float) -> Entry | None:
        entry = self._first(now)
        if entry is not None:
            self._forget(entry)
        return entry

    def get(self, call_id: str) -> Entry | None:
        return self._live.get(call_id)

    def remove(self, call_id: str) -> Entry | None:
        entry = self._live.get(call_id)
        if entry is not None:
            self._forget(entry)
        return entry

    def expired(self, now: float) -> list[Entry]:
        passed: list[Entry] = []
        while (entry := self._hard.head()) is not None and entry.deadline_s <= now:
            self._forget(entry)
            passed.append(entry)
        return passed

    def next_expiry_s(self) -> float | None:
        entry = self._hard.head()
        return None if entry is None else entry.deadline_s

    def oldest(self) -> Entry | None:
        return self._arrivals.head()

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._live.values())

    def _forget(self, entry: Entry) -> None:
        del self._live[entry.call_id]
        entry.gone = True
        self._forgotten += 1
        # A sum kept by adding and taking away drifts; an empty queue is a free chance to reset.
        self._work_s = self._work_s - entry.service_s if self._live else 0.0
        if self._forgotten > len(self._live) + COMPACT_SLACK:
            self._compact()

    def _compact(self) -> None:
        for heap in self._heaps:
            if len(heap) > len(self._live) + COMPACT_SLACK:
                heap.compact()
        self._work_s = math.fsum(entry.service_s for entry in self._live.values())
        self._forgotten = 0


class _Fcfs(_Queue):
    """By arrival number."""

    def _place(self, entry: Entry) -> None:
        pass  # the heap of arrivals, which every queue keeps, is this order

    def _first(self, now: float) -> Entry | None:
        return self._arrivals.head()


class _EdfPlain(_Queue):
    """By (deadline, arrival number), whether or not the deadline can still be kept."""

    def __init__(self) -> None:
        super().__init__()
        self._by_deadline = self._new_heap()

    def _place(self, entry: Entry) -> None:
        heappush(self._by_deadline, (entry.deadline_s, entry.arrival, entry))

    def _first(self, now: float) -> Entry | None:
        return self._by_deadline.head()


class _Edf(_Queue):
    """On time before late; on time by (deadline, arrival number), late by arrival number.

    Lateness is tested only at the head: as ``now`` never goes back, what is late stays late, so
    the order is the same as if every waiting call were tested at every ``pop``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._on_time = self._new_heap()
        self._late = self._new_heap()

    def _place(self, entry: Entry) -> None:
        heappush(self._on_time, (entry.deadline_s, entry.arrival, entry))

    def _first(self, now: float) -> Entry | None:
        while (entry := self._on_time.head()) is not None:
            if now + entry.service_s + entry.path_s <= entry.deadline_s:
                return entry
            heappop(self._on_time)
            heappush(self._late, (entry.arrival, entry.arrival, entry))
        return self._late.head()


ORDERS: dict[str, type[_Queue]] = {"edf": _Edf, "edf_plain": _EdfPlain, "fcfs": _Fcfs}
"""The orders that ``make_queue`` knows, by name."""


def make_queue(order: str) -> WaitQueue:
    """An empty queue of the given order.

    Raises:
        ValueError: ``order`` is none of ``ORDERS``.
    """
    if order not in ORDERS:
        raise ValueError(f"unknown order {order!r}; there are {sorted(ORDERS)}")
    return ORDERS[order]()


def engine_priority(deadline_s: float) -> int:
    """vLLM's ``priority`` of a call due at ``deadline_s`` (monotonic seconds): lower is earlier.

    Whole milliseconds, rounded down, never decreasing in ``deadline_s``, and clamped to
    ``[-MAX_PRIORITY, MAX_PRIORITY]``. vLLM 0.32 takes a signed 64-bit integer (``priority`` in
    ``entrypoints/openai/*/protocol.py``) and compares Python integers, ties by arrival; 53 bits
    fit that and stay exact in any JSON reader. 32 bits would not do: the monotonic clock counts
    from boot, and after 25 days every deadline would be clamped to one value. Compare priorities
    of one process only, and on engines with ``scheduling_policy="priority"``; others refuse any
    priority but 0.

    Raises:
        ValueError: ``deadline_s`` is infinite or not a number.
    """
    if not math.isfinite(deadline_s):
        raise ValueError(f"deadline_s must be finite, not {deadline_s}")
    return math.floor(min(max(deadline_s * 1e3, -MAX_PRIORITY), MAX_PRIORITY))
