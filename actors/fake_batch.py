"""The bookkeeping of the FAKE engine: who runs, who waits, how far everybody is. No clock."""

from __future__ import annotations

import asyncio
import math
from bisect import insort
from dataclasses import dataclass, field

from runtime.config import ModelConfig


@dataclass(slots=True, eq=False)
class FakeSequence:
    """One call in the engine. ``key`` is (priority, arrival): the lower goes first.

    ``delay_s`` is added to its prefill, infinite for a call that hangs. ``listen_s`` is when its
    reader next wants to hear of progress; only streams do, the others wait for the end.
    """

    key: tuple[int, int]
    prompt_tokens: int
    target_tokens: int
    delay_s: float = 0.0
    listen_s: float = math.inf
    generated: int = 0
    ready_s: float = math.inf
    first_token_s: float | None = None
    done: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def kv_tokens(self) -> int:
        return self.prompt_tokens + self.generated


class FakeBatch:
    """Who runs, who waits, and how far everybody is at a given time.

    One iteration with ``b`` decoding sequences takes ``(token_s + token_s_per_seq * b) / speedup``
    and gives each one token. A sequence first spends its prompt over the prefill rate, beside
    the others. At most ``max_num_seqs`` run; the rest wait by ``key``, and only the first of them
    is looked at for room. A running sequence holds prompt and generated tokens; where the next
    iteration would exceed ``kv_tokens``, the last by ``key`` goes back to waiting, keeps its text
    and has to be prefilled again.

    The schedule is virtual: iterations follow each other without gaps however late ``advance``
    is called, so a busy machine adds no drift.
    """

    def __init__(self, model: ModelConfig) -> None:
        speedup = model.fake.speedup
        self._base_s = model.speed.token_s / speedup
        self._per_seq_s = model.speed.token_s_per_seq / speedup
        self._prefill_per_s = model.speed.prefill_tokens_per_s * speedup
        self._max_num_seqs = model.max_num_seqs
        self._kv_tokens = model.fake.kv_tokens
        self._at_s = 0.0  # the next iteration begins here
        self.running: list[FakeSequence] = []
        self.waiting: list[FakeSequence] = []
        self.num_preemptions = 0

    @property
    def kv_used(self) -> int:
        return sum(s.kv_tokens for s in self.running)

    @property
    def kv_usage(self) -> float:
        return self.kv_used / self._kv_tokens

    def iteration_s(self, num_seqs: int) -> float:
        return self._base_s + self._per_seq_s * num_seqs

    def alone_s(self, sequence: FakeSequence) -> float:
        """How long ``sequence`` takes in an empty engine."""
        prefill_s = sequence.prompt_tokens / self._prefill_per_s
        return prefill_s + sequence.target_tokens * self.iteration_s(1)

    def add(self, sequence: FakeSequence, now: float) -> None:
        self.advance(now)
        insort(self.waiting, sequence, key=lambda s: s.key)
        self._admit(now)

    def remove(self, sequence: FakeSequence, now: float) -> None:
        """Take out ``sequence``, wherever it is; one that has left is ignored."""
        self.advance(now)
        for group in (self.running, self.waiting):
            if sequence in group:
                group.remove(sequence)
        self._admit(now)

    def advance(self, now: float) -> None:
        """Run all iterations that end by ``now``."""
        while self.running:
            decoding = self._decoding()
            if not decoding:
                ready_s = min(s.ready_s for s in self.running)
                if ready_s > now:
                    return
                self._at_s = ready_s
                continue
            steps = self._steps_to_change(decoding)
            if steps == 0:
                self._preempt()
                continue
            length_s = self.iteration_s(len(decoding))
            due = math.floor((now - self._at_s) / length_s + 1e-6)
            if due <= 0:
                return
            self._run(decoding, min(steps, due), length_s)

    def next_event_s(self) -> float:
        """When something will happen that somebody waits for; infinite when nothing will."""
        decoding = self._decoding()
        if not decoding:
            return min((s.ready_s for s in self.running), default=math.inf)
        length_s = self.iteration_s(len(decoding))
        listen_s = min(s.listen_s for s in decoding)
        steps = max(1, self._steps_to_change(decoding))
        if listen_s < math.inf:
            steps = min(steps, max(1, math.ceil((listen_s - self._at_s) / length_s)))
        return self._at_s + steps * length_s

    def _decoding(self) -> list[FakeSequence]:
        return [s for s in self.running if s.ready_s <= self._at_s]

    def _steps_to_change(self, decoding: list[FakeSequence]) -> int:
        """Iterations until a sequence ends, joins or, at 0 at once, finds no memory."""
        length_s = self.iteration_s(len(decoding))
        steps = min(s.target_tokens - s.generated for s in decoding)
        for sequence in self.running:
            if self._at_s < sequence.ready_s < math.inf:
                steps = min(steps, max(1, math.ceil((sequence.ready_s - self._at_s) / length_s)))
        return min(steps, (self._kv_tokens - self.kv_used) // len(decoding))

    def _run(self, decoding: list[FakeSequence], steps: int, length_s: float) -> None:
        for sequence in decoding:
            if sequence.first_token_s is None:
                sequence.first_token_s = self._at_s + length_s
            sequence.generated += steps
            sequence.done = sequence.generated >= sequence.target_tokens
        self._at_s += steps * length_s
        if any(s.done for s in decoding):
            for sequence in [s for s in decoding if s.done]:
                self.running.remove(sequence)
                sequence.news.set()
            self._admit(self._at_s)

    def _preempt(self) -> None:
        last = max(self.running, key=lambda s: s.key)
        self.running.remove(last)
        last.ready_s = math.inf
        insort(self.waiting, last, key=lambda s: s.key)
        self.num_preemptions += 1

    def _admit(self, now: float) -> None:
        while self.waiting and len(self.running) < self._max_num_seqs:
            first = self.waiting[0]
            # Room for one token each beyond what is held, or it would be thrown out again.
            needed = first.kv_tokens + len(self.running) + 1
            if self.kv_used + needed > self._kv_tokens:
                return
            del self.waiting[0]
            first.ready_s = now + first.kv_tokens / self._prefill_per_s + first.delay_s
            self.running.append(first)
