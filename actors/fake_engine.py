"""A FAKE engine: the clock, the batch and the memory of a real one, with made-up text.

Continuous batching on the real clock. ``FakeBatch`` is the bookkeeping, ``FakeEngine`` drives it on
an event loop, ``FakeModelServer`` is the Serve deployment. Its text is never a quality figure, see
``actors.fake_text``.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import math
import random
from collections.abc import AsyncIterator
from typing import Any

from actors.fake_batch import FakeBatch, FakeSequence
from actors.fake_reply import FakeReply, logprobs, prompt_tokens, reply
from actors.fake_text import TOKEN_CHARS
from actors.protocol import (
    EngineChunk,
    EngineRefused,
    EngineRequest,
    EngineStalled,
    ToolCallDelta,
    whole_answer,
)
from actors.reporting import EngineLoad, MonitorLink, ReplicaReporter, replica_name
from runtime.config import FaultConfig, ModelConfig
from runtime.edf import engine_priority

STREAM_GAP_S = 0.05


class FakeEngine:
    """``FakeBatch`` on the running event loop. It sleeps between events and is idle without calls.

    Args:
        model: its speed, sizes, and ``fake`` with the faults to inject.
    """

    def __init__(self, model: ModelConfig) -> None:
        self._model = model
        self._batch = FakeBatch(model)
        self._faults = _Faults(model.fake.faults)
        self._arrivals = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self.num_wakeups = 0

    @property
    def num_preemptions(self) -> int:
        return self._batch.num_preemptions

    def load(self) -> EngineLoad:
        """The load now; exactly zero when no call is there."""
        self._batch.advance(asyncio.get_running_loop().time())
        batch = self._batch
        return EngineLoad(len(batch.running), len(batch.waiting), batch.kv_usage)

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineChunk]:
        """Answer ``request``; closing the generator frees its place at once.

        Raises:
            EngineRefused: prompt and ``max_tokens`` exceed the context, or what is asked is void.
            EngineStalled: no token for ``request.stall_s``.
            RuntimeError: an injected error.
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        answer, sequence = self._prepare(request, began_s)
        self._batch.add(sequence, began_s)
        self._arm()
        sent, cut = 0, False
        num_top = request.sampling.logprobs
        limit_s = math.inf if request.limit_s is None else began_s + request.limit_s
        stall_s = math.inf if request.stall_s is None else request.stall_s
        try:
            while not sequence.done:
                if await self._cut(sequence, limit_s, stall_s):
                    cut = True
                    break
                sequence.news.clear()
                if request.stream and sequence.generated > sent and not sequence.done:
                    piece = answer.text[sent * TOKEN_CHARS : sequence.generated * TOKEN_CHARS]
                    opening = () if sent else _openings(answer)
                    sent = sequence.generated
                    pieces = logprobs(piece, num_top)
                    yield EngineChunk(piece, tool_calls=opening, logprobs=pieces)
        finally:
            self._batch.remove(sequence, loop.time())
            self._arm()
        given = sequence.target_tokens if sequence.done else sequence.generated
        cut = cut or given < answer.num_tokens
        text = answer.text[sent * TOKEN_CHARS : given * TOKEN_CHARS]
        yield EngineChunk(
            text=text,
            finish_reason="length" if cut else answer.finish_reason,
            prompt_tokens=sequence.prompt_tokens,
            completion_tokens=given,
            ttft_s=(sequence.first_token_s or began_s) - began_s,
            tool_calls=_closings(answer, bool(sent), cut),
            logprobs=logprobs(text, num_top),
        )

    async def _cut(self, sequence: FakeSequence, limit_s: float, stall_s: float) -> bool:
        """Wait for news of ``sequence``; ``True`` if the limit came first and it has begun.

        Raises ``EngineStalled`` when it gets no token for ``stall_s``.
        """
        loop = asyncio.get_running_loop()
        generated, stalls_at_s = sequence.generated, loop.time() + stall_s
        while True:
            now = loop.time()
            limit = limit_s if sequence.generated or limit_s > now else math.inf
            if (until_s := min(limit, stalls_at_s)) == math.inf:
                await sequence.news.wait()
                return False
            # Which of the two it was is not asked of the clock: Serve's loop rounds it.
            try:
                async with asyncio.timeout(until_s - now):
                    await sequence.news.wait()
                return False
            except TimeoutError:
                self._batch.advance(loop.time())
            if sequence.done:
                return False
            if sequence.generated and until_s == limit:
                return True
            if sequence.generated > generated:
                generated, stalls_at_s = sequence.generated, loop.time() + stall_s
            elif until_s == stalls_at_s:
                raise EngineStalled(stall_s)

    def _prepare(self, request: EngineRequest, now: float) -> tuple[FakeReply, FakeSequence]:
        """What will be said, if there is room for it, and the sequence that says it."""
        read = prompt_tokens(request)
        self._check(read, request.max_tokens)
        answer = reply(self._model.name, request, self._model.fake.answer_tokens)
        sequence = FakeSequence(
            key=(engine_priority(now + request.remaining_s), next(self._arrivals)),
            prompt_tokens=read,
            target_tokens=min(answer.num_tokens, request.max_tokens),
            listen_s=now if request.stream else math.inf,
        )
        sequence.delay_s = self._faults.delay_s(self._batch.alone_s(sequence))
        return answer, sequence

    def _check(self, prompt_tokens: int, max_tokens: int) -> None:
        if max_tokens < 1:
            raise EngineRefused("request", f"max_tokens is {max_tokens}")
        # A call that could never hold all its tokens would be preempted for ever.
        room = min(self._model.context_tokens, self._model.fake.kv_tokens - 1)
        if prompt_tokens + max_tokens > room:
            raise EngineRefused(
                "context",
                f"{prompt_tokens} prompt tokens and {max_tokens} of output exceed the "
                f"context of {room} tokens",
            )

    def _tick(self) -> None:
        self._timer = None
        self.num_wakeups += 1
        now = asyncio.get_running_loop().time()
        self._batch.advance(now)
        for sequence in self._batch.running:
            if sequence.listen_s <= now and sequence.generated:
                sequence.listen_s = now + STREAM_GAP_S
                sequence.news.set()
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_s = self._batch.next_event_s()
        if next_s < math.inf:
            self._timer = asyncio.get_running_loop().call_at(next_s, self._tick)


