"""The HTTP side: checks requests, stamps deadlines, hands queries to workflow actors."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from ray.exceptions import RayActorError, RayError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from actors import wire
from actors.api import (
    OWN_MODEL,
    ChatRequest,
    QueryRequest,
    chat_query,
    check_size,
    native_query,
    parse_body,
)
from actors.names import ActorNames, ActorRef
from actors.pool_actors import ensure_actors
from actors.runner import Delta, Progress, Started, StepStarted
from actors.snapshot import pool_document
from runtime.config import parse_config
from runtime.errors import BodyTooLarge, InfraMindError, NoModelAnswered, RequestError
from runtime.policy import make_policy
from runtime.telemetry import PoolTelemetry
from runtime.types import Answer, Query

KEEP_ALIVE_S = 10.0
RESTART_POLL_S = 0.2
UNHEALTHY_AFTER_S = 30.0

logger = logging.getLogger(__name__)

api = FastAPI(title="InfraMind", docs_url=None, redoc_url=None, openapi_url=None)


class Ingress:
    """One replica of the HTTP side. It makes the version's actors when it starts."""

    def __init__(self, config: dict[str, Any], engines: dict[str, Any], embed: Any) -> None:
        self._config = parse_config(config)
        names = ActorNames(self._config.digest)
        ensure_actors(self._config, engines, embed)
        self._workflows = [ActorRef(names.workflow(i)) for i in range(self._config.workflow_actors)]
        self._turn = itertools.count()
        self._monitor = ActorRef(names.monitor)
        self._snapshot: PoolTelemetry | None = None
        self._received_s = 0.0
        self._started = int(time.time())
        self._task = asyncio.get_event_loop().create_task(self._follow_telemetry())

    # --- endpoints ---------------------------------------------------------------------------

    @api.post("/v1/chat/completions")
    async def chat(self, request: Request) -> Response:
        """OpenAI's chat completion, plain or as server-sent events."""
        arrival_s = time.monotonic()
        try:
            body = parse_body(await self._read(request), ChatRequest)
            query = chat_query(body, request.headers, self._config)
            self._check(query)
        except InfraMindError as error:
            return _refusal(error)
        if body.stream:
            usage = body.stream_options is not None and body.stream_options.include_usage
            return await self._stream(query, body.model, usage, arrival_s)
        answer = await self._run(request, query, arrival_s)
        if answer.status == "error":
            return _failure(answer)
        return JSONResponse(
            wire.completion(answer, body.model), headers=wire.answer_headers(answer)
        )

    @api.post("/v1/queries")
    async def queries(self, request: Request) -> Response:
        """The native form: the answer with its whole trace, also when it is an error."""
        arrival_s = time.monotonic()
        try:
            body = parse_body(await self._read(request), QueryRequest)
            query = native_query(body, request.headers, self._config)
            self._check(query)
        except InfraMindError as error:
            return _refusal(error)
        answer = await self._run(request, query, arrival_s)
        status, headers = 200, wire.answer_headers(answer)
        if answer.status == "error":
            status, _, headers = wire.failure_response(answer)
        return JSONResponse(wire.native_answer(answer), status_code=status, headers=headers)

    @api.get("/v1/models")
    async def models(self) -> Response:
        """The pool's models, and the one that stands for all of them."""
        names = [OWN_MODEL, *(model.name for model in self._config.models)]
        data = [
            {"id": n, "object": "model", "created": self._started, "owned_by": OWN_MODEL}
            for n in names
        ]
        return JSONResponse({"object": "list", "data": data})

    @api.get("/v1/pool")
    async def pool(self) -> Response:
        """The live snapshot."""
        age_s = time.monotonic() - self._received_s if self._snapshot else None
        return JSONResponse(pool_document(self._config, self._snapshot, age_s))

    @api.get("/healthz")
    async def healthz(self) -> Response:
        """200 when at least one model can answer, else 503; a monitor may be away for a while."""
        recent = time.monotonic() - self._received_s < UNHEALTHY_AFTER_S
        models = self._snapshot.models if self._snapshot and recent else {}
        ready = [name for name, load in models.items() if load.replicas]
        status = 200 if ready else 503
        body = {"status": "ok" if ready else "no model is up", "models_up": sorted(ready)}
        return JSONResponse(body, status_code=status)

    # --- queries -----------------------------------------------------------------------------

    async def _read(self, request: Request) -> bytes:
        """The body, up to its bound."""
        most = self._config.limits.max_body_bytes
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise BodyTooLarge(f"the body is larger than {most} bytes")
        return bytes(body)

    def _check(self, query: Query) -> None:
        """What the pool cannot serve at all; raises ``RequestError``."""
        check_size(query, self._config)
        if query.policy is not None:
            try:
                make_policy(self._config, query.policy)
            except InfraMindError as error:
                raise RequestError(error.message, "policy") from None

    def _next_workflow(self) -> ActorRef:
        return self._workflows[next(self._turn) % len(self._workflows)]

    async def _run(self, request: Request, query: Query, arrival_s: float) -> Answer:
        """Run a query; a client that goes away withdraws it."""
        workflow = self._next_workflow()
        running = asyncio.create_task(self._submit(workflow, query, arrival_s))
        gone = asyncio.create_task(_disconnected(request))
        try:
            await asyncio.wait({running, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                _withdraw(workflow, query)
            return await running
        except asyncio.CancelledError:
            _withdraw(workflow, query)
            raise
        finally:
            gone.cancel()

    async def _submit(self, workflow: ActorRef, query: Query, arrival_s: float) -> Answer:
        """Run on the workflow actor; once more, within the budget, if that died."""
        for last in (False, True):
            try:
                spent_s = time.monotonic() - arrival_s
                answer: Answer = await workflow.get().run.remote(query, spent_s)
                return answer
            except (RayActorError, ValueError) as error:
                if last or not await _back(workflow, arrival_s + query.budget_s):
                    return _lost(query, time.monotonic() - arrival_s, error)
        raise AssertionError("unreachable")

    async def _stream(self, query: Query, model: str, usage: bool, arrival_s: float) -> Response:
        """Wait for the plan, so that the headers can tell the topology, then stream."""
        workflow = self._next_workflow()
        items = self._items(workflow, query, arrival_s)
        try:
            first = await anext(items)
        except asyncio.CancelledError:
            _withdraw(workflow, query)
            raise
        if isinstance(first, Answer):
            return _failure(first)
        topology = first.topology if isinstance(first, Started) else None
        events = self._events(query, model, usage, items)
        headers = {**wire.start_headers(query, topology), "cache-control": "no-cache"}
        return EventStream(events, lambda: _withdraw(workflow, query), headers)

    async def _items(
        self, workflow: ActorRef, query: Query, arrival_s: float
    ) -> AsyncIterator[Progress]:
        """The query's progress; ends with an ``Answer``, whatever happens.

        A query whose workflow actor died before it said anything is submitted once more.
        """
        silent = True
        for last in (False, True):
            try:
                method = workflow.get().stream.options(num_returns="streaming")
                async for ref in method.remote(query, time.monotonic() - arrival_s):
                    item = await ref
                    silent = False
                    yield item
                return
            except (RayError, ValueError) as error:
                again = silent and not last
                if not again or not await _back(workflow, arrival_s + query.budget_s):
                    yield _lost(query, time.monotonic() - arrival_s, error)
                    return

    async def _events(
        self, query: Query, model: str, usage: bool, items: AsyncIterator[Progress]
    ) -> AsyncIterator[str]:
        writer = wire.ChunkWriter(query.query_id, model)
        sent_text = False
        yield writer.first()
        async for item in _with_keep_alive(items):
            if item is None:
                yield wire.comment("still working")
            elif isinstance(item, StepStarted):
                yield wire.comment(
                    f"step {item.step_id}: {item.role} on {item.model}, {item.strategy}"
                )
            elif isinstance(item, Delta):
                sent_text = True
                yield writer.delta(item.text)
            elif isinstance(item, Answer):
                for event in _closing(writer, item, sent_text, usage):
                    yield event

    async def _follow_telemetry(self) -> None:
        """Keep the newest snapshot; being asked also tells the monitor that this app lives."""
        while True:
            try:
                version = self._snapshot.version if self._snapshot else -1
                wait = self._monitor.get().wait.remote(version, 5.0, ingress=True)
                self._snapshot = await wait
                self._received_s = time.monotonic()
            except (RayError, ValueError):
                self._monitor.forget()
            await asyncio.sleep(0.2)


class EventStream(StreamingResponse):
    """Server-sent events; ``on_end`` runs however it ends, also before the first event."""

    def __init__(
        self, events: AsyncIterator[str], on_end: Callable[[], None], headers: dict[str, str]
    ) -> None:
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


@api.exception_handler(HTTPException)
async def _http_error(_: Request, error: HTTPException) -> Response:
    """Unknown paths and methods, in the form of every other error."""
    body = wire.error_object("invalid_request", str(error.detail))
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


@api.exception_handler(Exception)
async def _unexpected(_: Request, error: Exception) -> Response:
    """A fault of ours, in the form of every other error."""
    logger.error("unexpected error", exc_info=error)
    body = wire.error_object("internal_error", f"internal error: {type(error).__name__}")
    return JSONResponse(body, status_code=500)


def _closing(writer: wire.ChunkWriter, answer: Answer, sent_text: bool, usage: bool) -> list[str]:
    """The last events of a stream."""
    if answer.status == "error":
        return [writer.error(answer), wire.DONE]
    events = [] if sent_text or not answer.text else [writer.delta(answer.text)]
    events.append(writer.last(answer))
    if usage:
        events.append(writer.usage(answer))
    return [*events, wire.DONE]


async def _with_keep_alive(items: AsyncIterator[Progress]) -> AsyncIterator[Progress | None]:
    """``items``, with a ``None`` whenever there was none for ``KEEP_ALIVE_S``."""
    pending: asyncio.Task[Progress] | None = None
    try:
        while True:
            pending = pending or asyncio.ensure_future(anext(items))  # type: ignore[arg-type]
            done, _ = await asyncio.wait({pending}, timeout=KEEP_ALIVE_S)
            if not done:
                yield None
                continue
            try:
                item = pending.result()
            except StopAsyncIteration:
                return
            pending = None
            yield item
    finally:
        if pending is not None:
            pending.cancel()


async def _disconnected(request: Request) -> None:
    """Returns when the client has gone."""
    with contextlib.suppress(ClientDisconnect):
        while not await request.is_disconnected():
            await asyncio.sleep(0.25)


async def _back(workflow: ActorRef, deadline_s: float) -> bool:
    """Wait until a workflow actor that died runs again; ``False`` if the deadline comes first."""
    while time.monotonic() < deadline_s:
        workflow.forget()
        try:
            await workflow.get().ready.remote()
            return True
        except (RayActorError, ValueError):
            await asyncio.sleep(RESTART_POLL_S)
    return False


def _withdraw(workflow: ActorRef, query: Query) -> None:
    with contextlib.suppress(RayError, ValueError):
        workflow.get().cancel.remote(query.query_id)


def _lost(query: Query, spent_s: float, error: BaseException) -> Answer:
    """The outcome of a query whose workflow actor died."""
    from runtime.outcome import Progress as Facts
    from runtime.outcome import build_answer

    lost = NoModelAnswered(f"the workflow actor was lost: {type(error).__name__}")
    return build_answer(Facts(query, 0.0, None, (), ""), spent_s, "error", None, "", lost)


def _refusal(error: InfraMindError) -> Response:
    status, body, headers = wire.exception_response(error)
    return JSONResponse(body, status_code=status, headers=headers)


def _failure(answer: Answer) -> Response:
    status, body, headers = wire.failure_response(answer)
    return JSONResponse(body, status_code=status, headers=headers)
