"""A server that runs already and speaks OpenAI's API, as a model of the pool.

The replica is a client of it: it passes calls on, measures them, and watches the endpoint. It holds
``max_num_seqs`` calls at most, so that no more than that are ever sent there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any

import aiohttp

from actors.endpoint_http import (
    NETWORK_ERRORS,
    auth_headers,
    event_lines,
    failed_response,
    open_session,
)
from actors.endpoint_metrics import EndpointWatch
from actors.protocol import EngineChunk, EngineRequest, EngineStalled, whole_answer
from actors.reporting import MonitorLink, ReplicaReporter, replica_name
from actors.request_body import request_body
from actors.vllm_answer import EngineAnswer
from runtime.config import ModelConfig
from runtime.edf import engine_priority
from runtime.window import latency_window

STREAM_GAP_S = 0.05
LAST_WORDS_S = 1.0
SAFE_FACTOR = 3.0


class EndpointClient:
    """Sends calls to one endpoint. Retries nothing: that is the workflow's.

    Args:
        model: with ``endpoint``.
        http: the session for the calls, see ``open_session``.
        headers: those that carry the key.
    """

    def __init__(
        self, model: ModelConfig, http: aiohttp.ClientSession, headers: dict[str, str]
    ) -> None:
        assert model.endpoint is not None
        self._endpoint = model.endpoint
        self.served = model.endpoint.model or model.name
        self._http = http
        self._headers = {**headers, "Content-Type": "application/json"}

    async def stream(self, request: EngineRequest) -> AsyncIterator[EngineChunk]:
        """The answer as it comes, in one piece where ``request.stream`` is off.

        Closing this closes the connection, and so ends the call at the endpoint.

        Raises:
            EngineRefused, EngineBusy, RuntimeError: see ``endpoint_http.error_of``.
            ConnectionError: the endpoint cannot be reached, or broke off.
            EngineStalled: no token for ``request.stall_s``.
        """
        answer = EngineAnswer()
        emitted_s = started_s = time.monotonic()
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        async with self._post(request, usage) as response:
            parts = self._parts(response, request, answer, started_s)
            async with contextlib.aclosing(parts) as source:
                async for part in source:
                    with _readable():
                        answer.feed(part, time.monotonic() - started_s)
                    if request.stream and time.monotonic() - emitted_s >= STREAM_GAP_S:
                        emitted_s = time.monotonic()
                        if (chunk := answer.take()) is not None:
                            yield chunk
        yield answer.last_chunk()

    async def whole(self, request: EngineRequest) -> EngineChunk:
        """The answer in one message; raises the same. ``limit_s`` ends nothing here."""
        try:
            async with asyncio.timeout(request.stall_s), self._post(request, {}) as response:
                raw = await response.read()
        except TimeoutError:
            raise EngineStalled(request.stall_s or 0.0) from None
        answer = EngineAnswer()
        with _readable():
            answer.take_event(_as_event(json.loads(raw)))
        return answer.last_chunk()

    async def _parts(
        self,
        response: aiohttp.ClientResponse,
        request: EngineRequest,
        answer: EngineAnswer,
        started_s: float,
    ) -> AsyncIterator[str]:
        """Lines of the stream, until it ends or ``limit_s`` has passed and the answer is cut."""
        stall_s = math.inf if request.stall_s is None else request.stall_s
        limit_s = math.inf if request.limit_s is None else started_s + request.limit_s
        lines = event_lines(response.content)
        while True:
            left_s = limit_s - time.monotonic() if answer.began else math.inf
            wait_s = LAST_WORDS_S if answer.ended else min(stall_s, left_s)
            if wait_s <= 0 and answer.cut():
                return
            try:
                async with asyncio.timeout(None if wait_s == math.inf else wait_s):
                    yield await anext(lines)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if answer.ended or (left_s <= stall_s and answer.cut()):
                    return
                raise EngineStalled(stall_s) from None

    @contextlib.asynccontextmanager
    async def _post(
        self, request: EngineRequest, more: dict[str, Any]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The response to the call if its status is 200; leaving early closes the connection."""
        path = "chat/completions" if request.prompt is None else "completions"
        body = {"model": self.served, **request_body(request), **more}
        if self._endpoint.priority:
            body["priority"] = engine_priority(time.monotonic() + request.remaining_s)
        sent = self._http.post(
            f"{self._endpoint.url}/{path}",
            data=json.dumps(body).encode(),
            headers={**self._headers, "X-Request-Id": request.call_id},
            allow_redirects=False,
        )
        try:
            async with await _unless_stalled(sent, request.stall_s) as response:
                if response.status != 200:
                    raise await failed_response(response)
                yield response
        except aiohttp.ClientConnectionError as error:
            raise ConnectionError(f"{self._endpoint.host}: {_told(error)}") from None
        except aiohttp.ClientError as error:
            raise ConnectionError(f"{self._endpoint.host} broke off: {_told(error)}") from None