class _Faults:
    """Draws the injected faults: three numbers per call, so that one rate moves no other's."""

    def __init__(self, config: FaultConfig) -> None:
        self._config = config
        self._random = random.Random(config.seed)

    def delay_s(self, alone_s: float) -> float:
        """Seconds to add to a call of ``alone_s``; infinite to hang. Raises the injected error."""
        error, hang, slow = (self._random.random() for _ in range(3))
        if error < self._config.error_rate:
            raise RuntimeError("fake engine: injected error")
        if hang < self._config.hang_rate:
            return math.inf
        if slow < self._config.slow_rate:
            return alone_s * (self._config.slow_factor - 1)
        return 0.0


def _openings(answer: FakeReply) -> tuple[ToolCallDelta, ...]:
    """The first pieces of the tool calls: their names."""
    return tuple(dataclasses.replace(call, arguments="") for call in answer.tool_calls)


def _closings(answer: FakeReply, opened: bool, cut: bool) -> tuple[ToolCallDelta, ...]:
    """What of the tool calls has not been sent yet; one that was cut lacks its arguments."""
    calls = answer.tool_calls
    if cut:
        return () if opened else _openings(answer)
    return tuple(ToolCallDelta(c.index, arguments=c.arguments) for c in calls) if opened else calls


class FakeModelServer:
    """The Serve deployment of a FAKE model.

    Args:
        model: ``ModelConfig.model_dump(mode="json")``.
        monitor_name: the actor that gets the reports, in ``namespace``.
        report_period_s: seconds between reports.
    """

    def __init__(
        self, model: dict[str, Any], monitor_name: str, namespace: str, report_period_s: float
    ) -> None:
        config = ModelConfig.model_validate(model)
        self._engine = FakeEngine(config)
        self._reporter = ReplicaReporter(
            model=config.name,
            replica=replica_name(),
            max_num_seqs=config.max_num_seqs,
            period_s=report_period_s,
            load=self._engine.load,
            send=MonitorLink(monitor_name, namespace),
        )
        self._reporter.start()

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineChunk]:
        """Answer ``request``; raises what ``FakeEngine.generate`` raises."""
        chunks = self._reporter.watch(request.call_id, self._engine.generate(request))
        async with contextlib.aclosing(chunks) as source:
            async for chunk in source:
                yield chunk

    async def answer(self, request: EngineRequest) -> EngineChunk:
        """The same, whole."""
        return await whole_answer(self.generate(request))

    async def check_health(self) -> None:
        """A fake engine is always well."""
