"""How long a replica's last calls took, for its reports."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from runtime.model_config import ApiConfig

WINDOW_CALLS = 64
WINDOW_S = 30.0


@dataclass(frozen=True, slots=True)
class Latencies:
    """Mean end-to-end, first-token and per-token seconds; ``None`` where nothing is known."""

    e2e_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None


@dataclass(frozen=True, slots=True)
class FinishedCall:
    """One call that ended with an answer, as the replica measured it."""

    at_s: float
    e2e_s: float
    ttft_s: float | None
    tpot_s: float | None
    tokens: int | None = None


def finished_call(
    started_s: float, now: float, ttft_s: float | None, tokens: int | None
) -> FinishedCall:
    """A call that ended now; a time per token needs two of them and the first one's time."""
    e2e_s = now - started_s
    tpot_s = None
    if ttft_s is not None and tokens is not None and tokens > 1:
        tpot_s = max(0.0, e2e_s - ttft_s) / (tokens - 1)
    return FinishedCall(now, e2e_s, ttft_s, tpot_s, tokens)


class LatencyWindow(Protocol):
    """What is remembered of the calls that finished."""

    @property
    def empty(self) -> bool:
        """Whether nothing was left in it when its means were last asked for."""
        ...

    def add(self, call: FinishedCall) -> None:
        """A call finished; not before the last one that was added."""
        ...

    def means(self, now: float) -> Latencies:
        """How long calls take."""
        ...


def latency_window(api: ApiConfig | None) -> LatencyWindow:
    """The window of a model's calls: an average of its own kind for API models."""
    return CallWindow() if api is None else LatencyAverage(api.latency_weight, api.latency_kept_s)


class LatencyAverage:
    """Exponential moving averages of an API model's latencies (paper section 5.4).

    Each new call has ``weight``. They are forgotten ``kept_s`` after the last call, since a model
    that is avoided for its latency would otherwise never get the call that shows it well again. A
    whole answer shows no first token; where that of others is known, it tells the time per token.
    """

    def __init__(self, weight: float, kept_s: float) -> None:
        self._weight = weight
        self._kept_s = kept_s
        self._last_s: float | None = None
        self._now = Latencies()

    @property
    def empty(self) -> bool:
        return self._last_s is None

    def add(self, call: FinishedCall) -> None:
        old = self.means(call.at_s)
        self._last_s = call.at_s
        tpot_s = call.tpot_s
        if call.ttft_s is None and old.ttft_s is not None and (call.tokens or 0) > 1:
            tpot_s = max(0.0, call.e2e_s - old.ttft_s) / ((call.tokens or 0) - 1)
        self._now = Latencies(
            self._mixed(old.e2e_s, call.e2e_s),
            self._mixed(old.ttft_s, call.ttft_s),
            self._mixed(old.tpot_s, tpot_s),
        )

    def means(self, now: float) -> Latencies:
        if self._last_s is not None and now - self._last_s > self._kept_s:
            self._last_s, self._now = None, Latencies()
        return self._now

    def _mixed(self, old: float | None, new: float | None) -> float | None:
        if old is None or new is None:
            return old if new is None else new
        return old + self._weight * (new - old)


class CallWindow:
    """The last ``WINDOW_CALLS`` finished calls that are younger than ``WINDOW_S``."""

    def __init__(self) -> None:
        self._calls: deque[FinishedCall] = deque()
        self._e2e, self._ttft, self._tpot = _Sum(), _Sum(), _Sum()
        self._means: Latencies | None = Latencies()  # until a call comes or goes

    def add(self, call: FinishedCall) -> None:
        self._calls.append(call)
        self._count(call, 1)
        if len(self._calls) > WINDOW_CALLS:
            self._count(self._calls.popleft(), -1)

    @property
    def empty(self) -> bool:
        """Whether no call was left in it when its means were last asked for."""
        return not self._calls

    def means(self, now: float) -> Latencies:
        """The means over the calls in the window."""
        while self._calls and now - self._calls[0].at_s > WINDOW_S:
            self._count(self._calls.popleft(), -1)
        if self._means is None:
            self._means = Latencies(self._e2e.mean, self._ttft.mean, self._tpot.mean)
        return self._means

    def _count(self, call: FinishedCall, sign: int) -> None:
        self._means = None
        self._e2e.change(call.e2e_s, sign)
        self._ttft.change(call.ttft_s, sign)
        self._tpot.change(call.tpot_s, sign)


class _Sum:
    """The mean of values that come and go; ``None`` is no value."""

    __slots__ = ("_num", "_total")

    def __init__(self) -> None:
        self._total, self._num = 0.0, 0

    def change(self, value: float | None, sign: int) -> None:
        if value is not None:
            self._num += sign
            # A sum kept by adding and taking away drifts; an empty one begins anew.
            self._total = self._total + sign * value if self._num else 0.0

    @property
    def mean(self) -> float | None:
        return max(0.0, self._total) / self._num if self._num else None
