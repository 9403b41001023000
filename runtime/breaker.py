"""``Breaker``: keeps calls away from one model that only fails, and finds out when it is well.

Pure; one per model in each driver of queries. ``now`` is monotonic seconds of its process.
"""

from __future__ import annotations

import math
from enum import StrEnum

from runtime.config import BreakerConfig
from runtime.events import CallDone, CallFailed, FailureKind, WorkflowEvent

_GROWTH = 2.0


class BreakerState(StrEnum):
    """``closed``: calls pass. ``open``: none does. ``half_open``: one at a time, to find out."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Opens after ``failures`` of the model in a row; then one probe at a time decides.

    A probe that succeeds closes it, one that fails opens it again for twice as long, up to
    ``max_open_s``. What is not the model's fault says nothing: a refusal, a request at fault,
    a call that was withdrawn. Calls that break together are one failure: those that already ran
    when the last failure was counted count no more. Calls without a token take long to show, so
    each of them counts.
    """

    def __init__(self, config: BreakerConfig) -> None:
        self._config = config
        self._failures = 0
        self._failed_at_s = -math.inf
        self._open_until_s: float | None = None
        self._open_s = 0.0
        self._probe: str | None = None

    def state(self, now: float) -> BreakerState:
        """What it is now; an open one becomes half open by itself."""
        if self._open_until_s is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._open_until_s else BreakerState.HALF_OPEN

    def passes(self, now: float) -> bool:
        """Whether a call may begin."""
        if self._open_until_s is None:
            return True
        return now >= self._open_until_s and self._probe is None

    def retry_after_s(self, now: float) -> float | None:
        """Seconds until a call may pass, ``None`` where it may now.

        While a probe runs nobody knows: what another period would take.
        """
        if self.passes(now):
            return None
        assert self._open_until_s is not None
        left_s = self._open_until_s - now
        return left_s if left_s > 0 else self._config.open_s

    def began(self, call_id: str, now: float) -> None:
        """A call is on its way; the first one past an open breaker is the probe."""
        if self.state(now) is BreakerState.HALF_OPEN and self._probe is None:
            self._probe = call_id

    def admits(self, call_id: str) -> bool:
        """Whether a call that began, and has waited since, may still go to the model."""
        return self._open_until_s is None or self._probe == call_id

    def ended(self, call_id: str, sent_s: float, event: WorkflowEvent | None, now: float) -> None:
        """A call that was sent at ``sent_s`` is over; ``None`` where it was withdrawn."""
        probe = self._probe == call_id
        if probe:
            self._probe = None
        if isinstance(event, CallDone):
            self._succeeded(sent_s)
        elif isinstance(event, CallFailed) and event.kind.of_the_model:
            self._failed(probe, sent_s, event.kind, now)

    def _succeeded(self, sent_s: float) -> None:
        # One that was sent before the failures says nothing of what came after them.
        if self._open_until_s is None or sent_s >= self._failed_at_s:
            self._failures, self._open_until_s, self._open_s = 0, None, 0.0

    def _failed(self, probe: bool, sent_s: float, kind: FailureKind, now: float) -> None:
        together = sent_s < self._failed_at_s and kind is not FailureKind.HUNG
        if together and not probe:
            return
        self._failures += 1
        self._failed_at_s = now
        closed = self._open_until_s is None
        if probe or (closed and self._failures >= self._config.failures):
            grown = self._open_s * _GROWTH or self._config.open_s
            self._open_s = min(grown, max(self._config.open_s, self._config.max_open_s))
            self._open_until_s = now + self._open_s
