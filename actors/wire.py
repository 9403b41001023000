"""What clients get: OpenAI's completion, chunks and errors, the native answer, and headers."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

from runtime.errors import InfraMindError, Overloaded, RequestError
from runtime.types import Answer, Query

HTTP_STATUS = {
    "invalid_request": 400,
    "invalid_budget": 400,
    "unsupported_parameter": 400,
    "context_length_exceeded": 400,
    "model_not_found": 404,
    "body_too_large": 413,
    "overloaded": 429,
    "cancelled": 499,
    "no_model_answered": 502,
    "deadline_exceeded": 504,
}


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
    return headers


def summary(answer: Answer) -> dict[str, Any]:
    """The ``inframind`` field of a completion or of a stream's last chunk."""
    return {
        "query_id": answer.query_id,
        "status": answer.status,
        "topology": answer.topology,
        "models": list(answer.models),
        "budget_left_ms": round(answer.budget_left_s * 1000),
        "simulated": answer.simulated,
    }


def completion(answer: Answer, model: str) -> dict[str, Any]:
    """``chat.completion``."""
    message = {"role": "assistant", "content": answer.text}
    return {
        "id": answer.query_id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": answer.finish_reason}],
        "usage": usage(answer),
        "inframind": summary(answer),
    }


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

    def __init__(self, query_id: str, model: str) -> None:
        self._base = {
            "id": query_id,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }

    def first(self) -> str:
        """The chunk that opens the assistant's message."""
        return self._chunk({"role": "assistant", "content": ""}, None)

    def delta(self, text: str) -> str:
        return self._chunk({"content": text}, None)

    def last(self, answer: Answer) -> str:
        """The chunk with the finish reason, and what the headers could not tell yet."""
        return self._chunk({}, answer.finish_reason, inframind=summary(answer))

    def usage(self, answer: Answer) -> str:
        """The chunk without choices that ``include_usage`` asks for."""
        return _event({**self._base, "choices": [], "usage": usage(answer)})

    def error(self, answer: Answer) -> str:
        return _event(failure_response(answer)[1])

    def _chunk(self, delta: dict[str, str], finish: str | None, **extra: Any) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _event({**self._base, "choices": [choice], **extra})


def comment(text: str) -> str:
    """A comment line of a stream; clients skip it."""
    return f": {' '.join(text.split())}\n\n"


DONE = "data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


def native_answer(answer: Answer) -> dict[str, Any]:
    """The body of ``POST /v1/queries``: the answer with its whole trace."""
    body = dataclasses.asdict(answer)
    body["budget_left_s"] = answer.budget_left_s
    body["kept_budget"] = answer.kept_budget
    body["models"] = list(answer.models)
    code, message = body.pop("error_code"), body.pop("error_message")
    body["error"] = None
    if code is not None:
        body["error"] = error_object(code, message or code, None, answer.query_id)["error"]
    return body
