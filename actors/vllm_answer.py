"""Reads what an OpenAI layer answers: the events of a chat or of a text completion."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from actors.protocol import EngineChunk, EngineRefused, ToolCallDelta, merged
from runtime.types import TokenLogprob

ENDINGS = ("stop", "length", "tool_calls", "content_filter")


class EngineAnswer:
    """Collects one answer from its events and gives it away in pieces."""

    def __init__(self) -> None:
        self.ended = False
        self._finish_reason: str | None = None
        self._began = False
        self._pending: list[EngineChunk] = []
        self._ttft_s: float | None = None
        self._usage: dict[str, Any] = {}

    def feed(self, part: Any, after_s: float) -> None:
        """Take one part that came ``after_s`` seconds after the start.

        Raises:
            EngineRefused, RuntimeError: the part is an error, see ``failure``.
        """
        if not isinstance(part, str):
            raise failure(part.error.model_dump())
        for event in events(part):
            if self._ttft_s is None:
                self._ttft_s = after_s
            self.take_event(event)

    def take_event(self, event: dict[str, Any]) -> None:
        """Take one event; raises like ``feed``."""
        if error := event.get("error"):
            raise failure(error if isinstance(error, dict) else {"message": str(error)})
        self._usage = event.get("usage") or self._usage
        for choice in event.get("choices") or ():
            piece = _piece(choice)
            self._began = self._began or bool(piece.text or piece.tool_calls)
            self._pending.append(piece)
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            self.ended = self._finish_reason is not None

    @property
    def began(self) -> bool:
        """Whether there is anything that could be given away."""
        return self._began

    def cut(self) -> bool:
        """End the answer where it is; ``False`` while there is nothing to end."""
        if self._began and self._finish_reason is None:
            self._finish_reason = "length"
        return self._began

    def take(self) -> EngineChunk | None:
        """What came since the last ``take``, if anything did."""
        chunk = merged([*self._pending, EngineChunk("", "stop")])
        self._pending.clear()
        if not (chunk.text or chunk.tool_calls or chunk.logprobs):
            return None
        return EngineChunk(chunk.text, tool_calls=chunk.tool_calls, logprobs=chunk.logprobs)

    def last_chunk(self) -> EngineChunk:
        """The end of the answer; raises RuntimeError when the engine did not reach one."""
        if self._finish_reason not in ENDINGS:
            raise RuntimeError(f"the engine ended the call: {self._finish_reason}")
        end = EngineChunk(
            text="",
            finish_reason=self._finish_reason,
            prompt_tokens=_count(self._usage.get("prompt_tokens")),
            completion_tokens=_count(self._usage.get("completion_tokens")),
            ttft_s=self._ttft_s,
        )
        return merged([*self._pending, end])


def events(part: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in a piece of an event stream."""
    for line in part.split("\n"):  # not splitlines: JSON may hold other ends of lines as they are
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data != "[DONE]":
            yield json.loads(data)


def failure(error: dict[str, Any]) -> Exception:
    """The exception for an OpenAI error object: the request's fault (4xx), or the engine's."""
    message = str(error.get("message", "unknown error"))
    code = error.get("code")
    if not (isinstance(code, int) and 400 <= code < 500):
        return RuntimeError(message)
    told = any(sign in message for sign in ("context length", "max_model_len"))
    too_long = told or error.get("param") in ("input_tokens", "input_text")
    return EngineRefused("context" if too_long else "request", message)


def _piece(choice: dict[str, Any]) -> EngineChunk:
    logprobs = choice.get("logprobs")
    if "text" in choice:
        told = None if logprobs is None else tuple(_of_text(logprobs))
        return EngineChunk(_text(choice["text"]), logprobs=told)
    delta = choice["delta"]
    return EngineChunk(
        _text(delta.get("content")),
        tool_calls=tuple(_tool_call(call) for call in delta.get("tool_calls") or ()),
        logprobs=None if logprobs is None else tuple(_of_chat(logprobs)),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str | None):
        raise TypeError(f"a text is {value!r:.60}")
    return value or ""


def _count(value: Any) -> int | None:
    """A number of tokens; what is none is unknown."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _tool_call(call: dict[str, Any]) -> ToolCallDelta:
    function = call.get("function") or {}
    name, arguments = function.get("name"), function.get("arguments") or ""
    return ToolCallDelta(call.get("index", 0), call.get("id"), name or None, arguments)


def _of_chat(logprobs: dict[str, Any]) -> Iterator[TokenLogprob]:
    for one in logprobs.get("content") or ():
        top = tuple((t["token"], t["logprob"]) for t in one.get("top_logprobs") or ())
        yield TokenLogprob(one["token"], one["logprob"], top)


def _of_text(logprobs: dict[str, Any]) -> Iterator[TokenLogprob]:
    tokens = logprobs["tokens"]
    tops = logprobs.get("top_logprobs") or [None] * len(tokens)
    for token, logprob, top in zip(tokens, logprobs["token_logprobs"], tops, strict=True):
        yield TokenLogprob(token, logprob or 0.0, tuple((top or {}).items()))
