"""A vLLM engine as a Serve replica: Ray's ``LLMServer`` with our ``generate`` and telemetry.

Its settings come through the environment (``runtime_env`` of its ``LLMConfig``):
``INFRAMIND_MODEL``, ``INFRAMIND_MONITOR``, ``INFRAMIND_NAMESPACE``,
``INFRAMIND_REPORT_PERIOD_S``, ``INFRAMIND_MAX_NUM_SEQS`` and, on a shared GPU, ``INFRAMIND_GPU``.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import math
import os
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from ray.llm._internal.common.callbacks.base import CallbackBase
from ray.serve.llm.deployment import LLMServer
from vllm.exceptions import VLLMClientError

from actors import vllm_stats
from actors.protocol import EngineChunk, EngineRefused, EngineRequest, whole_answer
from actors.reporting import EngineLoad, MonitorLink, ReplicaReporter, replica_name
from actors.stall import unless_stalled
from actors.vllm_answer import EngineAnswer
from actors.vllm_requests import chat_request, engine_id, text_request

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
            EngineStalled: no token for ``request.stall_s``.
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
        answer = EngineAnswer()
        limit_s = math.inf if request.limit_s is None else request.limit_s
        emitted_s = started_s = time.monotonic()
        try:
            parts = self._ask(request, started_s)
        except (ValueError, VLLMClientError) as error:  # the engine's own protocol refuses it
            raise EngineRefused("request", str(error)) from None
        try:
            async with contextlib.aclosing(unless_stalled(parts, request.stall_s)) as source:
                async for part in source:
                    answer.feed(part, time.monotonic() - started_s)
                    if time.monotonic() - started_s >= limit_s and answer.cut():
                        break
                    if request.stream and time.monotonic() - emitted_s >= STREAM_GAP_S:
                        emitted_s = time.monotonic()
                        if (chunk := answer.take()) is not None:
                            yield chunk
        finally:
            if not answer.ended:
                await self._abort(engine_id(request))
        yield answer.last_chunk()

    def _ask(self, request: EngineRequest, now: float) -> Any:
        """The engine's answer in parts; raises ValueError for what its protocol refuses."""
        model = self._llm_config.model_id
        if request.prompt is not None:
            return self.engine.completions(text_request(request, model, now))
        return self.engine.chat(chat_request(request, model, now))

    async def _abort(self, request_id: str) -> None:
        # Ray's and vLLM's inner generators are only closed when the collector reaches them.
        with contextlib.suppress(Exception):
            await self.engine._engine_client.abort(request_id)

    def _load(self) -> EngineLoad:
        newest = vllm_stats.newest_load()
        states = self.engine._engine_client.output_processor.request_states
        return current_load(newest, len(states))


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
