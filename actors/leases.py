"""Leases as a workflow actor takes them: acquire, heartbeat, release, and what if nobody grants.

A scheduler that cannot be reached for ``FAIL_OPEN_S`` is bypassed: the engine's own bound and its
priority by deadline still hold, and every bypass is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator

from ray.exceptions import RayActorError, RayError

from actors.names import ActorNames, ActorRef
from runtime.events import Acquire, Drop, Grant, Lost, Refuse

FAIL_OPEN_S = 1.0
RETRY_S = 0.05
HEARTBEAT_S = 1.0


class LeaseBook:
    """All leases of one holder (one workflow actor), over all models."""

    def __init__(self, holder: str, names: ActorNames, models: tuple[str, ...]) -> None:
        self.holder = holder
        self.num_bypassed = 0
        self._schedulers = {model: ActorRef(names.scheduler(model)) for model in models}
        self._running: dict[str, set[str]] = {model: set() for model in models}

    @property
    def num_held(self) -> int:
        return sum(len(calls) for calls in self._running.values())

    @contextlib.asynccontextmanager
    async def lease(
        self, model: str, request: Acquire
    ) -> AsyncIterator[Grant | Drop | Refuse | None]:
        """The scheduler's verdict; a ``Grant`` is held until the block is left.

        ``None`` inside the block means that no scheduler could be reached: go ahead without.
        """
        scheduler = self._schedulers[model]
        verdict: Grant | Drop | Refuse | None = None
        try:
            verdict = await self._acquire(scheduler, request)
            if verdict is None or isinstance(verdict, Grant):
                self._running[model].add(request.call_id)
            yield verdict
        finally:
            self._running[model].discard(request.call_id)
            with contextlib.suppress(ValueError, RayError):
                if isinstance(verdict, Grant):
                    scheduler.get().release.remote(verdict.lease, request.call_id)
                elif verdict is None:
                    scheduler.get().cancel.remote(request.call_id)

    async def _acquire(self, scheduler: ActorRef, request: Acquire) -> Grant | Drop | Refuse | None:
        """Ask until there is a verdict; idempotent on the call id, so asking again is safe.

        ``Lost``: the scheduler had given this holder up, wrongly, and forgotten the call.
        """
        started = time.monotonic()
        failing_since: float | None = None
        while True:
            try:
                asked = time.monotonic()
                left = request.remaining_s - (asked - started)
                ask = dataclasses.replace(request, remaining_s=left)
                verdict = await scheduler.get().acquire.remote(ask)
                failing_since = None
                if not isinstance(verdict, Lost):
                    return verdict
            except (RayActorError, ValueError):
                scheduler.forget()
                failing_since = failing_since or asked
                if time.monotonic() - failing_since > FAIL_OPEN_S:
                    self.num_bypassed += 1
                    return None
                await asyncio.sleep(RETRY_S)

    async def run_heartbeats(self) -> None:
        """Tell every scheduler, for ever, which calls run here."""
        while True:
            for model, scheduler in self._schedulers.items():
                try:
                    calls = tuple(self._running[model])
                    scheduler.get().heartbeat.remote(self.holder, calls)
                except (RayError, ValueError):
                    scheduler.forget()
            await asyncio.sleep(HEARTBEAT_S)
