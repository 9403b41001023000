"""What crosses between processes: engine requests, chunks, and telemetry reports.

Every model deployment has one method, ``generate(EngineRequest)``, an async generator of
``EngineChunk``; the last chunk carries ``finish_reason`` and the token counts. A failure of the
engine raises; a request that the engine refuses raises ``EngineRefused``.
"""

from __future__ import annotations

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
