"""A tiny server that speaks OpenAI's API and fails in every way that it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from aiohttp import web

from actors.transport import free_port

TOKENS = ("The", " answer", " is", " 42", ".")
SERVED = "org/stand-in"


class StandIn:
    """``mode`` says what calls get, ``metrics`` what the page is: text, or a status, or ``hang``.

    ``others`` are running requests of other clients, shown on the default page. ``running`` is
    what is here now, ``gone`` how many clients went away, ``asked`` the bodies of all calls.
    ``write`` makes the tokens of an answer from the body of its call; by default all are the same.
    """

    def __init__(self) -> None:
        self.mode = "ok"
        self.metrics: str | int | None = None
        self.token_s = 0.01
        self.write: Callable[[dict[str, Any]], Sequence[str]] = lambda body: TOKENS
        self.others = 0
        self.retry_after = "7"
        self.running = 0
        self.gone = 0
        self.asked: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.connections: set[Any] = set()
        self.num_polls = 0
        self.num_probes = 0
        self.models: Any = {"data": [{"id": SERVED, "max_model_len": 2048}]}
        self.port = free_port()
        self._loop = asyncio.new_event_loop()
        self._runner: web.AppRunner | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}/v1"

    def start(self) -> None:
        """Listen; again after ``stop``, on the same port."""
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)

    def stop(self) -> None:
        """Stop to listen and drop all connections."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._call)
        app.router.add_post("/v1/completions", self._call)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def _stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _models(self, request: web.Request) -> web.Response:
        self.num_probes += 1
        if self.mode == "hang":
            await asyncio.sleep(60)
        if isinstance(self.models, int):
            return web.Response(status=self.models)
        if isinstance(self.models, str):
            return web.Response(text=self.models)
        return web.json_response(self.models)

    async def _metrics(self, request: web.Request) -> web.Response:
        self.num_polls += 1
        self.headers.append(request.headers.copy())
        if self.metrics == "hang":
            await asyncio.sleep(60)
        if isinstance(self.metrics, int):
            return web.Response(status=self.metrics)
        return web.Response(text=page(self.running + self.others) if self.metrics is None
                            else self.metrics)  # fmt: skip

    async def _call(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        self.headers.append(request.headers.copy())
        self.connections.add(request.transport)
        self.running += 1
        try:
            return await self._answer(request, body)
        except (asyncio.CancelledError, ConnectionResetError):
            self.gone += 1
            raise
        finally:
            self.running -= 1

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if self.mode == "hang":
            await asyncio.sleep(60)
        if self.mode.isdigit():
            error = {"message": f"told to answer {self.mode}", "code": int(self.mode)}
            headers = {"Retry-After": self.retry_after} if self.mode in ("429", "503") else {}
            return web.json_response({"error": error}, status=int(self.mode), headers=headers)
        if self.mode == "context":
            message = "This model's maximum context length is 9 tokens."
            return web.json_response({"error": {"message": message}}, status=400)
        if self.mode == "garbage":
            return web.Response(text="<html>", content_type="text/html")
        chat = "messages" in body
        if body.get("stream"):
            return await self._stream(request, body, chat)
        await asyncio.sleep(self.token_s * len(TOKENS))
        choice = whole_choice("".join(self.write(body)), chat)
        return web.json_response({"choices": [choice], "usage": USAGE})

    async def _stream(
        self, request: web.Request, body: dict[str, Any], chat: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        tokens = self.write(body) if self.mode != "endless" else TOKENS * 1000
        for number, token in enumerate(tokens):
            await asyncio.sleep(self.token_s)
            if self.mode == "break" and number == 2:
                assert request.transport is not None
                request.transport.close()
                return response
            if self.mode == "error" and number == 2:
                await response.write(event({"error": {"message": "engine died", "code": 500}}))
                return response
            if self.mode == "stall" and number == 2:
                await asyncio.sleep(60)
            await response.write(event({"choices": [piece(token, None, chat)]}))
        await response.write(event({"choices": [piece("", "stop", chat)]}))
        if body.get("stream_options", {}).get("include_usage"):
            await response.write(event({"choices": [], "usage": USAGE}))
        await response.write(b"data: [DONE]\n\n")
        return response


USAGE = {"prompt_tokens": 11, "completion_tokens": len(TOKENS)}


def whole_choice(text: str, chat: bool) -> dict[str, Any]:
    said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    return {"index": 0, "finish_reason": "stop", "logprobs": None, **said}


def piece(token: str, finish: str | None, chat: bool) -> dict[str, Any]:
    said = {"delta": {"content": token}} if chat else {"text": token}
    return {"index": 0, "finish_reason": finish, **said}


def event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def page(running: int, waiting: int = 0, kv_usage: float = 0.25) -> str:
    """A small page like vLLM's."""
    label = f'{{engine="0",model_name="{SERVED}"}}'
    return (
        f"vllm:num_requests_running{label} {running}.0\n"
        f"vllm:num_requests_waiting{label} {waiting}.0\n"
        f"vllm:kv_cache_usage_perc{label} {kv_usage}\n"
    )


@contextlib.contextmanager
def standing_in() -> Iterator[StandIn]:
    """A stand-in that listens."""
    server = StandIn()
    server.start()
    try:
        yield server
    finally:
        server.close()
