"""What a replica tells the monitor: its load now, and what its last calls took.

Shared by the fake and the vLLM server. Reports are fire and forget: a monitor that is slow, dead
or not there yet never delays a call, and at most one report is on its way.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from actors.protocol import EngineChunk
from runtime.telemetry import ReplicaReport
from runtime.window import CallWindow, Latencies, LatencyWindow, finished_call

logger = logging.getLogger(__name__)

MIN_GAP_S = 0.05
SEND_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What an engine holds now; ``kv_usage`` is 0..1, or ``None`` while it is not known."""

    running: int
    waiting: int
    kv_usage: float | None


class ReplicaReporter:
    """Measures the calls of one replica and sends a report every ``period_s``.

    A call that starts or ends brings the next report forward, to ``MIN_GAP_S`` after the last.

    Args:
        load: reads the engine's load; may raise, then the report is skipped.
        send: delivers one report; may raise, hang or be slow.
        elsewhere: what is known from another source of how long calls take; it stands in for
            what the last calls did not show.
        window: remembers the calls; ``CallWindow`` by default.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        model: str,
        replica: str,
        max_num_seqs: int,
        period_s: float,
        load: Callable[[], EngineLoad],
        send: Callable[[ReplicaReport], Awaitable[None]],
        elsewhere: Callable[[], Latencies] = Latencies,
        window: LatencyWindow | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.replica = replica
        self.num_failed = 0
        self._model = model
        self._max_num_seqs = max_num_seqs
        self._period_s = period_s
        self._load = load
        self._send = send
        self._elsewhere = elsewhere
        self._clock = clock
        self._window = window or CallWindow()
        self._active: dict[object, str] = {}
        self._finished = 0
        self._changed = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None
        self._sending: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to report; needs a running event loop."""
        self._loop_task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End the loop and drop a report that is on its way."""
        tasks = [t for t in (self._loop_task, self._sending) if t is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def watch(
        self, call_id: str, chunks: AsyncIterator[EngineChunk]
    ) -> AsyncIterator[EngineChunk]:
        """Pass ``chunks`` on, signed with the replica's name, and measure the call.

        Only a call that yields its last chunk counts as finished. Closing this closes ``chunks``.
        """
        started_s = self._clock()
        key = object()
        self._active[key] = call_id
        self._changed.set()
        try:
            async with contextlib.aclosing(chunks) as source:
                async for chunk in source:
                    if chunk.finish_reason is not None:
                        self._finish(started_s, chunk)
                        # Before the last chunk leaves, so that the caller's next step finds the
                        # place free in the next report.
                        self._active.pop(key, None)
                        self._changed.set()
                    yield dataclasses.replace(chunk, replica=self.replica)
        finally:
            self._active.pop(key, None)
            self._changed.set()

    @property
    def num_active(self) -> int:
        """Calls that are here now."""
        return len(self._active)

    def latencies(self) -> Latencies:
        """How long calls take now."""
        own, other = self._window.means(self._clock()), self._elsewhere()
        return Latencies(
            other.e2e_s if own.e2e_s is None else own.e2e_s,
            other.ttft_s if own.ttft_s is None else own.ttft_s,
            other.tpot_s if own.tpot_s is None else own.tpot_s,
        )

    def report(self) -> ReplicaReport:
        """The replica now; ``finished`` counts since its start."""
        load = self._load()
        latencies = self.latencies()
        return ReplicaReport(
            model=self._model,
            replica=self.replica,
            max_num_seqs=self._max_num_seqs,
            running=load.running,
            waiting=load.waiting,
            kv_usage=load.kv_usage,
            e2e_s=latencies.e2e_s,
            ttft_s=latencies.ttft_s,
            tpot_s=latencies.tpot_s,
            finished=self._finished,
            calls=tuple(self._active.values()),
        )

    def _finish(self, started_s: float, last: EngineChunk) -> None:
        now, tokens = self._clock(), last.completion_tokens
        self._window.add(finished_call(started_s, now, last.ttft_s, tokens))
        self._finished += 1

    async def _run(self) -> None:
        while True:
            posted_s = self._clock()
            self._changed.clear()
            self._post()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._period_s):
                    await self._changed.wait()
            await asyncio.sleep(max(0.0, posted_s + MIN_GAP_S - self._clock()))

    def _post(self) -> None:
        # While the last report is still on its way this one is left out: the next tick carries
        # newer figures, and nothing piles up in front of a monitor that is slow or gone.
        if self._sending is not None and not self._sending.done():
            return
        try:
            report = self.report()
        except Exception:
            self._failed("cannot read the engine's load")
            return
        self._sending = asyncio.get_running_loop().create_task(self._deliver(report))

    async def _deliver(self, report: ReplicaReport) -> None:
        try:
            await self._send(report)
        except Exception:
            self._failed("cannot reach the monitor")

    def _failed(self, what: str) -> None:
        self.num_failed += 1
        level = logging.WARNING if self.num_failed == 1 else logging.DEBUG
        logger.log(level, "replica %s: %s", self.replica, what, exc_info=True)


class MonitorLink:
    """Sends reports to the monitor actor ``name``; looks it up again after every failure."""

    def __init__(self, name: str, namespace: str) -> None:
        self._name = name
        self._namespace = namespace
        self._actor: Any = None

    async def __call__(self, report: ReplicaReport) -> None:
        """Deliver one report; raises when the monitor is unknown, dead or too slow."""
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                if self._actor is None:
                    self._actor = await asyncio.to_thread(self._look_up)
                ref = self._actor.report_replica.remote(report)
                await asyncio.wrap_future(ref.future())
        except BaseException:
            self._actor = None
            raise

    def _look_up(self) -> Any:
        import ray

        return ray.get_actor(self._name, namespace=self._namespace)


def replica_name() -> str:
    """The name of the Serve replica that this process is."""
    from ray import serve

    return serve.get_replica_context().replica_id.unique_id
