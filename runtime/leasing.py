"""``LeaseStock``: one holder's side of the leases of one model.

A lease that comes back from a call is kept for the holder's next call as long as nobody waits for
the model, so that without contention a call starts with no message at all. As soon as the
scheduler says that calls wait there, leases go back to it, and it alone orders those who wait.
Of an API model none is kept: each of its requests is counted, by one grant each.
Pure: the caller sends ``outbox`` to the scheduler and passes its ``Mail`` in; ``now`` is the
holder's monotonic clock.
"""

from __future__ import annotations

from dataclasses import replace

from runtime.events import (
    Acquire,
    Cancel,
    DispatchEvent,
    Drop,
    Grant,
    Held,
    HolderLost,
    LeaseId,
    Limited,
    Lost,
    Mail,
    Refuse,
    Register,
    Release,
    Sent,
)
from runtime.ratelimit import WINDOW_S

KEEP_IDLE_S = 1.0
"""How long a lease is kept for a next call that does not come."""

Verdict = Grant | Drop | Refuse


class LeaseStock:
    """What one holder runs, keeps and waits for at one model.

    With ``metered`` (an API model) it remembers what it sent within the last minute, so that a new
    scheduler can be told.
    """

    def __init__(self, holder: str, metered: bool = False) -> None:
        self._holder = holder
        self.metered = metered
        self.outbox: list[DispatchEvent] = []
        self.num_kept = 0
        self._idle: list[tuple[LeaseId, float]] = []
        self._running: dict[str, LeaseId | None] = {}
        self._waiting: dict[str, tuple[Acquire, float]] = {}
        self._box: int | None = None
        self._contended = metered
        self._sent: dict[LeaseId, float] = {}

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    @property
    def waiting(self) -> bool:
        """Whether a verdict is awaited."""
        return bool(self._waiting)

    @property
    def held(self) -> tuple[Held, ...]:
        """What runs, for ``Register``."""
        return tuple(Held(call_id, lease) for call_id, lease in self._running.items())

    def start(self, request: Acquire, now: float) -> bool:
        """Begin a call: ``True`` if it runs at once on a kept lease, else a verdict will come."""
        if self._idle:
            self._running[request.call_id] = self._idle.pop()[0]
            self.num_kept += 1
            return True
        self._waiting[request.call_id] = (request, now)
        self.outbox.append(request)
        return False

    def run_without(self, call_id: str) -> None:
        """Nobody answers: the call runs without a lease until one is granted after all."""
        if self._waiting.pop(call_id, None) is not None:
            self._running[call_id] = None

    def end(self, call_id: str, now: float) -> None:
        """The call is over, or no longer wanted; unknown ids are ignored."""
        if call_id in self._running:
            lease = self._running.pop(call_id)
            if lease is None:
                self.outbox.append(Cancel(call_id))
            elif self._contended:
                self.outbox.append(Release(lease))
            else:
                self._idle.append((lease, now))
        elif self._waiting.pop(call_id, None) is not None:
            self.outbox.append(Cancel(call_id))

    def limited(self, retry_after_s: float | None) -> None:
        """The model's provider refused a request for its rate."""
        self.outbox.append(Limited(retry_after_s))

    def receive(self, mail: Mail, now: float) -> list[Verdict]:
        """Take the scheduler's mail; returns the verdicts on calls that waited."""
        verdicts = [v for c in mail.commands if (v := self._take(c, now)) is not None]
        if mail.box != self._box:
            if self._box is not None:
                self.start_over(now)
            self._box = mail.box
        self._contended = mail.contended
        if mail.contended:
            self._give_back(len(self._idle))
        return verdicts

    def start_over(self, now: float) -> None:
        """The scheduler may not know what it was told: say all of it anew."""
        self._idle.clear()
        self._forget_sent(now)
        sent = tuple(Sent(lease, now - at_s) for lease, at_s in self._sent.items())
        self.outbox = [HolderLost(self._holder), Register(self._holder, self.held, sent)]
        for request, asked_s in self._waiting.values():
            left_s = request.remaining_s - (now - asked_s)
            self.outbox.append(replace(request, remaining_s=left_s))

    def tidy(self, now: float) -> None:
        """Give back what has been kept idle for too long."""
        old = sum(now - since >= KEEP_IDLE_S for _, since in self._idle)
        self._give_back(old)
        self._forget_sent(now)

    def _forget_sent(self, now: float) -> None:
        while self._sent and now - next(iter(self._sent.values())) >= WINDOW_S:
            del self._sent[next(iter(self._sent))]

    def _take(self, command: Grant | Drop | Refuse | Lost, now: float) -> Verdict | None:
        if isinstance(command, Lost):
            return None  # its mail comes from a new box, too
        waited = self._waiting.pop(command.call_id, None) is not None
        if isinstance(command, Grant):
            if self.metered:
                self._sent.setdefault(command.lease, now)
            if waited or command.call_id in self._running:
                self._running[command.call_id] = command.lease
            else:  # the call ended meanwhile
                self._idle = [kept for kept in self._idle if kept[0] != command.lease]
                self.outbox.append(Release(command.lease))
        return command if waited else None

    def _give_back(self, count: int) -> None:
        """The ``count`` leases that have been idle longest."""
        self.outbox += [Release(lease) for lease, _ in self._idle[:count]]
        del self._idle[:count]