async def _unless_stalled(
    sent: Awaitable[aiohttp.ClientResponse], stall_s: float | None
) -> aiohttp.ClientResponse:
    try:
        async with asyncio.timeout(stall_s) as limit:
            return await sent
    except TimeoutError:
        if not limit.expired():  # it was aiohttp's own, for the connection
            raise
        raise EngineStalled(stall_s or 0.0) from None


def _told(error: Exception) -> str:
    return str(error) or type(error).__name__


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """What cannot be read is the endpoint's failure."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RuntimeError(f"the endpoint's answer is not in OpenAI's format: {error!r}") from None


def _as_event(body: dict[str, Any]) -> dict[str, Any]:
    """A whole answer in the form of one event of a stream."""
    return {**body, "choices": [_as_delta(choice) for choice in body.get("choices") or ()]}


def _as_delta(choice: dict[str, Any]) -> dict[str, Any]:
    if "text" in choice:
        return choice
    message = choice["message"]
    calls = [{**call, "index": i} for i, call in enumerate(message.get("tool_calls") or ())]
    return {**choice, "delta": {**message, "tool_calls": calls}}


class EndpointServer:
    """The Serve deployment of one endpoint.

    Args:
        model: ``ModelConfig.model_dump(mode="json")``, with ``endpoint``.
        monitor_name: the actor that gets the reports, in ``namespace``.
        report_period_s: seconds between reports.

    Raises:
        ConfigError: the environment variable with the key is not set on this node.
    """

    def __init__(
        self, model: dict[str, Any], monitor_name: str, namespace: str, report_period_s: float
    ) -> None:
        config = ModelConfig.model_validate(model)
        endpoint = config.watched
        assert endpoint is not None
        headers, http = auth_headers(endpoint), open_session()
        self._client = EndpointClient(config, http, headers)
        self._watch = EndpointWatch(
            endpoint, self._client.served, http, headers, lambda: self._reporter.num_active
        )
        self._reporter = ReplicaReporter(
            model=config.name,
            replica=replica_name(),
            max_num_seqs=config.max_num_seqs,
            period_s=report_period_s,
            load=self._watch.load,
            send=MonitorLink(monitor_name, namespace),
            elsewhere=self._watch.latencies,
            window=latency_window(config.api),
        )
        self._watch.start()
        self._reporter.start()

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineChunk]:
        """Answer ``request``; raises what ``EndpointClient.stream`` raises."""
        chunks = self._reporter.watch(request.call_id, self._run(request))
        async with contextlib.aclosing(chunks) as source:
            async for chunk in source:
                yield chunk

    async def answer(self, request: EngineRequest) -> EngineChunk:
        """The same, whole."""
        return await whole_answer(self.generate(request))

    async def check_health(self) -> None:
        """The replica is well. Another one would find the same endpoint: see ``EndpointWatch``."""

    async def _run(self, request: EngineRequest) -> AsyncIterator[EngineChunk]:
        try:
            if must_stream(request, self._reporter.latencies().tpot_s):
                async with contextlib.aclosing(self._client.stream(request)) as chunks:
                    async for chunk in chunks:
                        self._watch.alive()
                        yield chunk
            else:
                chunk = await self._client.whole(request)
                self._watch.alive()
                yield chunk
        except NETWORK_ERRORS:
            self._watch.suspect()
            raise


def must_stream(request: EngineRequest, tpot_s: float | None) -> bool:
    """Whether ``request`` goes out as a stream; a whole answer costs both sides less.

    It does where the caller streams; where the answer might reach ``limit_s`` and be cut, or
    ``stall_s`` and look hung; and now and then to measure, when the time per token is not known.
    """
    if request.stream or tpot_s is None:
        return True
    bounds = [s for s in (request.limit_s, request.stall_s) if s is not None]
    return bool(bounds) and SAFE_FACTOR * request.max_tokens * tpot_s > min(bounds)
