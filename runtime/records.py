"""What is kept of long queries: their events and answers, whose they are, and for how long.

Pure: who calls passes ``now``, monotonic seconds of its own process. Texts are JSON already.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice

from runtime.config import LongQueriesConfig
from runtime.errors import Overloaded, QueryNotFound
from runtime.types import Answer

EVENT_BYTES = 200
RECORD_BYTES = 2000
"""What an event or a record takes besides its text, roughly and from above."""

MAX_EVENTS = 5000
"""Of one record; the oldest go first, since the answer has their text as well."""

MAX_BATCH = 256
RETRY_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to a query. Numbers rise, and are never used twice for a query."""

    number: int
    kind: str  # plan, step, delta, restart, and last answer or error
    data: str

    @property
    def size(self) -> int:
        return len(self.data.encode()) + EVENT_BYTES


@dataclass(frozen=True, slots=True)
class EventBatch:
    """What follows some event. ``missed``: events in between are not kept any more.

    ``ended`` says that no event will follow this batch.
    """

    events: tuple[Event, ...]
    missed: bool
    ended: bool


@dataclass(frozen=True, slots=True)
class RecordView:
    """A record as its owner sees it; ``keep_s`` and ``answer`` are ``None`` while it runs."""

    query_id: str
    status: str
    age_s: float
    budget_s: float
    keep_s: float | None
    answer: Answer | None


@dataclass(slots=True)
class Record:
    """One long query. ``base`` is what it takes without its events."""

    query_id: str
    owner: str
    arrival_s: float
    budget_s: float
    base: int = RECORD_BYTES
    next_number: int = 1
    status: str = "running"
    answer: Answer | None = None
    ended_s: float | None = None
    missing: bool = False
    events: deque[Event] = field(default_factory=deque)
    size: int = 0

    @property
    def running(self) -> bool:
        return self.ended_s is None


