"""Server-sent events over HTTP: signs of life, and clients that go away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

KEEP_ALIVE_S = 10.0

_ItemT = TypeVar("_ItemT")


class EventStream(StreamingResponse):
    """Server-sent events; ``on_end`` runs however it ends, also before the first event."""

    def __init__(
        self,
        events: AsyncIterator[str],
        on_end: Callable[[], None],
        headers: dict[str, str] | None = None,
    ) -> None:
        headers = {**(headers or {}), "cache-control": "no-cache"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


async def with_keep_alive(items: AsyncIterator[_ItemT]) -> AsyncIterator[_ItemT | None]:
    """``items``, with a ``None`` whenever there was none for ``KEEP_ALIVE_S``."""
    pending: asyncio.Task[_ItemT] | None = None
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


async def disconnected(request: Request) -> None:
    """Returns when the client has gone; the body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
