"""A vLLM engine as a Serve replica: Ray's ``LLMServer`` with our ``generate`` and telemetry.

Its settings come through the environment (``runtime_env`` of its ``LLMConfig``):
``INFRAMIND_MODEL``, ``INFRAMIND_MONITOR``, ``INFRAMIND_NAMESPACE``,
``INFRAMIND_REPORT_PERIOD_S``, ``INFRAMIND_MAX_NUM_SEQS`` and, on a shared GPU, ``INFRAMIND_GPU``.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import math
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from ray.llm._internal.common.callbacks.base import CallbackBase
from ray.serve.llm.deployment import LLMServer
from ray.serve.llm.openai_api_models import ChatCompletionRequest

from actors import vllm_stats
from actors.protocol import EngineChunk, EngineRefused, EngineRequest, whole_answer
from actors.reporting import EngineLoad, MonitorLink, ReplicaReporter, replica_name
from runtime.edf import engine_priority

STREAM_GAP_S = 0.05


class SkipDownload(CallbackBase):
    """Spares a model that is already a folder on this node the download task.

    The task would start one more process that imports vLLM, some 20 s on two cores.
    """

    async def on_before_node_init(self) -> None:
        source = self.llm_config.model_loading_config.model_source
        if isinstance(source, str) and Path(source).is_dir():
            self.ctx.run_init_node = False


class InfraMindLLMServer(LLMServer):
    """One vLLM engine, reached through ``generate`` and ``answer``."""

    async def __init__(self, llm_config: Any, **kwargs: Any) -> None:
        await super().__init__(llm_config, **kwargs)
        env = os.environ
        self._reporter = ReplicaReporter(
            model=env["INFRAMIND_MODEL"],
            replica=replica_name(),
            max_num_seqs=int(env["INFRAMIND_MAX_NUM_SEQS"]),
            period_s=float(env["INFRAMIND_REPORT_PERIOD_S"]),
            load=self._load,
            send=MonitorLink(env["INFRAMIND_MONITOR"], env["INFRAMIND_NAMESPACE"]),
        )
        self._reporter.start()

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineChunk]:
        """Answer ``request``. Closing the generator aborts the request in the engine.

        Raises:
            EngineRefused: ``context`` when the prompt is too long, else ``request``.
            RuntimeError: the engine failed.
        """
        chunks = self._reporter.watch(request.call_id, self._run(request))
        async with contextlib.aclosing(chunks) as source:
            async for chunk in source:
                yield chunk

    async def answer(self, request: EngineRequest) -> EngineChunk:
        """The same, whole."""
        return await whole_answer(self.generate(request))

    async def _start_engine(self) -> None:
        # Ray's own version also reports to its usage telemetry, through one more process.
        async with start_lock(os.environ.get("INFRAMIND_GPU")):
            await self.engine.start()

    async def _run(self, request: EngineRequest) -> AsyncIterator[EngineChunk]:
        answer = _Answer()
        limit_s = math.inf if request.limit_s is None else request.limit_s
        emitted_s = started_s = time.monotonic()
        try:
            chat = chat_request(request, self._llm_config.model_id, started_s)
        except ValueError as error:  # pydantic's, of what the engine's own protocol refuses
            raise EngineRefused("request", str(error)) from None
        try:
            async with contextlib.aclosing(self.engine.chat(chat)) as parts:
                async for part in parts:
                    answer.feed(part, time.monotonic() - started_s)
                    if time.monotonic() - started_s >= limit_s and answer.cut():
                        break
                    if request.stream and time.monotonic() - emitted_s >= STREAM_GAP_S:
                        emitted_s = time.monotonic()
                        if text := answer.take():
                            yield EngineChunk(text)
        finally:
            if not answer.ended:
                await self._abort(request.call_id)
        yield answer.last_chunk()

    async def _abort(self, call_id: str) -> None:
        # Ray's and vLLM's inner generators are only closed when the collector reaches them.
        with contextlib.suppress(Exception):
            await self.engine._engine_client.abort(f"chatcmpl-{call_id}")

    def _load(self) -> EngineLoad:
        newest = vllm_stats.newest_load()
        states = self.engine._engine_client.output_processor.request_states
        return current_load(newest, len(states))


class _Answer:
    """Collects what vLLM streams: server-sent events of OpenAI's chat completion."""

    def __init__(self) -> None:
        self.ended = False
        self._finish_reason: str | None = None
        self._began = False
        self._pending: list[str] = []
        self._ttft_s: float | None = None
        self._usage: dict[str, Any] = {}

    def feed(self, part: Any, after_s: float) -> None:
        """Take one part that came ``after_s`` seconds after the start; raises as ``generate``."""
        if not isinstance(part, str):
            raise failure(part.error.model_dump())
        for event in events(part):
            if "error" in event:
                raise failure(event["error"])
            if self._ttft_s is None:
                self._ttft_s = after_s
            self._usage = event.get("usage") or self._usage
            for choice in event.get("choices", ()):
                text = choice["delta"].get("content") or ""
                self._began = self._began or bool(text)
                self._pending.append(text)
                self._finish_reason = choice.get("finish_reason") or self._finish_reason
                self.ended = self._finish_reason is not None

    def cut(self) -> bool:
        """End the answer where it is; ``False`` while there is nothing to end."""
        if self._began and self._finish_reason is None:
            self._finish_reason = "length"
        return self._began

    def take(self) -> str:
        """The text since the last ``take``."""
        text = "".join(self._pending)
        self._pending.clear()
        return text

    def last_chunk(self) -> EngineChunk:
        """The end of the answer; raises RuntimeError when the engine did not reach one."""
        if self._finish_reason not in ("stop", "length"):
            raise RuntimeError(f"the engine ended the call: {self._finish_reason}")
        return EngineChunk(
            text=self.take(),
            finish_reason=self._finish_reason,
            prompt_tokens=self._usage.get("prompt_tokens"),
            completion_tokens=self._usage.get("completion_tokens"),
            ttft_s=self._ttft_s,
        )


