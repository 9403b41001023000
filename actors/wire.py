"""What clients get: OpenAI's completion, chunks and errors, the native answer, and headers."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

from actors.protocol import ToolCallDelta
from actors.runner import Delta
from runtime.errors import InfraMindError, Overloaded, RequestError
from runtime.types import Answer, Choice, Query, StepTrace, TokenLogprob, ToolCall, Usage

HTTP_STATUS = {
    "invalid_request": 400,
    "invalid_budget": 400,
    "unsupported_parameter": 400,
    "context_length_exceeded": 400,
    "model_not_found": 404,
    "query_not_found": 404,
    "body_too_large": 413,
    "overloaded": 429,
    "money_exhausted": 402,
    "cancelled": 499,
    "no_model_answered": 502,
    "unavailable": 503,
    "model_unavailable": 503,
    "deadline_exceeded": 504,
}


FINISH_REASONS = ("stop", "length", "tool_calls", "content_filter")


def error_object(
    code: str, message: str, param: str | None = None, query_id: str | None = None
) -> dict[str, Any]:
    """OpenAI's error object."""
    status = HTTP_STATUS.get(code, 500)
    kind = "invalid_request_error" if status < 500 else "server_error"
    if status == 429:
        kind = "rate_limit_error"
    body: dict[str, Any] = {"message": message, "type": kind, "param": param, "code": code}
    if query_id is not None:
        body["query_id"] = query_id
    return {"error": body}


def exception_response(error: InfraMindError) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers for an error that was found before there was a query."""
    param = error.param if isinstance(error, RequestError) else None
    headers = {}
    if isinstance(error, Overloaded):
        headers["retry-after"] = retry_after(error.retry_after_s)
    status = HTTP_STATUS.get(error.code, 500)
    return status, error_object(error.code, error.message, param), headers


def failure_response(answer: Answer) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers for a query that ended without an answer."""
    code = answer.error_code or "internal_error"
    body = error_object(code, answer.error_message or code, None, answer.query_id)
    headers = answer_headers(answer)
    if answer.retry_after_s is not None:
        headers["retry-after"] = retry_after(answer.retry_after_s)
    return HTTP_STATUS.get(code, 500), body, headers


def retry_after(seconds: float) -> str:
    """Whole seconds, at least one."""
    return str(max(1, round(seconds)))


def start_headers(query: Query, topology: str | None) -> dict[str, str]:
    """What is known when a stream begins."""
    headers = {
        "x-inframind-query-id": query.query_id,
        "x-inframind-budget-ms": f"{query.budget_s * 1000:.0f}",
    }
    if topology is not None:
        headers["x-inframind-topology"] = topology
    return headers


def answer_headers(answer: Answer) -> dict[str, str]:
    """What is known when an answer is whole."""
    headers = {
        "x-inframind-query-id": answer.query_id,
        "x-inframind-status": answer.status,
        "x-inframind-models": ",".join(answer.models),
        "x-inframind-budget-ms": f"{answer.budget_s * 1000:.0f}",
        "x-inframind-budget-left-ms": f"{answer.budget_left_s * 1000:.0f}",
    }
    if answer.topology is not None:
        headers["x-inframind-topology"] = answer.topology
    if answer.simulated:
        headers["x-inframind-simulated"] = "true"
    if answer.usage.cost_usd is not None:
        headers["x-inframind-cost-usd"] = plain_number(answer.usage.cost_usd)
    return headers


def plain_number(value: float) -> str:
    """``value`` without an exponent."""
    return f"{value:.12f}".rstrip("0").rstrip(".")


def summary(answer: Answer) -> dict[str, Any]:
    """The ``inframind`` field of a completion or of a stream's last chunk."""
    return {
        "query_id": answer.query_id,
        "status": answer.status,
        "topology": answer.topology,
        "models": list(answer.models),
        "budget_left_ms": round(answer.budget_left_s * 1000),
        "simulated": answer.simulated,
        **({} if answer.usage.cost_usd is None else {"cost_usd": answer.usage.cost_usd}),
    }


def completion(answer: Answer, model: str) -> dict[str, Any]:
    """``chat.completion``."""
    return {
        "id": answer.query_id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [_choice(choice) for choice in answer.choices],
        "usage": usage(answer),
        "inframind": summary(answer),
    }


def _choice(choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text}
    if choice.tool_calls:
        message["content"] = choice.text or None
        message["tool_calls"] = [_tool_call(call) for call in choice.tool_calls]
    return {
        "index": choice.index,
        "message": message,
        "logprobs": _logprobs(choice.logprobs),
        "finish_reason": finish_reason(choice.finish_reason),
    }