class RecordBook:
    """Records within ``limits``. Running ones stay; of the others the first to end go first.

    Each method that makes room returns the ids of the records that it dropped. Events of a record
    are numbered from ``first_number``.
    """

    def __init__(self, limits: LongQueriesConfig, first_number: int = 1) -> None:
        self._limits = limits
        self._first_number = first_number
        self._records: dict[str, Record] = {}
        self._ended: dict[str, None] = {}  # ids in the order in which they ended
        self._size = 0

    @property
    def num_kept(self) -> int:
        return len(self._records)

    @property
    def num_running(self) -> int:
        return len(self._records) - len(self._ended)

    @property
    def kept_bytes(self) -> int:
        return self._size

    def __contains__(self, query_id: str) -> bool:
        return query_id in self._records

    def accept(
        self, query_id: str, owner: str, arrival_s: float, budget_s: float, size: int
    ) -> list[str]:
        """Begin the record of a new query, ``size`` bytes long.

        Raises:
            Overloaded: everything that is kept still runs; nothing was dropped.
        """
        limits, base = self._limits, size + RECORD_BYTES
        kept = self._size - sum(self._records[i].size for i in self._ended)
        if self.num_running >= limits.max_kept:
            raise Overloaded(f"{limits.max_kept} long queries run, the limit", RETRY_AFTER_S)
        if kept + base > limits.max_kept_bytes:
            message = f"running long queries fill {limits.max_kept_bytes} bytes, the limit"
            raise Overloaded(message, RETRY_AFTER_S)
        record = Record(query_id, owner, arrival_s, budget_s, base, self._first_number)
        self._add(record)
        return self._make_room(record)

    def append(self, query_id: str, kind: str, data: str) -> list[str]:
        """Keep an event of a query that runs; of any other it is ignored."""
        record = self._records.get(query_id)
        if record is None or not record.running:
            return []
        self._append(record, kind, data)
        return self._make_room(record)

    def end(self, query_id: str, answer: Answer, kind: str, data: str, now: float) -> list[str]:
        """A query has its outcome; ``data`` is its last event."""
        record = self._records.get(query_id)
        if record is None or not record.running:
            return []
        record.status = status_of(answer)
        record.answer, record.ended_s = answer, now
        self._ended[query_id] = None
        self._grow(record, RECORD_BYTES - record.base)  # its question is needed no more
        self._append(record, kind, data)
        self._grow(record, len(data.encode()))  # the answer itself
        return self._make_room(record)

    def restore(self, record: Record, number: int, kind: str, data: str) -> list[str]:
        """Take back a record that ended before, with its last event only.

        Those that ended first are to come first.
        """
        self._add(record)
        self._ended[record.query_id] = None
        record.next_number, record.missing = number, True
        self._append(record, kind, data)
        self._grow(record, len(data.encode()))
        return self._make_room(record)

    def find(self, query_id: str, owner: str) -> Record:
        """The record; raises ``QueryNotFound`` where it is another's just as where it is none."""
        record = self._records.get(query_id)
        if record is None or record.owner != owner:
            raise QueryNotFound(f"no query {query_id[:64]!r} is kept")
        return record

    def view(self, query_id: str, owner: str, now: float) -> RecordView:
        """What its owner may see of it; raises ``QueryNotFound``."""
        record = self.find(query_id, owner)
        ended_s = record.ended_s
        return RecordView(
            query_id,
            record.status,
            now - record.arrival_s,
            record.budget_s,
            None if ended_s is None else max(0.0, ended_s + self._limits.keep_s - now),
            record.answer,
        )

    def events_after(self, query_id: str, owner: str, number: int) -> EventBatch:
        """What is kept of the events after ``number``; raises ``QueryNotFound``."""
        record = self.find(query_id, owner)
        first = record.next_number - len(record.events)
        start = max(0, number + 1 - first)
        batch = tuple(islice(record.events, start, start + MAX_BATCH))
        all_told = start + len(batch) >= len(record.events)
        missed = record.missing and number < first - 1
        return EventBatch(batch, missed, all_told and not record.running)

    def last_number(self, query_id: str) -> int:
        """The number of the newest event of a record that is kept."""
        return self._records[query_id].next_number - 1

    def remove(self, query_id: str) -> None:
        """Forget a record."""
        self._size -= self._records.pop(query_id).size
        self._ended.pop(query_id, None)

    def expire(self, now: float) -> list[str]:
        """Drop what ended longer ago than records are kept."""
        dropped = []
        for query_id in list(self._ended):
            ended_s = self._records[query_id].ended_s
            if ended_s is None or ended_s + self._limits.keep_s > now:
                break
            self.remove(query_id)
            dropped.append(query_id)
        return dropped

    def _add(self, record: Record) -> None:
        self._records[record.query_id] = record
        self._grow(record, record.base)

    def _grow(self, record: Record, size: int) -> None:
        record.size += size
        self._size += size

    def _append(self, record: Record, kind: str, data: str) -> None:
        event = Event(record.next_number, kind, data)
        record.next_number += 1
        record.events.append(event)
        self._grow(record, event.size)
        if len(record.events) > MAX_EVENTS:
            self._drop_first(record)

    def _drop_first(self, record: Record) -> None:
        self._grow(record, -record.events.popleft().size)
        record.missing = True

    def _make_room(self, newest: Record) -> list[str]:
        """Drop the records that ended first, but not ``newest``; then events of what runs."""
        dropped: list[str] = []
        while self._too_much():
            oldest = next((i for i in self._ended if i != newest.query_id), None)
            if oldest is None:
                self._shorten()
                break
            self.remove(oldest)
            dropped.append(oldest)
        return dropped

    def _shorten(self) -> None:
        """Drop events of the record with the most, by halves, down to the last one of each."""
        while self._size > self._limits.max_kept_bytes:
            longest = max(self._records.values(), key=lambda record: len(record.events))
            if len(longest.events) < 2:
                return
            for _ in range(len(longest.events) // 2):
                self._drop_first(longest)

    def _too_much(self) -> bool:
        limits = self._limits
        return self._size > limits.max_kept_bytes or len(self._records) > limits.max_kept


def status_of(answer: Answer) -> str:
    """``ok``, ``late``, ``degraded``, ``error`` or ``cancelled``."""
    return "cancelled" if answer.error_code == "cancelled" else answer.status