def events(part: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in a piece of an event stream."""
    for line in part.splitlines():
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data != "[DONE]":
            yield json.loads(data)


def failure(error: dict[str, Any]) -> Exception:
    """The exception for an OpenAI error object: the request's fault (4xx), or the engine's."""
    message = str(error.get("message", "unknown error"))
    code = error.get("code")
    if not (isinstance(code, int) and 400 <= code < 500):
        return RuntimeError(message)
    too_long = error.get("param") in ("input_tokens", "input_text") or "context length" in message
    return EngineRefused("context" if too_long else "request", message)


def chat_request(request: EngineRequest, model: str, now: float) -> ChatCompletionRequest:
    """The OpenAI request for ``request``, which arrived at ``now``.

    It is always streamed inside the replica: that is the only way to see the first token, and
    vLLM's unstreamed path swallows a cancellation.
    """
    sampling = request.sampling
    optional = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stop": list(sampling.stop) or None,
    }
    return ChatCompletionRequest(
        model=model,
        messages=[{"role": m.role, "content": m.content} for m in request.messages],
        max_tokens=request.max_tokens,
        priority=engine_priority(now + request.remaining_s),
        request_id=request.call_id,
        stream=True,
        # Usage in every part, so that an answer that is cut has its count, too.
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        **{key: value for key, value in optional.items() if value is not None},
    )


def current_load(newest: EngineLoad | None, active: int) -> EngineLoad:
    """The newest record, corrected by the ``active`` requests that the front end holds now.

    Records stop when the engine idles and lag one step behind an arrival.
    """
    if newest is None:
        return EngineLoad(0, active, None)
    if active == 0:
        return EngineLoad(0, 0, None if newest.kv_usage is None else 0.0)
    running = min(newest.running, active)
    return EngineLoad(running, active - running, newest.kv_usage)


@contextlib.asynccontextmanager
async def start_lock(gpu: str | None) -> AsyncIterator[None]:
    """Hold the right to start an engine on ``gpu``; ``None`` needs none.

    vLLM sizes its cache from the memory it finds free, so replicas that share a GPU start one
    after another. The kernel frees the lock of a process that dies.
    """
    if gpu is None:
        yield
        return
    path = Path(tempfile.gettempdir()) / f"inframind-{os.getuid()}-gpu{gpu}.lock"
    with path.open("w") as file:
        await asyncio.to_thread(fcntl.flock, file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