def _tool_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def finish_reason(reason: str) -> str:
    """``reason``, or ``stop`` for what an engine may say and OpenAI's clients do not know."""
    return reason if reason in FINISH_REASONS else "stop"


def _logprobs(logprobs: tuple[TokenLogprob, ...] | None) -> dict[str, Any] | None:
    if logprobs is None:
        return None
    content = [
        {**_token(one.token, one.logprob), "top_logprobs": [_token(*top) for top in one.top]}
        for one in logprobs
    ]
    return {"content": content, "refusal": None}


def _token(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode("utf-8", "replace"))}


def usage(answer: Answer) -> dict[str, int]:
    """Tokens over all steps."""
    used = answer.usage
    return {
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.completion_tokens,
        "total_tokens": used.prompt_tokens + used.completion_tokens,
    }


class ChunkWriter:
    """Server-sent events of one ``chat.completion.chunk`` stream."""

    def __init__(self, query: Query, model: str) -> None:
        self._n = query.n
        self._base = {
            "id": query.query_id,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }

    def first(self) -> list[str]:
        """The chunks that open the assistant's messages."""
        return [self._chunk(i, {"role": "assistant", "content": ""}) for i in range(self._n)]

    def delta(self, piece: Delta) -> str:
        """A piece of one answer."""
        delta: dict[str, Any] = {}
        if piece.text or not piece.tool_calls:
            delta["content"] = piece.text
        if piece.tool_calls:
            delta["tool_calls"] = [_tool_call_delta(call) for call in piece.tool_calls]
        extra = {} if piece.logprobs is None else {"logprobs": _logprobs(piece.logprobs)}
        return self._chunk(piece.choice, delta, **extra)

    def last(self, answer: Answer) -> list[str]:
        """The chunks with the finish reasons; the very last has what no header could tell yet."""
        reasons = finish_reasons(answer, self._n)
        chunks = [self._chunk(i, {}, reason) for i, reason in enumerate(reasons[:-1])]
        return [*chunks, self._chunk(self._n - 1, {}, reasons[-1], inframind=summary(answer))]

    def usage(self, answer: Answer) -> str:
        """The chunk without choices that ``include_usage`` asks for."""
        return event({**self._base, "choices": [], "usage": usage(answer)})

    def error(self, answer: Answer) -> str:
        return event(failure_response(answer)[1])

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        finish: str | None = None,
        logprobs: dict[str, Any] | None = None,
        **extra: Any,
    ) -> str:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return event({**self._base, "choices": [choice], **extra})


def _tool_call_delta(call: ToolCallDelta) -> dict[str, Any]:
    function: dict[str, Any] = {"arguments": call.arguments}
    delta: dict[str, Any] = {"index": call.index, "function": function}
    if call.name is not None:
        delta |= {"id": call.call_id, "type": "function"}
        function["name"] = call.name
    return delta


def finish_reasons(answer: Answer, n: int) -> list[str]:
    """Of each of ``n`` answers; one that is missing was cut short."""
    reasons = {choice.index: choice.finish_reason for choice in answer.choices}
    return [finish_reason(reasons.get(i, "length")) for i in range(n)]


def comment(text: str) -> str:
    """A comment line of a stream; clients skip it."""
    return f": {' '.join(text.split())}\n\n"


DONE = "data: [DONE]\n\n"


def event(data: dict[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


# `dataclasses.asdict` copies all the way down, and takes ten times as long.
_ANSWER_FIELDS = tuple(f.name for f in dataclasses.fields(Answer) if f.name != "choices")
_STEP_FIELDS = tuple(f.name for f in dataclasses.fields(StepTrace))
_USAGE_FIELDS = tuple(f.name for f in dataclasses.fields(Usage))


def _fields(item: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(item, name) for name in names}


def native_answer(answer: Answer) -> dict[str, Any]:
    """The body of ``POST /v1/queries``: the answer with its whole trace."""
    body = _fields(answer, _ANSWER_FIELDS)
    body["steps"] = [_fields(step, _STEP_FIELDS) for step in answer.steps]
    body["usage"] = _fields(answer.usage, _USAGE_FIELDS)
    body["budget_left_s"] = answer.budget_left_s
    body["kept_budget"] = answer.kept_budget
    body["models"] = list(answer.models)
    code, message = body.pop("error_code"), body.pop("error_message")
    body["error"] = None
    if code is not None:
        body["error"] = error_object(code, message or code, None, answer.query_id)["error"]
    return body
