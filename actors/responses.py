"""HTTP responses that several endpoints give."""

from __future__ import annotations

from fastapi import Response
from fastapi.responses import JSONResponse

from actors import wire
from runtime.errors import InfraMindError
from runtime.types import Answer


def refusal(error: InfraMindError) -> Response:
    """A request that did not become a query."""
    status, body, headers = wire.exception_response(error)
    return JSONResponse(body, status_code=status, headers=headers)


def failure(answer: Answer) -> Response:
    """A query without an answer, in OpenAI's form."""
    status, body, headers = wire.failure_response(answer)
    return JSONResponse(body, status_code=status, headers=headers)


def native(answer: Answer, extra: dict[str, str] | None = None) -> Response:
    """The native form: the answer with its whole trace, also when it is an error."""
    status, headers = 200, wire.answer_headers(answer)
    if answer.status == "error":
        status, _, headers = wire.failure_response(answer)
    headers |= extra or {}
    return JSONResponse(wire.native_answer(answer), status_code=status, headers=headers)
