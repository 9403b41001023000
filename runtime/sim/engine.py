"""``FastEngine``: an engine that jumps from change to change, in closed form between.

Its clock is the number of iterations so far: a sequence that decodes ends at a fixed count, so a
heap over it tells who is next. Iterations of one composition form a *run*; K grows by ``b`` in
each, so the first ``n`` of a run take ``n * first_s + growth_s * n (n - 1) / 2``. Nothing costs
more than O(log n) per change, but for a preemption, which looks at everybody.
"""

from __future__ import annotations

import math
from bisect import insort
from heapq import heappop, heappush

from runtime.sim.kv import MANY, GrowingBlocks
from runtime.sim.pool import KV_BLOCK_TOKENS, SimModel
from runtime.sim.sequences import SimSequence, blocks_of


class FastEngine:
    """A ``SimEngine``. See ``runtime.sim.sequences`` for the rules."""

    def __init__(self, model: SimModel, max_num_seqs: int) -> None:
        self.finished: list[SimSequence] = []
        self._spent_s = 0.0
        self.num_preemptions = 0
        self.next_event_s = math.inf
        self._model = model
        self._max_num_seqs = max_num_seqs
        self._blocks = MANY if model.kv_tokens is None else model.kv_tokens // KV_BLOCK_TOKENS
        self._share, self._slow = 1.0, 1.0
        self._waiting: list[SimSequence] = []
        self._reading: list[SimSequence] = []
        self._heap: list[tuple[int, int, SimSequence]] = []
        self._decoding: dict[SimSequence, None] = {}
        self._growing = GrowingBlocks()
        self._base_sum = 0
        self._read_blocks = 0
        self._removed = False
        self._pushes = 0
        self._count = 0  # iterations up to the run that is on
        # The run that is on: iterations in it, its begin and end, its first iteration.
        self._length = 0
        self._at_s = 0.0
        self._end_s = math.inf
        self._first_s = self._growth_s = 0.0
        self._run_factor = 1.0

    @property
    def busy(self) -> bool:
        return self._length > 0

    @property
    def num_running(self) -> int:
        return len(self._decoding) + len(self._reading)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def add(self, sequence: SimSequence, now: float) -> None:
        if blocks_of(sequence.most_tokens) > self._blocks:
            raise ValueError(f"call {sequence.call_id} never fits the KV memory")
        self.advance(now)
        insort(self._waiting, sequence, key=lambda s: s.key)
        if not self._length:
            self._at_s = now
            self._begin()
        elif self.num_running < self._max_num_seqs or self._removed:
            self._cut_short(now)
            self._expect(sequence)

    def remove(self, sequence: SimSequence, now: float) -> None:
        self.advance(now)
        if sequence.done_s is not None or sequence.gone:
            return
        if sequence in self._decoding or sequence in self._reading:
            sequence.generated = self.generated(sequence, now)
            self._removed = True
        else:
            self._waiting.remove(sequence)  # those behind it may fit
        sequence.gone = True
        self._cut_short(now)
        self.next_event_s = self._end_s

    def set_factor(self, share: float, slow: float, now: float) -> None:
        self.advance(now)
        if (share, slow) == (self._share, self._slow):
            return
        frozen = self._first_s == math.inf
        faster = share * slow < self._share * self._slow
        self._share, self._slow = share, slow
        if self._length and frozen:
            self._at_s = now
            self._begin()
        elif self._length:
            self._cut_short(now)
            if faster:
                self.next_event_s = self._end_s

    def advance(self, now: float) -> None:
        while self._end_s <= now:
            self._end_run()

    def generated(self, sequence: SimSequence, now: float) -> int:
        self.advance(now)
        if sequence.ends_at < 0 or sequence.gone or sequence.done_s is not None:
            return sequence.generated
        left = sequence.ends_at - self._count - self._passed(now)
        return sequence.target_tokens - left

    def kv_blocks(self, now: float) -> int:
        self.advance(now)
        return self._read_blocks + self._growing.blocks(self._count + self._passed(now))

    def gpu_s(self, now: float) -> float:
        self.advance(now)
        return self._spent_s + ((now - self._at_s) / self._run_factor if self._length else 0.0)

    # --- the run that is on --------------------------------------------------------------------

    def _end_run(self) -> None:
        """The run is over: who is done leaves, who waits comes, the next run begins."""
        self._spent_s += (self._end_s - self._at_s) / self._run_factor
        self._at_s = self._end_s
        self._count += self._length
        if self._reading:
            self._end_reading()
        heap, count = self._heap, self._count
        while heap and heap[0][0] <= count:
            ends_at, _, sequence = heappop(heap)
            if ends_at == sequence.ends_at:
                self._leave(sequence)
                if not sequence.gone:
                    sequence.generated = sequence.target_tokens
                    sequence.done_s = self._at_s
                    self.finished.append(sequence)
        self._begin()

    def _begin(self) -> None:
        if self._removed:
            self._sweep()
        self._admit()
        if not (self._decoding or self._reading):
            self._length, self._first_s = 0, 0.0
            self._end_s = self.next_event_s = math.inf
            return
        wanted = 1 if self._reading else self._next_end() - self._count
        room = wanted if self._roomy(0, wanted) else self._make_room()
        model, decoding = self._model, len(self._decoding)
        kv_tokens = self._base_sum + decoding * self._count
        first_s = model.a_s + model.c_s * (decoding + len(self._reading))
        first_s += model.d_s_per_1k * kv_tokens / 1e3
        growth_s = quiet_s = 0.0
        if self._reading:
            self._length = 1
            read = self._read(decoding)
            quiet_s = first_s * self._quiet()
            first_s += read / model.prefill_tokens_per_s
        else:
            self._length = min(room, self._next_end() - self._count)  # anew after a preemption
            growth_s = model.d_s_per_1k * decoding / 1e3
        factor = self._run_factor = self._share * self._slow
        self._first_s = first_s * factor
        self._growth_s = growth_s * factor if growth_s else 0.0  # 0 times infinity is no number
        self._end_s = self._at_s + self._time_of(self._length)
        self.next_event_s = self._end_s + quiet_s * factor if quiet_s else self._end_s

    def _time_of(self, iterations: int) -> float:
        """Seconds of the first ``iterations`` of the run."""
        time_s = iterations * self._first_s
        if self._growth_s and iterations > 1:
            time_s += self._growth_s * (iterations * (iterations - 1) / 2)
        return time_s

    def _passed(self, now: float) -> int:
        """Whole iterations of the run by ``now``."""
        if now >= self._end_s:
            return self._length
        spent_s = now - self._at_s
        if spent_s < self._first_s or not self._length:
            return 0
        growth_s = self._growth_s
        if growth_s > 0:
            half = self._first_s - growth_s / 2
            passed = int((math.sqrt(half * half + 2 * growth_s * spent_s) - half) / growth_s)
        else:
            passed = int(spent_s / self._first_s)
        # The root is a float: at an iteration's very end it may be one off.
        while passed < self._length and self._time_of(passed + 1) <= spent_s:
            passed += 1
        while passed > 0 and self._time_of(passed) > spent_s:
            passed -= 1
        return passed

    def _cut_short(self, now: float) -> None:
        """Let the run end with the iteration that is on."""
        length = min(self._length, self._passed(now) + 1)
        if length < self._length:
            self._length = length
            self._end_s = self._at_s + self._time_of(length)

    def _next_end(self) -> int:
        heap = self._heap
        while heap[0][0] != heap[0][2].ends_at:
            heappop(heap)
        return heap[0][0]

    # --- when something ends -------------------------------------------------------------------
    # Only ends are of interest outside. Where a run is short, what follows it is bounded from
    # below: nobody is faster than beside those who run now, until somebody ends or is taken out.

    def _expect(self, sequence: SimSequence) -> None:
        """``sequence`` begins with the next run. It slows the others: their bound still holds."""
        tokens = sequence.target_tokens - sequence.generated
        least_s = self._model.a_s + self._model.c_s * (self.num_running + 1)
        alone_s = tokens * least_s + sequence.to_read / self._model.prefill_tokens_per_s
        longest = max(tokens, self._next_end() - self._count if self._decoding else 0)
        if len(self._waiting) > 1 or not self._roomy(sequence.to_read, longest):
            self.next_event_s = self._end_s
        else:
            soonest_s = self._end_s + alone_s * self._share * self._slow
            self.next_event_s = min(self.next_event_s, soonest_s)

    def _quiet(self) -> int:
        """Iterations after this one, in which prompts are read, until somebody can end."""
        left = min(s.target_tokens - s.generated for s in self._reading) - 1
        if self._decoding:
            left = min(left, self._next_end() - self._count - 1)
        return left if left > 0 and self._roomy(0, left) else 0

    def _roomy(self, tokens: int, iterations: int) -> bool:
        """Whether nobody can be preempted for so long, beside a new prompt of ``tokens``."""
        if self._blocks == MANY:
            return True
        growing = (self.num_running + len(self._waiting)) * (blocks_of(iterations) + 1)
        return self._most_used() + blocks_of(tokens) + growing <= self._blocks

    # --- who runs ------------------------------------------------------------------------------

    def _admit(self) -> None:
        waiting = self._waiting
        if not waiting:
            return
        running = self.num_running
        while waiting and running < self._max_num_seqs:
            first = waiting[0]
            blocks = blocks_of(first.to_read)
            if running and self._short_of(blocks + running + 1):
                return
            del waiting[0]
            running += 1
            first.prefilled = 0
            self._reading.append(first)
            self._read_blocks += blocks

    def _short_of(self, blocks: int) -> bool:
        """Whether there are no more ``blocks`` free."""
        if self._most_used() + blocks <= self._blocks:
            return False
        return self._read_blocks + self._growing.blocks(self._count) + blocks > self._blocks

    def _most_used(self) -> int:
        """The blocks in use, or somewhat more; cheap."""
        decoding = len(self._decoding)
        kv_tokens = self._base_sum + decoding * self._count
        return self._read_blocks + decoding + kv_tokens // KV_BLOCK_TOKENS

    def _read(self, decoding: int) -> int:
        """Give this iteration's prompt tokens to those who read; returns how many."""
        room = max(1, self._model.chunk_tokens - decoding)
        total = 0
        for sequence in self._reading:
            tokens = min(room - total, sequence.to_read - sequence.prefilled)
            sequence.prefilled += tokens
            total += tokens
        return total

    def _end_reading(self) -> None:
        """The iteration is over: those who have read their prompt begin to decode."""
        still: list[SimSequence] = []
        for sequence in self._reading:
            if sequence.prefilled < sequence.to_read or sequence.gone:
                still.append(sequence)
            else:
                self._decode(sequence)
        self._reading = still

    def _decode(self, sequence: SimSequence) -> None:
        """Its prompt is read: it gives a token now and one with every iteration from now on."""
        tokens = sequence.to_read
        self._read_blocks -= blocks_of(tokens)
        if sequence.first_token_s is None:
            sequence.first_token_s = self._at_s
        sequence.base = tokens - self._count
        sequence.generated += 1
        sequence.ends_at = self._count + sequence.target_tokens - sequence.generated
        self._base_sum += sequence.base
        self._decoding[sequence] = None
        self._growing.add(sequence.base)
        self._pushes += 1
        heappush(self._heap, (sequence.ends_at, self._pushes, sequence))

    def _leave(self, sequence: SimSequence) -> None:
        """It decodes no more."""
        del self._decoding[sequence]
        self._base_sum -= sequence.base
        self._growing.remove(sequence.base)
        sequence.ends_at = -1

    def _sweep(self) -> None:
        """Take out who was withdrawn while the last iteration ran."""
        self._removed = False
        for sequence in [s for s in self._decoding if s.gone]:
            self._leave(sequence)
        for sequence in [s for s in self._reading if s.gone]:
            self._reading.remove(sequence)
            self._read_blocks -= blocks_of(sequence.to_read)

    def _make_room(self) -> int:
        """Preempt until the next iteration fits; returns how many iterations fit then.

        After a preemption that is one: others may fit by then.
        """
        most = MANY
        while True:
            free = self._blocks - self._read_blocks
            room = self._growing.iterations_within(free, self._count)
            if room > 0:
                return min(room, most)
            most = 1
            self._preempt(max([*self._decoding, *self._reading], key=lambda s: s.key))

    def _preempt(self, sequence: SimSequence) -> None:
        self.num_preemptions += 1
        if sequence in self._decoding:
            sequence.generated = sequence.target_tokens - (sequence.ends_at - self._count)
            self._leave(sequence)
        else:
            self._reading.remove(sequence)
            self._read_blocks -= blocks_of(sequence.to_read)
        insort(self._waiting, sequence, key=lambda s: s.key)
