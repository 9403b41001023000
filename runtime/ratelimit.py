"""``RateWindow``: what an API model was sent within the last minute, and when more may follow.

A window of ``WINDOW_S`` slides over the requests (paper appendix C): at every moment at most
``rpm`` of them are younger than that, refused ones included. A provider that refuses one for its
rate is believed: nothing goes out for as long as it asks, and the limit falls to what it has let
through, from where it comes back to ``rpm`` within ``RECOVERY_S``. Pure; ``now`` is monotonic
seconds and never goes back.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass, replace

WINDOW_S = 60.0

RECOVERY_S = 120.0
"""From the end of a pause until the limit is the configured one again."""

FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0
"""Where the provider does not say how long: the first pause, doubled each time up to this."""

_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class RateReport:
    """The window at one moment.

    ``recent`` requests went out within the last ``WINDOW_S``, of ``limit`` that may now. ``held``
    calls wait; one that came now would be held for ``hold_s``. For ``closed_s`` more nothing goes
    out, since the provider asked for it.
    """

    recent: int
    limit: int
    held: int = 0
    hold_s: float = 0.0
    closed_s: float = 0.0

    @property
    def congestion(self) -> float:
        """Requests over the limit (paper section 5.4), held ones included, so that it exceeds 1
        as soon as calls are held. A closed window counts as if its time were full of requests."""
        return (self.recent + self.held) / self.limit + self.closed_s / WINDOW_S

    def later(self, more: int, passed_s: float) -> RateReport:
        """What is known ``passed_s`` after it, with ``more`` calls on their way that it did not
        count. Where the window is full each of those takes its share of it."""
        if not more and not self.hold_s:
            return self
        full = self.recent + self.held + more >= self.limit
        behind_s = more * WINDOW_S / self.limit if full else 0.0
        return replace(
            self,
            held=self.held + more,
            hold_s=max(0.0, self.hold_s - passed_s) + behind_s,
            closed_s=max(0.0, self.closed_s - passed_s),
        )


class RateWindow:
    """The one account of the requests to an API model.

    Args:
        rpm: requests that may go out within any ``WINDOW_S``.

    Raises:
        ValueError: ``rpm`` is below 1.
    """

    def __init__(self, rpm: int) -> None:
        if rpm < 1:
            raise ValueError(f"rpm must be at least 1, not {rpm}")
        self._rpm = rpm
        self._sent: deque[float] = deque()
        self._refused: deque[float] = deque()
        self._learned = rpm
        self._opens_s: float | None = None  # end of the last pause that the provider wanted
        self._pause_s = 0.0

    def limit(self, now: float) -> int:
        """Requests that may be younger than ``WINDOW_S`` now."""
        if self._opens_s is None or now >= self._opens_s + RECOVERY_S:
            return self._rpm
        _forget(self._refused, now)  # these took no place at the provider
        return min(self._rpm, self._let_through(now) + len(self._refused))

    def _let_through(self, now: float) -> int:
        """What the provider is believed to let through within a minute."""
        if self._opens_s is None:
            return self._rpm
        share = min(1.0, max(0.0, now - self._opens_s) / RECOVERY_S)
        return self._learned + int((self._rpm - self._learned) * share)

    def recent(self, now: float) -> int:
        """Requests that are younger than ``WINDOW_S``."""
        _forget(self._sent, now)
        return len(self._sent)

    def open(self, now: float) -> bool:
        """Whether one more may go out now."""
        closed = self._opens_s is not None and now < self._opens_s
        return not closed and self.recent(now) < self.limit(now)

    def send(self, now: float) -> None:
        """A request goes out."""
        self._sent.append(now)

    def restore(self, at_s: float) -> None:
        """A request went out at ``at_s``, as somebody else remembers."""
        if self._sent and self._sent[-1] > at_s:
            ordered = list(self._sent)
            insort(ordered, at_s)
            self._sent = deque(ordered)
        else:
            self._sent.append(at_s)

    def refuse(self, retry_after_s: float | None, now: float) -> None:
        """The provider refused a request for its rate; ``None``: it did not say for how long."""
        _forget(self._refused, now)
        believed = self._let_through(now)
        self._refused.append(now)
        # Who says when has room for one more then.
        evident = self.recent(now) - len(self._refused) + (retry_after_s is not None)
        self._learned = max(1, min(believed, evident))
        if retry_after_s is None:
            retry_after_s = self._next_pause(now)
        self._opens_s = max(self._opens_s or now, now + retry_after_s)

    def next_s(self, ahead: int, now: float) -> float:
        """When a request could go out that has ``ahead`` others before it, all as soon as they
        may; at the limit of ``now``."""
        rounds, number = divmod(ahead, self.limit(now))
        leaver = self.recent(now) + number - self.limit(now)  # whose place it takes
        at_s = now if self._opens_s is None else max(now, self._opens_s)
        if leaver >= 0:
            at_s = max(at_s, self._sent[leaver] + WINDOW_S)
        return at_s + rounds * WINDOW_S

    def look_s(self, now: float) -> float:
        """When to look whether one more may go out. While the limit rises, often."""
        next_s = self.next_s(0, now)
        if self._opens_s is None or self.limit(now) == self._rpm:
            return next_s
        return min(next_s, max(now, self._opens_s) + _LOOK_S)

    def quiet(self, now: float) -> bool:
        """Whether its report stays the same as long as nothing is sent."""
        return not self.recent(now) and self.limit(now) == self._rpm

    def report(self, held: int, now: float) -> RateReport:
        """The window now, with ``held`` calls before it."""
        return RateReport(
            recent=self.recent(now),
            limit=self.limit(now),
            held=held,
            hold_s=self.next_s(held, now) - now,
            closed_s=0.0 if self._opens_s is None else max(0.0, self._opens_s - now),
        )

    def _next_pause(self, now: float) -> float:
        """A burst of refusals is one: only a refusal after the last pause makes it longer."""
        opens_s = self._opens_s
        if opens_s is None or now > opens_s + WINDOW_S:
            self._pause_s = FIRST_PAUSE_S
        elif now >= opens_s:
            self._pause_s = min(MAX_PAUSE_S, max(FIRST_PAUSE_S, 2 * self._pause_s))
        else:
            return opens_s - now
        return self._pause_s


def _forget(times: deque[float], now: float) -> None:
    """Drop what is ``WINDOW_S`` old."""
    while times and times[0] + WINDOW_S <= now:
        times.popleft()
