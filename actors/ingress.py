"""The HTTP side: checks requests, stamps deadlines, hands queries over, writes answers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from ray.exceptions import RayError
from starlette.exceptions import HTTPException

from actors import embedding_api, wire
from actors.api import OWN_MODEL, chat_query, check_size, native_query, parse_body, text_query
from actors.bodies import (
    ChatRequest,
    EmbeddingRequest,
    FeedbackRequest,
    QueryRequest,
    TextRequest,
)
from actors.event_stream import EventStream, disconnected, with_keep_alive
from actors.feedback import Feedback
from actors.long_queries import LongQueries
from actors.names import ActorNames, ActorRef
from actors.pool_actors import ensure_actors, missing_actors
from actors.prefer import preferences
from actors.responses import failure, native, refusal
from actors.runner import Delta, Progress, Started, StepStarted
from actors.snapshot import pool_document
from actors.submission import Drivers
from actors.text_wire import TextChunkWriter, text_completion
from actors.workflow_actor import MONITOR_SILENT_S, WorkflowActor
from runtime.config import parse_config
from runtime.errors import BodyTooLarge, InfraMindError, RequestError, UnknownModel
from runtime.telemetry import PoolTelemetry
from runtime.types import Answer, Query

UNHEALTHY_AFTER_S = 30.0
KEEP_ACTORS_S = 5.0

logger = logging.getLogger(__name__)

api = FastAPI(title="InfraMind", docs_url=None, redoc_url=None, openapi_url=None)


class Ingress:
    """One replica of the HTTP side. It makes the version's actors when it starts."""

    def __init__(self, config: dict[str, Any], engines: dict[str, Any], embed: Any) -> None:
        self._config = parse_config(config)
        names = ActorNames(self._config.digest)
        ensure_actors(self._config, engines, embed)
        self._embed = embed
        own = WorkflowActor(names.ingress, config, engines, embed)
        self._drivers = Drivers(self._config, own)
        self._monitor = ActorRef(names.monitor)
        self._long = LongQueries(self._config)
        self._feedback = Feedback(self._config)
        self._snapshot: PoolTelemetry | None = None
        self._received_s = 0.0
        self._started = int(time.time())
        self._made_with = (engines, embed)
        loop = asyncio.get_event_loop()
        self._tasks = [loop.create_task(self._follow_telemetry())]
        self._tasks.append(loop.create_task(self._keep_actors()))

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
            return refusal(error)
        if body.stream:
            usage = body.stream_options is not None and body.stream_options.include_usage
            writer = wire.ChunkWriter(query, body.model)
            return await self._stream(query, writer, usage, arrival_s)
        answer = await self._run(request, query, arrival_s)
        if answer.status == "error":
            return failure(answer)
        return JSONResponse(
            wire.completion(answer, body.model), headers=wire.answer_headers(answer)
        )

    @api.post("/v1/completions")
    async def completions(self, request: Request) -> Response:
        """OpenAI's text completion, of a pool model called by name."""
        arrival_s = time.monotonic()
        try:
            body = parse_body(await self._read(request), TextRequest)
            query = text_query(body, request.headers, self._config)
            self._check(query)
        except InfraMindError as error:
            return refusal(error)
        echo = body.text if body.echo else ""
        if body.stream:
            usage = body.stream_options is not None and body.stream_options.include_usage
            writer = TextChunkWriter(query, body.model, echo)
            return await self._stream(query, writer, usage, arrival_s)
        answer = await self._run(request, query, arrival_s)
        if answer.status == "error":
            return failure(answer)
        content = text_completion(answer, body.model, echo)
        return JSONResponse(content, headers=wire.answer_headers(answer))

    @api.post("/v1/embeddings")
    async def embeddings(self, request: Request) -> Response:
        """OpenAI's embeddings, by the model that the pool classifies questions with."""
        try:
            body = parse_body(await self._read(request), EmbeddingRequest)
            content = await embedding_api.embed(body, request.headers, self._config, self._embed)
        except InfraMindError as error:
            return refusal(error)
        return JSONResponse(content)

    @api.post("/v1/queries")
    async def queries(self, request: Request) -> Response:
        """The native form: the answer with its whole trace; or a long query, if so preferred."""
        arrival_s = time.monotonic()
        try:
            body = parse_body(await self._read(request), QueryRequest)
            query = native_query(body, request.headers, self._config)
            self._check(query)
        except InfraMindError as error:
            return refusal(error)
        prefer = preferences(request.headers.getlist("prefer"))
        if prefer.respond_async:
            return await self._long.submit(request, query, prefer, arrival_s)
        return native(await self._run(request, query, arrival_s))

    @api.get("/v1/queries/{query_id}")
    async def show_query(self, request: Request, query_id: str) -> Response:
        """A long query: its status and, when it has ended, its answer."""
        return await self._long.show(request, query_id)

    @api.delete("/v1/queries/{query_id}")
    async def delete_query(self, request: Request, query_id: str) -> Response:
        """Cancel a long query that runs, or remove one that has ended."""
        return await self._long.delete(request, query_id)

    @api.post("/v1/queries/{query_id}/feedback")
    async def feedback(self, request: Request, query_id: str) -> Response:
        """What somebody says of an answer: it goes to the call log as the query's outcome."""
        body = parse_body(await self._read(request), FeedbackRequest)
        return await self._feedback.give(request, query_id, body)

    @api.get("/v1/queries/{query_id}/events")
    async def query_events(self, request: Request, query_id: str) -> Response:
        """What happens to a long query, as server-sent events."""
        return await self._long.events(request, query_id)

    @api.get("/v1/models")
    async def models(self) -> Response:
        """The one that stands for all models, the pool's, and the one that embeds."""
        data = [self._listed(name) for name in self._names]
        return JSONResponse({"object": "list", "data": data})

    @api.get("/v1/models/{name:path}")
    async def model(self, name: str) -> Response:
        """One of them."""
        if name not in self._names:
            return refusal(UnknownModel(f"there is no model {name!r}"))
        return JSONResponse(self._listed(name))

    @property
    def _names(self) -> list[str]:
        pool = [model.name for model in self._config.models]
        return [OWN_MODEL, *pool, embedding_api.model_name(self._config)]

    def _listed(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._started, "owned_by": OWN_MODEL}

    @api.get("/v1/pool")
    async def pool(self) -> Response:
        """The live snapshot."""
        age_s = time.monotonic() - self._received_s if self._snapshot else None
        document = pool_document(self._config, self._snapshot, age_s)
        own = self._drivers.own
        return JSONResponse({**document, "in_flight": own.in_flight, "call_log": own.log_state})

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
                self._drivers.own.check_policy(query.policy)
            except InfraMindError as error:
                raise RequestError(error.message, "policy") from None

    async def _run(self, request: Request, query: Query, arrival_s: float) -> Answer:
        """Run a query; a client that goes away withdraws it."""
        submission = self._drivers.submission(query, arrival_s)
        running = asyncio.create_task(submission.answer())
        gone = asyncio.create_task(disconnected(request))
        try:
            await asyncio.wait({running, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                submission.withdraw()
            return await running
        except asyncio.CancelledError:
            submission.withdraw()
            raise
        finally:
            gone.cancel()

    async def _stream(
        self, query: Query, writer: wire.ChunkWriter, usage: bool, arrival_s: float
    ) -> Response:
        """Wait for the plan, so that the headers can tell the topology, then stream."""
        submission = self._drivers.submission(query, arrival_s)
        items = submission.items()
        try:
            first = await anext(items)
        except asyncio.CancelledError:
            submission.withdraw()
            raise
        if isinstance(first, Answer):
            return failure(first)
        topology = first.topology if isinstance(first, Started) else None
        events = _events(writer, usage, items)
        return EventStream(events, submission.withdraw, wire.start_headers(query, topology))

    async def _follow_telemetry(self) -> None:
        """Keep the newest snapshot; being asked also tells the monitor that this app lives."""
        while True:
            try:
                version = self._snapshot.version if self._snapshot else -1
                wait = self._monitor.get().wait.remote(version, 5.0, ingress=True)
                async with asyncio.timeout(MONITOR_SILENT_S):
                    self._snapshot = await wait
                self._received_s = time.monotonic()
            except (RayError, ValueError, TimeoutError):
                self._monitor.forget()
            await asyncio.sleep(0.2)

    async def _keep_actors(self) -> None:
        """Make anew what is gone for good: the monitor ends all where no ingress asks for long,
        such as one that was stopped meanwhile; and Ray gives up what fails while it starts."""
        missed = False
        while True:
            await asyncio.sleep(KEEP_ACTORS_S)
            try:
                missing = await asyncio.to_thread(missing_actors, self._config)
                if missing and missed:
                    logger.warning("actors of this pool are gone; they are made anew")
                    await asyncio.to_thread(ensure_actors, self._config, *self._made_with)
                missed = missing
            except Exception:
                logger.exception("the actors of this pool could not be looked after")


@api.exception_handler(HTTPException)
async def _http_error(_: Request, error: HTTPException) -> Response:
    """Unknown paths and methods, in the form of every other error."""
    body = wire.error_object("invalid_request", str(error.detail))
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


@api.exception_handler(InfraMindError)
async def _request_error(_: Request, error: InfraMindError) -> Response:
    """Errors that an endpoint leaves to us."""
    return refusal(error)


@api.exception_handler(Exception)
async def _unexpected(_: Request, error: Exception) -> Response:
    """A fault of ours, in the form of every other error."""
    logger.error("unexpected error", exc_info=error)
    body = wire.error_object("internal_error", f"internal error: {type(error).__name__}")
    return JSONResponse(body, status_code=500)


async def _events(
    writer: wire.ChunkWriter, usage: bool, items: AsyncIterator[Progress]
) -> AsyncIterator[str]:
    sent: set[int] = set()
    for event in writer.first():
        yield event
    async for item in with_keep_alive(items):
        if item is None:
            yield wire.comment("still working")
        elif isinstance(item, StepStarted):
            yield wire.comment(f"step {item.step_id}: {item.role} on {item.model}, {item.strategy}")
        elif isinstance(item, Delta):
            sent.add(item.choice)
            yield writer.delta(item)
        elif isinstance(item, Answer):
            for event in _closing(writer, item, sent, usage):
                yield event


def _closing(writer: wire.ChunkWriter, answer: Answer, sent: set[int], usage: bool) -> list[str]:
    """The last events of a stream; what no piece has told, such as a voted answer, comes whole."""
    if answer.status == "error":
        return [writer.error(answer), wire.DONE]
    whole = [c for c in answer.choices if c.index not in sent and c.text]
    events = [writer.delta(Delta(choice.text, choice.index)) for choice in whole]
    events += writer.last(answer)
    if usage:
        events.append(writer.usage(answer))
    return [*events, wire.DONE]
