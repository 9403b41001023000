"""``ApiEngine``: a model behind a provider's API, as its client sees it."""

from __future__ import annotations

import math
from heapq import heappop, heappush

from runtime.ratelimit import RateWindow
from runtime.sim.pool import SimApi
from runtime.sim.sequences import SimSequence
from runtime.sim.uniforms import quantile, uniforms

_TOLERANCE_S = 1e-6
"""Sums of the same times, here and at the provider, may differ in the last bit."""


class RateLimited(Exception):
    """The provider refuses a request for its rate, and wants none for ``retry_after_s``."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(retry_after_s)
        self.retry_after_s = retry_after_s


class ApiEngine:
    """A ``SimEngine`` whose calls do not feel each other, and that has no GPU of ours.

    What a call takes depends on the seed and the call's id alone, never on the order of calls.
    ``max_num_seqs`` is our own bound, which the leases keep; the provider has none.
    """

    num_preemptions = 0
    num_waiting = 0

    def __init__(self, api: SimApi, max_num_seqs: int) -> None:
        self.finished: list[SimSequence] = []
        self._api = api
        self._window = None if api.rpm_limit is None else RateWindow(api.rpm_limit)
        self._ttft = _lognormal(api.ttft_s, api.ttft_cv)
        self._per_token = _lognormal(1.0 / api.tokens_per_s, api.rate_cv)
        self._token_s: dict[SimSequence, float] = {}  # of those that run
        self._first: dict[SimSequence, float] = {}  # when their first token came
        # Times in the heap are in the provider's own seconds, which a slowdown stretches.
        self._heap: list[tuple[float, int, SimSequence]] = []
        self._pushes = 0
        self._slow = 1.0
        self._at_s = self._own_s = 0.0

    @property
    def next_event_s(self) -> float:
        while self._heap and self._heap[0][2] not in self._token_s:
            heappop(self._heap)
        return self._real(self._heap[0][0]) if self._heap else math.inf

    @property
    def busy(self) -> bool:
        return bool(self._token_s)

    @property
    def num_running(self) -> int:
        return len(self._token_s)

    def add(self, sequence: SimSequence, now: float) -> None:
        """Take a call; raises ``RateLimited``."""
        self.advance(now)
        window = self._window
        if window is not None:
            if not window.open(now + _TOLERANCE_S):
                raise RateLimited(window.next_s(0, now) - now)
            window.send(now)
        u = uniforms(f"api/{self._api.seed}/{sequence.call_id}")
        self._token_s[sequence] = _at(self._per_token, u[1])
        self._push(self._own(now) + _at(self._ttft, u[0]), sequence)

    def remove(self, sequence: SimSequence, now: float) -> None:
        self.advance(now)
        if sequence in self._token_s:
            sequence.generated = self.generated(sequence, now)
            sequence.gone = True
            self._leave(sequence)

    def set_factor(self, share: float, slow: float, now: float) -> None:
        if slow != self._slow:
            self.advance(now)
            self._own_s, self._at_s, self._slow = self._own(now), now, slow

    def advance(self, now: float) -> None:
        while (at_s := self.next_event_s) <= now:
            own_s, _, sequence = heappop(self._heap)
            if sequence not in self._first:
                sequence.first_token_s, sequence.generated = at_s, 1
                self._first[sequence] = own_s
                more = max(1, sequence.target_tokens) - 1
                if more:
                    self._push(own_s + more * self._token_s[sequence], sequence)
                    continue
            sequence.generated, sequence.done_s = sequence.target_tokens, at_s
            self._leave(sequence)
            self.finished.append(sequence)

    def generated(self, sequence: SimSequence, now: float) -> int:
        self.advance(now)
        first_s = self._first.get(sequence)
        if first_s is None:
            return sequence.generated
        more = int((self._own(now) - first_s) / self._token_s[sequence])
        return min(1 + more, sequence.target_tokens)

    def kv_blocks(self, now: float) -> int:
        """None of ours."""
        return 0

    def gpu_s(self, now: float) -> float:
        """No GPU of ours."""
        return 0.0

    def _push(self, own_s: float, sequence: SimSequence) -> None:
        self._pushes += 1
        heappush(self._heap, (own_s, self._pushes, sequence))

    def _leave(self, sequence: SimSequence) -> None:
        del self._token_s[sequence]
        self._first.pop(sequence, None)

    def _own(self, now: float) -> float:
        """``now`` in the provider's seconds."""
        return self._own_s + (now - self._at_s) / self._slow

    def _real(self, own_s: float) -> float:
        if self._slow == math.inf:
            return math.inf
        return self._at_s + (own_s - self._own_s) * self._slow


def _lognormal(mean: float, cv: float) -> tuple[float, float]:
    """Mean and standard deviation of the logarithm."""
    variance = math.log1p(cv * cv)
    return math.log(mean) - variance / 2, math.sqrt(variance)


def _at(shape: tuple[float, float], uniform: float) -> float:
    return math.exp(shape[0] + shape[1] * quantile(uniform))
