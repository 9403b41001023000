"""``ExactEngine``: every iteration by itself, every sequence in it by itself. Slow, and plain.

It is what ``FastEngine`` is held against. See ``runtime.sim.sequences`` for the rules.
"""

from __future__ import annotations

import math

from runtime.sim.pool import KV_BLOCK_TOKENS, SimModel
from runtime.sim.sequences import SimSequence, blocks_of


class ExactEngine:
    """A ``SimEngine`` with one event per iteration."""

    def __init__(self, model: SimModel, max_num_seqs: int) -> None:
        self.finished: list[SimSequence] = []
        self._spent_s = 0.0
        self.num_preemptions = 0
        self._model = model
        self._max_num_seqs = max_num_seqs
        self._kv_blocks = None if model.kv_tokens is None else model.kv_tokens // KV_BLOCK_TOKENS
        self._share, self._slow = 1.0, 1.0
        self._waiting: list[SimSequence] = []
        self._running: list[SimSequence] = []
        self._held: dict[SimSequence, int] = {}  # KV tokens of those who run
        self._began_s = 0.0
        self._ends_s = math.inf
        self._iteration_factor = 1.0

    @property
    def next_event_s(self) -> float:
        return self._ends_s

    @property
    def busy(self) -> bool:
        return bool(self._running)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def add(self, sequence: SimSequence, now: float) -> None:
        if self._kv_blocks is not None and blocks_of(sequence.most_tokens) > self._kv_blocks:
            raise ValueError(f"call {sequence.call_id} never fits the KV memory")
        self.advance(now)
        self._wait(sequence)
        if not self._running:
            self._begin(now)

    def remove(self, sequence: SimSequence, now: float) -> None:
        self.advance(now)
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        sequence.gone = sequence.done_s is None

    def set_factor(self, share: float, slow: float, now: float) -> None:
        self.advance(now)
        frozen = bool(self._running) and self._ends_s == math.inf
        changed = (share, slow) != (self._share, self._slow)
        self._share, self._slow = share, slow
        if changed and frozen:
            self._begin(now)

    def advance(self, now: float) -> None:
        while self._ends_s <= now:
            self._end(self._ends_s)

    def generated(self, sequence: SimSequence, now: float) -> int:
        self.advance(now)
        return sequence.generated

    def kv_blocks(self, now: float) -> int:
        self.advance(now)
        return self._used()

    def gpu_s(self, now: float) -> float:
        self.advance(now)
        on_s = (now - self._began_s) / self._iteration_factor if self._running else 0.0
        return self._spent_s + on_s

    def _used(self) -> int:
        return sum(blocks_of(tokens) for tokens in self._held.values())

    def _end(self, now: float) -> None:
        """Every running sequence gives its token, unless it still reads."""
        self._spent_s += (now - self._began_s) / self._iteration_factor
        for sequence in list(self._running):
            if self._decodes(sequence):
                self._held[sequence] += 1
            elif sequence.prefilled < sequence.to_read:
                continue
            if not sequence.gone:
                self._give_token(sequence, now)
        for sequence in [s for s in self._running if s.gone]:
            self._stop(sequence)
        self._begin(now)

    def _give_token(self, sequence: SimSequence, now: float) -> None:
        sequence.generated += 1
        sequence.ends_at = 0  # it decodes from now on
        if sequence.first_token_s is None:
            sequence.first_token_s = now
        if sequence.generated == sequence.target_tokens:
            sequence.done_s = now
            self._stop(sequence)
            self.finished.append(sequence)

    def _begin(self, now: float) -> None:
        self._admit()
        if not self._running:
            self._ends_s = math.inf
            return
        self._preempt()
        model, decoding = self._model, [s for s in self._running if self._decodes(s)]
        kv_tokens = sum(self._held[s] for s in decoding)
        length_s = model.a_s + model.c_s * len(self._running) + model.d_s_per_1k * kv_tokens / 1e3
        room = max(1, model.chunk_tokens - len(decoding))
        for sequence in self._running:
            if not self._decodes(sequence):
                tokens = min(room, sequence.to_read - sequence.prefilled)
                sequence.prefilled += tokens
                room -= tokens
                length_s += tokens / model.prefill_tokens_per_s
        self._iteration_factor = self._share * self._slow
        self._began_s = now
        self._ends_s = now + length_s * self._share * self._slow

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_num_seqs:
            first = self._waiting[0]
            spare = len(self._running) + 1
            if self._running and self._over(blocks_of(first.to_read) + spare):
                return
            del self._waiting[0]
            first.prefilled, first.ends_at = 0, -1
            self._running.append(first)
            self._held[first] = first.to_read

    def _preempt(self) -> None:
        while self._over(sum(self._held[s] % KV_BLOCK_TOKENS == 0 for s in self._decoding())):
            last = max(self._running, key=lambda s: s.key)
            self.num_preemptions += 1
            self._stop(last)
            self._wait(last)

    def _decoding(self) -> list[SimSequence]:
        return [s for s in self._running if self._decodes(s)]

    def _over(self, more_blocks: int) -> bool:
        return self._kv_blocks is not None and self._used() + more_blocks > self._kv_blocks

    def _decodes(self, sequence: SimSequence) -> bool:
        return sequence.ends_at >= 0

    def _stop(self, sequence: SimSequence) -> None:
        self._running.remove(sequence)
        del self._held[sequence]
        sequence.ends_at = -1

    def _wait(self, sequence: SimSequence) -> None:
        self._waiting.append(sequence)
        self._waiting.sort(key=lambda s: s.key)
