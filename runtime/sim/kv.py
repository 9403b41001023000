"""KV blocks of sequences that all grow by one token an iteration, without touching each."""

from __future__ import annotations

from runtime.sim.pool import KV_BLOCK_TOKENS

_SIZE = KV_BLOCK_TOKENS
MANY = 2**53
"""More iterations than any run has."""


class GrowingBlocks:
    """Counts sequences by the place in a block at which they stand.

    A sequence of ``base`` holds ``base + count`` tokens after ``count`` iterations, so which of
    them begin a block at an iteration depends on ``base`` modulo the block's size alone.
    """

    def __init__(self) -> None:
        self._places = [0] * _SIZE
        self._whole = 0
        self._num = 0

    def add(self, base: int) -> None:
        self._change(base, 1)

    def remove(self, base: int) -> None:
        self._change(base, -1)

    def blocks(self, count: int) -> int:
        """Blocks in use after ``count`` iterations."""
        turns, rest = divmod(count, _SIZE)
        blocks = self._whole + self._num * (turns + 1)
        if rest == 0:
            return blocks - self._places[0]
        return blocks + sum(self._places[_SIZE + 1 - rest :])

    def iterations_within(self, blocks: int, count: int) -> int:
        """The most iterations after ``count`` that need no more than ``blocks``."""
        if not self._num:
            return MANY
        free = blocks - self.blocks(count)
        if free < 0:
            return 0
        most = free // self._num * _SIZE
        while self.blocks(count + most + 1) <= blocks:
            most += 1
        return most

    def _change(self, base: int, by: int) -> None:
        turns, place = divmod(base, _SIZE)
        self._whole += turns * by
        self._places[place] += by
        self._num += by
