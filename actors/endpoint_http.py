"""How a server that speaks OpenAI's API is talked to, and what its errors mean."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import time
from collections.abc import AsyncIterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from actors.protocol import EngineBusy
from actors.vllm_answer import failure
from runtime.errors import ConfigError
from runtime.model_config import EndpointConfig

CONNECT_TIMEOUT_S = 5.0
KEEP_ALIVE_S = 2.0
"""Below the 5 s after which uvicorn closes an idle connection, so that none closes under a call."""
MAX_ERROR_BYTES = 65_536
MAX_EVENT_BYTES = 16_000_000
MAX_RETRY_AFTER_S = 3600.0

_REQUESTS_FAULT = (400, 413, 422)
_LIMITED = 429
_BUSY = (_LIMITED, 503, 529)

NETWORK_ERRORS = (aiohttp.ClientError, OSError, TimeoutError)


def open_session() -> aiohttp.ClientSession:
    """Connections that stay open between calls, as many as there are calls, no total timeout."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        read_bufsize=2**20,
    )


def auth_headers(endpoint: EndpointConfig) -> dict[str, str]:
    """The header with the key, if the endpoint has one.

    Raises:
        ConfigError: the environment variable is not set here.
    """
    if endpoint.api_key_env is None:
        return {}
    key = os.environ.get(endpoint.api_key_env, "")
    if not key:
        raise ConfigError(
            f"endpoint.api_key_env: the environment variable {endpoint.api_key_env} is not set"
        )
    return {"Authorization": f"Bearer {key}"}


def same_origin(a: str, b: str) -> bool:
    """Whether a key for ``a`` may be sent to ``b``."""
    return urlsplit(a)[:2] == urlsplit(b)[:2]


async def failed_response(response: aiohttp.ClientResponse) -> Exception:
    """The exception for a response that is no answer; see ``error_of``."""
    raw = b""
    with contextlib.suppress(*NETWORK_ERRORS):
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            raw = await response.content.read(MAX_ERROR_BYTES)
    return error_of(response.status, response.headers, raw)


def error_of(status: int, headers: Mapping[str, str], raw: bytes) -> Exception:
    """What a status other than 200 means.

    The request's fault (``EngineRefused``): 400, 413, 422. Come back later (``EngineBusy``): 429,
    503. All else is the endpoint's: a wrong key or model name there is no fault of the request.
    """
    told = _error_object(raw)
    message = f"HTTP {status}: {told.get('message') or 'no message'}"
    if status in _REQUESTS_FAULT:
        return failure({**told, "message": message, "code": status})
    if status in _BUSY:
        return EngineBusy(message, _retry_after_s(headers), limited=status == _LIMITED)
    return RuntimeError(message)


def _error_object(raw: bytes) -> dict[str, Any]:
    """OpenAI's ``{"error": {...}}``, or what else servers send: flat, ``detail``, plain text."""
    try:
        body = json.loads(raw)
    except ValueError:
        return {"message": raw[:300].decode(errors="replace").strip()}
    if not isinstance(body, dict):
        return {"message": str(body)[:300]}
    error = body.get("error") or body
    if not isinstance(error, dict):
        return {"message": str(error)[:300]}
    message = error.get("message") or error.get("detail")
    return {"message": str(message)[:1000] if message else None, "param": error.get("param")}


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds, or a date (RFC 9110); ``None`` for none, and for what is not in the future."""
    text = headers.get("Retry-After", "").strip()
    try:
        asked_s = float(text)
    except ValueError:
        try:
            asked_s = parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    if not asked_s > 0:  # not a number, too
        return None
    return min(asked_s, MAX_RETRY_AFTER_S) if math.isfinite(asked_s) else MAX_RETRY_AFTER_S


async def event_lines(content: aiohttp.StreamReader) -> AsyncIterator[str]:
    """The whole lines of an event stream, as many at a time as have arrived."""
    rest = b""
    async for data in content.iter_any():
        whole, newline, after = (rest + data).rpartition(b"\n")
        rest = after
        if newline:
            yield whole.decode(errors="replace")
        if len(rest) > MAX_EVENT_BYTES:
            raise RuntimeError(f"an event of more than {MAX_EVENT_BYTES} bytes")
    if rest:
        yield rest.decode(errors="replace")
