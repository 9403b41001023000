"""What clients of ``/v1/completions`` get: OpenAI's text completion and its chunks."""

from __future__ import annotations

import time
from typing import Any

from actors import wire
from actors.runner import Delta
from runtime.types import Answer, Query, TokenLogprob


def text_completion(answer: Answer, model: str, echo: str) -> dict[str, Any]:
    """``text_completion``; ``echo`` is the prompt where it was asked for, else empty."""
    choices = [
        {
            "index": choice.index,
            "text": echo + choice.text,
            "logprobs": logprobs(choice.logprobs, 0),
            "finish_reason": wire.finish_reason(choice.finish_reason),
        }
        for choice in answer.choices
    ]
    return {
        "id": answer.query_id,
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": choices,
        "usage": wire.usage(answer),
        "inframind": wire.summary(answer),
    }


def logprobs(given: tuple[TokenLogprob, ...] | None, offset: int) -> dict[str, Any] | None:
    """The older form of log-probabilities; ``offset`` is where the first token begins."""
    if given is None:
        return None
    offsets = []
    for one in given:
        offsets.append(offset)
        offset += len(one.token)
    return {
        "tokens": [one.token for one in given],
        "token_logprobs": [one.logprob for one in given],
        "top_logprobs": [dict(one.top) for one in given],
        "text_offset": offsets,
    }


class TextChunkWriter(wire.ChunkWriter):
    """Server-sent events of one ``text_completion`` stream."""

    def __init__(self, query: Query, model: str, echo: str) -> None:
        super().__init__(query, model)
        self._base["object"] = "text_completion"
        self._echo = echo
        self._offsets = [0] * query.n

    def first(self) -> list[str]:
        """The prompt, where it was asked for."""
        return [self._text(i, self._echo) for i in range(self._n) if self._echo]

    def delta(self, piece: Delta) -> str:
        """A piece of one answer."""
        told = logprobs(piece.logprobs, self._offsets[piece.choice])
        self._offsets[piece.choice] += sum(len(one.token) for one in piece.logprobs or ())
        return self._text(piece.choice, piece.text, logprobs=told)

    def last(self, answer: Answer) -> list[str]:
        """The chunks with the finish reasons."""
        reasons = wire.finish_reasons(answer, self._n)
        chunks = [self._text(i, "", reason) for i, reason in enumerate(reasons[:-1])]
        extra = {"inframind": wire.summary(answer)}
        return [*chunks, self._text(self._n - 1, "", reasons[-1], **extra)]

    def _text(
        self,
        index: int,
        text: str,
        finish: str | None = None,
        logprobs: dict[str, Any] | None = None,
        **extra: Any,
    ) -> str:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
        return wire.event({**self._base, "choices": [choice], **extra})
