"""What crosses between processes: engine requests, chunks, and telemetry reports.

Every model deployment has ``generate(EngineRequest)``, an async generator of ``EngineChunk`` whose
last one carries ``finish_reason`` and the token counts, and ``answer(EngineRequest)``, the same
answer as one ``EngineChunk``: one message instead of a stream is the faster transport. A failure of
the engine raises; a request that the engine refuses raises ``EngineRefused``.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from runtime.types import Message, Sampling, TokenLogprob, ToolCall


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One call. ``remaining_s`` is the budget left when it was sent; the replica anchors it on
    its own clock to make the engine's priority. With ``stream`` off there is one chunk. After
    ``limit_s`` the engine ends the answer where it is (``length``), if it has begun. ``prompt``,
    where it is given, is continued as it is, and there are no ``messages``. An engine that gives
    no token for ``stall_s`` has hung: the call ends with ``EngineStalled``."""

    call_id: str
    messages: tuple[Message, ...]
    max_tokens: int
    remaining_s: float
    sampling: Sampling
    stream: bool
    limit_s: float | None = None
    prompt: str | None = None
    stall_s: float | None = None


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of the tool call number ``index``: its first has id and name, each more text."""

    index: int
    call_id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class EngineChunk:
    """A piece of an answer; the last one has counts and ``finish_reason``: ``stop``, ``length``,
    ``tool_calls`` or ``content_filter``. ``logprobs`` are of the tokens since the last piece."""

    text: str
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    ttft_s: float | None = None
    replica: str | None = None
    tool_calls: tuple[ToolCallDelta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None


class EngineRefused(Exception):
    """The engine found the request at fault: ``context`` (too long) or ``request``."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message


class EngineBusy(Exception):
    """The engine takes no more calls now; it may after ``retry_after_s``, if it told.

    ``limited``: the provider's limit on the rate of requests was reached.
    """

    def __init__(
        self, message: str, retry_after_s: float | None = None, limited: bool = False
    ) -> None:
        super().__init__(message, retry_after_s, limited)
        self.message = message
        self.retry_after_s = retry_after_s
        self.limited = limited


class EngineStalled(RuntimeError):
    """The engine gave the call no token for ``stall_s``."""

    def __init__(self, stall_s: float) -> None:
        super().__init__(stall_s)
        self.stall_s = stall_s

    def __str__(self) -> str:
        return f"no token for {self.stall_s:.1f} s"


async def whole_answer(chunks: AsyncIterator[EngineChunk]) -> EngineChunk:
    """All of ``chunks`` as one; ``RuntimeError`` if they end without a last chunk."""
    got: list[EngineChunk] = []
    async with contextlib.aclosing(chunks) as source:  # type: ignore[type-var]
        async for chunk in source:
            got.append(chunk)
            if chunk.finish_reason is not None:
                break
    return merged(got)


def merged(chunks: Sequence[EngineChunk]) -> EngineChunk:
    """A whole stream as one chunk; ``RuntimeError`` if it has no last chunk."""
    if not chunks or chunks[-1].finish_reason is None:
        raise RuntimeError("the engine ended without a last chunk")
    logprobs = [one for chunk in chunks for one in chunk.logprobs or ()]
    return dataclasses.replace(
        chunks[-1],
        text="".join(chunk.text for chunk in chunks),
        tool_calls=tuple(delta for chunk in chunks for delta in chunk.tool_calls),
        logprobs=tuple(logprobs) if any(c.logprobs is not None for c in chunks) else None,
    )


def whole_calls(deltas: Sequence[ToolCallDelta]) -> tuple[ToolCall, ...]:
    """The tool calls that ``deltas`` spell, in the order of their numbers."""
    calls: dict[int, list[ToolCallDelta]] = {}
    for delta in deltas:
        calls.setdefault(delta.index, []).append(delta)
    return tuple(_whole(index, calls[index]) for index in sorted(calls))


def _whole(index: int, deltas: list[ToolCallDelta]) -> ToolCall:
    call_id = next((d.call_id for d in deltas if d.call_id), f"call-{index}")
    name = "".join(d.name for d in deltas if d.name)
    return ToolCall(call_id, name, "".join(d.arguments for d in deltas))
