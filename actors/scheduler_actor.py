"""The scheduler of one model: a ``DispatchState`` behind awaitable leases. Tokens never pass it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import ray
from ray.exceptions import RayError

from actors.names import ActorNames, ActorRef
from runtime.config import parse_config
from runtime.dispatch import DispatchState
from runtime.events import (
    Acquire,
    Cancel,
    CapacityChanged,
    DispatchEvent,
    Drop,
    EngineCalls,
    Grant,
    HolderLost,
    LeaseId,
    Lost,
    Refuse,
    Register,
    Release,
    Tick,
)
from runtime.telemetry import ModelLoad

Outcome = Grant | Drop | Refuse | Lost | None


class SchedulerActor:
    """Grants leases in deadline order. Capacity follows the replicas that the monitor hears."""

    def __init__(self, model: str, config: dict[str, Any]) -> None:
        self._config = parse_config(config)
        settings = self._config.model(model)
        restarted = ray.get_runtime_context().was_current_actor_reconstructed
        self._state = DispatchState(
            model,
            epoch=time.time_ns(),
            slots=settings.max_num_seqs * settings.replicas,
            order=self._config.order,
            max_backlog=self._config.limits.max_backlog_per_model,
            now=time.monotonic(),
            recovering=restarted,
        )
        self._waiters: dict[str, list[asyncio.Future[Outcome]]] = {}
        self._holders: dict[str, float] = {}
        self._slots = settings.max_num_seqs * settings.replicas
        self._monitor = ActorRef(ActorNames(self._config.digest).monitor)
        self._changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._report()), loop.create_task(self._tick())]

    async def ready(self) -> bool:
        """Answers once the actor runs."""
        return True

    async def acquire(self, request: Acquire) -> Outcome:
        """Wait for a lease; ``None`` when the call was withdrawn while it waited."""
        self._holders[request.holder] = time.monotonic()
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(request.call_id, []).append(future)
        try:
            self._apply(request)
        except ValueError:
            self._resolve(request.call_id, None)
            raise
        return await future

    async def release(self, lease: LeaseId, call_id: str) -> None:
        """Give a lease back, also one that was registered anew under another number."""
        self._apply(Release(lease))
        self._apply(Cancel(call_id))

    async def cancel(self, call_id: str) -> None:
        """Withdraw a call, waiting or leased."""
        self._apply(Cancel(call_id))
        self._resolve(call_id, None)

    async def heartbeat(self, holder: str, calls: tuple[str, ...]) -> int:
        """A holder lives and runs ``calls``; returns the epoch.

        A restarted scheduler learns from it which leases are out; a holder that was given up
        gets its leases back. For leases that are known it changes nothing.
        """
        self._holders[holder] = time.monotonic()
        if calls:
            self._apply(Register(holder, calls))
        return self._state.epoch

    async def counters(self) -> dict[str, int]:
        """Counts since the start, and what is out now; for tests and metrics."""
        report = self._state.report(time.monotonic())
        waiting = sum(len(futures) for futures in self._waiters.values())
        now = {"backlog": report.backlog, "leased": report.leased, "waiters": waiting}
        return {**self._state.counters, **now}

    def _apply(self, event: DispatchEvent) -> None:
        running = event.calls if isinstance(event, Register) else ()
        for command in self._state.handle(event, time.monotonic()):
            delivered = self._resolve(command.call_id, command)
            if isinstance(command, Grant) and not delivered and command.call_id not in running:
                self._apply(Release(command.lease))
        self._changed.set()

    def _resolve(self, call_id: str, outcome: Outcome) -> bool:
        delivered = False
        for future in self._waiters.pop(call_id, ()):
            if not future.done():
                future.set_result(outcome)
                delivered = True
        return delivered

    async def _tick(self) -> None:
        """Wake when the state machine wants to, and look for lost holders."""
        while True:
            now = time.monotonic()
            wake = self._state.next_wakeup(now)
            period = self._config.telemetry.report_period_s
            await asyncio.sleep(min(period, max(0.0, wake - now)) if wake else period)
            self._apply(Tick())
            timeout = self._config.telemetry.holder_timeout_s
            for holder, seen in list(self._holders.items()):
                if time.monotonic() - seen > timeout:
                    del self._holders[holder]
                    self._apply(HolderLost(holder))

    async def _report(self) -> None:
        """Tell the monitor the backlog, at most every 50 ms; learn capacity and engine calls."""
        while True:
            with contextlib.suppress(TimeoutError):
                period = self._config.telemetry.report_period_s
                await asyncio.wait_for(self._changed.wait(), period)
            self._changed.clear()
            try:
                report = self._state.report(time.monotonic())
                load = await asyncio.wait_for(
                    self._monitor.get().report_queue.remote(report), timeout=2.0
                )
                self._learn(load)
            except (RayError, ValueError, TimeoutError):
                self._monitor.forget()
            await asyncio.sleep(0.05)

    def _learn(self, load: ModelLoad | None) -> None:
        if load is None or load.replicas == 0:
            return
        if load.slots != self._slots:
            self._slots = load.slots
            self._apply(CapacityChanged(load.slots))
        if self._state.orphans and load.running is not None:
            self._apply(EngineCalls(load.engine_calls))
