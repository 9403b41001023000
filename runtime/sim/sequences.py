"""What goes through an engine, and what every engine of the simulator can do.

Both engines keep the same rules, so that they differ in nothing but how they count time:

- An iteration is never interrupted. What comes, goes or changes speed meanwhile counts from the
  next one on. An idle engine begins at once.
- Who waits is admitted between iterations, the lowest ``key`` first and only the first is looked
  at, while fewer than ``max_num_seqs`` run and its prompt and one more block for everybody fit.
- While a prompt is read, an iteration reads up to ``chunk_tokens`` less one for each sequence that
  decodes, prompts in the order of admission, and takes the tokens over the prefill rate longer. The
  iteration that ends a prompt gives its first token.
- KV memory is counted in whole blocks. A prompt's are taken at admission. Where the next iteration
  finds none, the running sequence with the greatest ``key`` goes back to waiting; its prompt and
  what it wrote are read again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from runtime.sim.pool import KV_BLOCK_TOKENS

Key = tuple[float, int]


@dataclass(slots=True, eq=False)
class SimSequence:
    """One call in an engine. ``key`` orders who waits and who is preempted.

    ``generated`` is up to date only while the sequence does not decode; ask the engine.
    """

    call_id: str
    key: Key
    prompt_tokens: int
    target_tokens: int
    generated: int = 0
    prefilled: int = 0
    first_token_s: float | None = None
    done_s: float | None = None
    gone: bool = False  # withdrawn
    ends_at: int = -1  # the iteration that ends it, while it decodes
    base: int = 0  # its KV tokens less the iterations so far, while it decodes

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.target_tokens < 1:
            raise ValueError(f"call {self.call_id}: a call reads and writes at least one token")

    @property
    def to_read(self) -> int:
        """Tokens that must be read before it decodes (again)."""
        return self.prompt_tokens + self.generated

    @property
    def most_tokens(self) -> int:
        """KV tokens that it will hold at its end; the last token is never stored."""
        return self.prompt_tokens + self.target_tokens - 1


def blocks_of(tokens: int) -> int:
    """KV blocks that hold ``tokens``."""
    return -(-tokens // KV_BLOCK_TOKENS)


class SimEngine(Protocol):
    """One replica's engine in virtual time. Times never go back from call to call.

    ``finished`` collects sequences with ``done_s`` set, in order; the caller empties it.
    Nothing ends before ``next_event_s``; call ``advance`` then, and it may be later than before.
    """

    finished: list[SimSequence]
    num_preemptions: int

    @property
    def next_event_s(self) -> float: ...
    @property
    def busy(self) -> bool: ...
    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...

    def add(self, sequence: SimSequence, now: float) -> None:
        """Take a sequence; raises ``ValueError`` if it can never fit the KV memory."""
        ...

    def remove(self, sequence: SimSequence, now: float) -> None:
        """Withdraw a sequence, wherever it is; one that has left is ignored."""
        ...

    def set_factor(self, share: float, slow: float, now: float) -> None:
        """Iterations take ``share * slow`` times as long; ``share`` is that of the GPU."""
        ...

    def advance(self, now: float) -> None:
        """Everything that happens up to ``now``."""
        ...

    def generated(self, sequence: SimSequence, now: float) -> int:
        """Tokens that the sequence has given by ``now``."""
        ...

    def kv_blocks(self, now: float) -> int:
        """KV blocks in use at ``now``, which is not before the last call."""
        ...

    def gpu_s(self, now: float) -> float:
        """GPU seconds spent by ``now``, as if it had been alone there and at full speed."""
        ...
