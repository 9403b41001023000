"""What crosses between processes: engine requests, chunks, and telemetry reports.

Every model deployment has ``generate(EngineRequest)``, an async generator of ``EngineChunk`` whose
last one carries ``finish_reason`` and the token counts, and ``answer(EngineRequest)``, the same
answer as one ``EngineChunk``: one message instead of a stream is the faster transport. A failure of
the engine raises; a request that the engine refuses raises ``EngineRefused``.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator
from dataclasses import dataclass

from runtime.types import Message, Sampling


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One call. ``remaining_s`` is the budget left when it was sent; the replica anchors it on
    its own clock to make the engine's priority. With ``stream`` off there is one chunk. After
    ``limit_s`` the engine ends the answer where it is (``length``), if it has begun."""

    call_id: str
    messages: tuple[Message, ...]
    max_tokens: int
    remaining_s: float
    sampling: Sampling
    stream: bool
    limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class EngineChunk:
    """A piece of text; the last one has ``finish_reason`` (``stop`` or ``length``) and counts."""

    text: str
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    ttft_s: float | None = None
    replica: str | None = None


class EngineRefused(Exception):
    """The engine found the request at fault: ``context`` (too long) or ``request``."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message


async def whole_answer(chunks: AsyncIterator[EngineChunk]) -> EngineChunk:
    """All of ``chunks`` as one; ``RuntimeError`` if they end without a last chunk."""
    texts: list[str] = []
    async with contextlib.aclosing(chunks) as source:  # type: ignore[type-var]
        async for chunk in source:
            texts.append(chunk.text)
            if chunk.finish_reason is not None:
                return dataclasses.replace(chunk, text="".join(texts))
    raise RuntimeError("the engine ended without a last chunk")
