"""The monitor: takes reports, fuses them, and hands out one versioned snapshot by long poll."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from actors.names import end_actors
from runtime.config import parse_config
from runtime.telemetry import (
    ModelLoad,
    PoolTelemetry,
    QueueReport,
    ReplicaReport,
    TelemetryFusion,
)

MIN_PUBLISH_S = 0.1
ABANDONED_S = 30.0
PAUSED_S = 2.0
"""A longer turn of the loop means that this process itself did not run."""


class MonitorActor:
    """One per application version. Also ends the version's actors once no ingress asks for them.

    Detached actors outlive the application that made them; the ingress's long polls are the sign
    that the application lives.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = parse_config(config)
        models = tuple(model.name for model in self._config.models)
        self._fusion = TelemetryFusion(models, self._config.telemetry)
        self._snapshot = self._fusion.snapshot(time.monotonic())
        self._published = asyncio.Event()
        self._dirty = asyncio.Event()
        self._last_ingress_s = time.monotonic()
        self._loop = asyncio.get_running_loop().create_task(self._run())

    async def ready(self) -> bool:
        """Answers once the actor runs."""
        return True

    async def report_replica(self, report: ReplicaReport) -> None:
        """Take a replica's figures."""
        self._fusion.add_replica(report, time.monotonic())
        self._dirty.set()

    async def report_queue(self, report: QueueReport) -> ModelLoad | None:
        """Take a scheduler's figures; it gets back what its model's replicas say."""
        self._fusion.add_queue(report, time.monotonic())
        self._dirty.set()
        return self._snapshot.models.get(report.model)

    async def wait(
        self,
        version: int,
        timeout_s: float,
        ingress: bool = False,
        breakers: tuple[str, dict[str, str]] | None = None,
        spent: tuple[str, float] | None = None,
    ) -> PoolTelemetry:
        """The newest snapshot: at once if newer than ``version``, else with the next one.

        ``breakers``: who asks, and the states of its breakers. ``spent``: who asks, and what its
        calls cost within the last hour, in US dollars.
        """
        if ingress:
            self._last_ingress_s = time.monotonic()
        if breakers is not None:
            self._fusion.add_breakers(*breakers, time.monotonic())
        if spent is not None:
            self._fusion.add_spent(*spent, time.monotonic())
        if self._snapshot.version <= version:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._published.wait()
        return self._snapshot

    async def _run(self) -> None:
        now = time.monotonic()
        while True:
            before_s = now
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.telemetry.report_period_s):
                    await self._dirty.wait()
            self._dirty.clear()
            now = time.monotonic()
            if now - before_s > PAUSED_S + self._config.telemetry.report_period_s:
                self._last_ingress_s += now - before_s
            self._snapshot = self._fusion.snapshot(now)
            self._published.set()
            self._published = asyncio.Event()
            if now - self._last_ingress_s > ABANDONED_S:
                end_actors(self._config)
            await asyncio.sleep(MIN_PUBLISH_S)
