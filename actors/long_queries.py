"""The HTTP side of long queries: asks the records actor, and writes what clients get."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from ray.exceptions import RayActorError, RayTaskError

from actors import responses, wire
from actors.event_stream import KEEP_ALIVE_S, EventStream
from actors.names import ActorNames, ActorRef
from actors.prefer import Preferences, preferences
from actors.records_actor import Deleted, Refused
from runtime.config import AppConfig
from runtime.errors import InfraMindError, Overloaded, QueryNotFound, RequestError, Unavailable
from runtime.records import Event, EventBatch, RecordView
from runtime.types import Query

AWAY_S = 20.0
AWAY_POLL_S = 0.2
RECONNECT_MS = 2000

_NUMBER = re.compile(r"[0-9]{1,18}")
_PRIVATE = {"cache-control": "no-store"}


class LongQueries:
    """Each method answers one request; errors of a request are raised as ``InfraMindError``."""

    def __init__(self, config: AppConfig) -> None:
        self._records = ActorRef(ActorNames(config.digest).records)

    async def submit(
        self, request: Request, query: Query, prefer: Preferences, arrival_s: float
    ) -> Response:
        """202 with where to look; or the outcome, if it comes within the ``wait`` of the client."""
        owner = owner_of(request.headers)
        view: RecordView | Refused = await self._ask(
            lambda records: records.submit.remote(query, owner, time.monotonic() - arrival_s)
        )
        if isinstance(view, Refused):
            raise Overloaded(view.message, view.retry_after_s)
        if prefer.wait_s is not None:
            view = await self._view(query.query_id, owner, prefer.wait_s)
            if view.answer is not None:
                return responses.native(view.answer, {"preference-applied": prefer.applied(True)})
        headers = {
            "location": _url(request, query.query_id),
            "preference-applied": prefer.applied(False),
            **wire.start_headers(query, None),
        }
        return JSONResponse(_document(request, view), status_code=202, headers=headers)

    async def show(self, request: Request, query_id: str) -> Response:
        """The record, with the answer when there is one; ``Prefer: wait`` waits for that."""
        prefer = preferences(request.headers.getlist("prefer"))
        view = await self._view(query_id, owner_of(request.headers), prefer.wait_s or 0.0)
        headers = dict(_PRIVATE)
        if prefer.wait_s is not None:
            headers["preference-applied"] = prefer.applied(True)
        return JSONResponse(_document(request, view), headers=headers)

    async def delete(self, request: Request, query_id: str) -> Response:
        """Cancel it if it runs, else remove it; the body says which."""
        owner = owner_of(request.headers)
        deleted: Deleted = _found(
            query_id, await self._ask(lambda records: records.delete.remote(query_id, owner))
        )
        body = {
            "id": deleted.query_id,
            "object": "long_query",
            "status": deleted.status,
            "action": deleted.action,
        }
        return JSONResponse(body, headers=_PRIVATE)

    async def events(self, request: Request, query_id: str) -> Response:
        """Server-sent events from ``Last-Event-ID`` on; 204 where none is to come any more."""
        after, owner = _last_event_id(request.headers), owner_of(request.headers)
        first = await self._batch(query_id, owner, after, 0.0)
        if first.ended and not first.events:
            return Response(status_code=204)
        events = self._follow(query_id, owner, after, first)
        return EventStream(events, lambda: None, {"x-inframind-query-id": query_id})

    async def _follow(
        self, query_id: str, owner: str, after: int, batch: EventBatch
    ) -> AsyncIterator[str]:
        yield f"retry: {RECONNECT_MS}\n\n"
        while True:
            if batch.missed:
                yield "event: missed\ndata: {}\n\n"
            for event in batch.events:
                after = event.number
                yield _event(event)
            if batch.ended:
                return
            try:
                batch = await self._batch(query_id, owner, after, KEEP_ALIVE_S)
            except InfraMindError as error:
                yield "event: error\n" + wire.event(wire.exception_response(error)[1])
                return
            if not batch.events:
                yield wire.comment("still working")

    async def _view(self, query_id: str, owner: str, wait_s: float) -> RecordView:
        end_s = time.monotonic() + wait_s
        view: RecordView | None = await self._ask(
            lambda records: records.status.remote(
                query_id, owner, max(0.0, end_s - time.monotonic())
            ),
            wait_s,
        )
        return _found(query_id, view)

    async def _batch(self, query_id: str, owner: str, after: int, wait_s: float) -> EventBatch:
        batch: EventBatch | None = await self._ask(
            lambda records: records.events.remote(query_id, owner, after, wait_s), wait_s
        )
        return _found(query_id, batch)

    async def _ask(self, call: Callable[[Any], Any], wait_s: float = 0.0) -> Any:
        """Call the records actor, whose answer may take ``wait_s``; again for a while where it has
        died and is being restarted."""
        end_s = time.monotonic() + AWAY_S
        while True:
            try:
                async with asyncio.timeout(AWAY_S + wait_s):
                    return await call(self._records.get())
            except TimeoutError:
                raise Unavailable("long queries are not available at the moment") from None
            except RayTaskError:  # its own fault; some are also a ValueError
                raise
            except (RayActorError, ValueError):
                self._records.forget()
                if time.monotonic() > end_s:
                    message = "long queries are not available at the moment"
                    raise Unavailable(message) from None
                await asyncio.sleep(AWAY_POLL_S)


def owner_of(headers: Mapping[str, str]) -> str:
    """A hash of the credential; empty where there is none. Credentials themselves are not kept."""
    credential = headers.get("authorization", "")
    return hashlib.sha256(credential.encode()).hexdigest() if credential else ""


def _found(query_id: str, found: Any) -> Any:
    if found is None:
        raise QueryNotFound(f"no query {query_id[:64]!r} is kept")
    return found


def _last_event_id(headers: Mapping[str, str]) -> int:
    text = headers.get("last-event-id", "").strip()
    if text and not _NUMBER.fullmatch(text):
        message = f"Last-Event-ID must be the id of an event, not {text[:40]!r}"
        raise RequestError(message, "last-event-id")
    return int(text or 0)


def _url(request: Request, query_id: str) -> str:
    """The path of a query, with the application's route prefix."""
    return f"{request.scope.get('root_path', '').rstrip('/')}/v1/queries/{query_id}"


def _document(request: Request, view: RecordView) -> dict[str, Any]:
    url = _url(request, view.query_id)
    return {
        "id": view.query_id,
        "object": "long_query",
        "status": view.status,
        "url": url,
        "events_url": f"{url}/events",
        "age_s": view.age_s,
        "budget_s": view.budget_s,
        "keep_s": view.keep_s,
        "answer": None if view.answer is None else wire.native_answer(view.answer),
    }


def _event(event: Event) -> str:
    return f"id: {event.number}\nevent: {event.kind}\ndata: {event.data}\n\n"
