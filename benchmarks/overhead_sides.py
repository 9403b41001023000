"""The two sides of ``benchmarks.overhead``: a workflow actor that times itself, and a plain app."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

from fastapi import FastAPI

from actors.protocol import EngineRequest
from actors.workflow_actor import WorkflowActor
from benchmarks.inputs import question
from runtime.types import Message, Query, Sampling, TaskKind

INSTANT = "instant"
HELD = "held"
STEPS = 3
SYSTEM = "You solve problems of arithmetic. Show each step. " * 8

plain_api = FastAPI()
_numbers = itertools.count()


def query(**changes: Any) -> Query:
    number = next(_numbers)
    return Query(f"b-{os.getpid()}-{number}", question(), 300.0, TaskKind.MATH, **changes)


class BenchActor(WorkflowActor):
    """A workflow actor that times its own queries, and direct calls beside them."""

    async def leased(self, calls: int, concurrency: int) -> float:
        """Median milliseconds of a query of one call."""

        async def one() -> None:
            answer = await self.run(query(policy="cheapest"), 0.0)
            assert answer.status == "ok", answer

        return await _median_ms(one, calls, concurrency)

    async def direct(self, calls: int, concurrency: int, stream: bool) -> float:
        """Median milliseconds of a call through the model's handle."""
        handle = self._services.engines[INSTANT]
        streaming = handle.options(stream=True)

        async def one() -> None:
            number = next(_numbers)
            messages = (Message("system", SYSTEM), Message("user", question()))
            request = EngineRequest(f"d-{number}", messages, 64, 300.0, Sampling(), stream)
            if stream:
                async for _ in streaming.generate.remote(request):
                    pass
            else:
                await handle.answer.remote(request)

        return await _median_ms(one, calls, concurrency)

    async def embedding(self, calls: int) -> float:
        """Median milliseconds that a query pays besides when its kind is not given."""

        async def one() -> None:
            await self._services.classify(question(), None)

        return await _median_ms(one, calls, 1)

    async def memory_mb(self, queries: int) -> float:
        """Growth of resident memory with ``queries`` in flight."""
        before = _resident_mb()
        tasks = [
            asyncio.create_task(self.run(query(direct_model=HELD), 0.0)) for _ in range(queries)
        ]
        await asyncio.sleep(8.0)
        assert len(self._runners) == queries, len(self._runners)
        grown = _resident_mb() - before
        for runner in list(self._runners.values()):
            runner.cancel()
        await asyncio.gather(*tasks)
        return grown


class Plain:
    """What one would write without us: three calls in sequence, behind FastAPI."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    @plain_api.post("/v1/queries")
    async def queries(self, body: dict[str, Any]) -> dict[str, Any]:
        """The text of the last call."""
        answer = ""
        for _ in range(STEPS):
            user = f"{body['question']}\n{answer}"
            messages = (Message("system", SYSTEM), Message("user", user))
            call_id = f"p-{next(_numbers)}"
            request = EngineRequest(call_id, messages, 64, 300.0, Sampling(), stream=False)
            answer = (await self._engine.answer.remote(request)).text
        return {"text": answer}


def _resident_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def _median_ms(one: Callable[[], Awaitable[None]], calls: int, concurrency: int) -> float:
    times: list[float] = []

    async def worker() -> None:
        for _ in range(calls // concurrency):
            began = time.perf_counter()
            await one()
            times.append((time.perf_counter() - began) * 1000)

    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return median(times)
