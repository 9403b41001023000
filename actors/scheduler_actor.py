"""The scheduler of one model: a ``DispatchState`` that hears holders in batches and mails them.

Tokens never pass it, and while nobody waits calls do not either: see ``runtime.leasing``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any

import ray
from ray.exceptions import RayError

from actors.names import ActorNames, ActorRef
from runtime.config import parse_config
from runtime.dispatch import DispatchState
from runtime.events import (
    Acquire,
    CapacityChanged,
    DispatchCommand,
    DispatchEvent,
    EngineCalls,
    Held,
    HolderLost,
    Mail,
    Refuse,
    Register,
    Tick,
)
from runtime.ratelimit import RateWindow
from runtime.telemetry import ModelLoad

POLL_S = 1.0
"""A holder that polls gets mail at least so often, be it empty."""

REPORT_GAP_S = 0.05

RECOVERY_S = 1.0
"""For so long a restarted scheduler grants nothing, so that holders can tell what they run."""

logger = logging.getLogger(__name__)


class _Mailbox:
    """Commands for one holder that it has not acknowledged yet. Its id is never used again."""

    def __init__(self) -> None:
        self.seen_s = time.monotonic()
        self.news = asyncio.Event()
        self._box = time.time_ns()
        self._number = 0
        self._unread: list[DispatchCommand] = []
        self._contended = False

    @property
    def num_unread(self) -> int:
        return len(self._unread)

    def put(self, command: DispatchCommand) -> None:
        self._unread.append(command)
        self._number += 1
        self.news.set()

    def acknowledge(self, box: int, number: int) -> None:
        """Everything up to ``number`` has arrived."""
        if box == self._box:
            del self._unread[: max(0, len(self._unread) - (self._number - number))]

    def stale(self, contended: bool) -> bool:
        """Whether there is something to tell."""
        return bool(self._unread) or contended != self._contended

    def mail(self, contended: bool) -> Mail:
        self.news.clear()
        self._contended = contended
        return Mail(self._box, self._number, tuple(self._unread), contended)


class SchedulerActor:
    """Grants leases in deadline order. Capacity follows the replicas that the monitor hears."""

    def __init__(self, model: str, config: dict[str, Any]) -> None:
        self._config = parse_config(config)
        settings = self._config.model(model)
        self._slots = settings.max_num_seqs * settings.replicas
        self._state = DispatchState(
            model,
            epoch=time.time_ns(),
            slots=self._slots,
            order=self._config.order,
            max_backlog=self._config.limits.max_backlog_per_model,
            now=time.monotonic(),
            recovering=ray.get_runtime_context().was_current_actor_reconstructed,
            window=RateWindow(settings.api.rpm_limit) if settings.api else None,
            # Every holder that lives is heard until then, and knows a part of the window.
            recovery_s=self._config.telemetry.holder_timeout_s if settings.api else RECOVERY_S,
        )
        self._boxes: dict[str, _Mailbox] = {}
        self._monitor = ActorRef(ActorNames(self._config.digest).monitor)
        self._changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._report()), loop.create_task(self._tick())]

    async def ready(self) -> bool:
        """Answers once the actor runs."""
        return True

    async def submit(self, holder: str, events: tuple[DispatchEvent, ...]) -> None:
        """What happened at ``holder``, in order."""
        self._box(holder)
        for event in events:
            self._apply(event)

    async def poll(self, holder: str, read: tuple[int, int], held: tuple[Held, ...] | None) -> Mail:
        """Mail for ``holder``, at the latest after ``POLL_S``.

        ``read`` are box and number of the last mail that arrived there; ``held``, now and then,
        is what it runs.
        """
        box = self._box(holder)
        box.acknowledge(*read)
        if held is not None:
            self._apply(Register(holder, held))
        if not box.stale(self._state.contended):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await box.news.wait()
        return box.mail(self._state.contended)

    async def counters(self) -> dict[str, int]:
        """Counts since the start, and what is out now; for tests and metrics."""
        report = self._state.report(time.monotonic())
        unread = sum(box.num_unread for box in self._boxes.values())
        now = {"backlog": report.backlog, "leased": report.leased, "unread": unread}
        recent = {"recent": report.rate.recent} if report.rate else {}  # requests of the minute
        return {**self._state.counters, **now, **recent}

    def _box(self, holder: str) -> _Mailbox:
        box = self._boxes.get(holder)
        if box is None:
            box = self._boxes[holder] = _Mailbox()
        box.seen_s = time.monotonic()
        return box

    def _apply(self, event: DispatchEvent) -> None:
        was_contended = self._state.contended
        for command in self._handle(event):
            if (box := self._boxes.get(command.holder)) is not None:
                box.put(command)
        if self._state.contended and not was_contended:
            for box in self._boxes.values():
                box.news.set()
        self._changed.set()

    def _handle(self, event: DispatchEvent) -> list[DispatchCommand]:
        try:
            return self._state.handle(event, time.monotonic())
        except ValueError as error:
            logger.error("refused: %s", error)
            if isinstance(event, Acquire):
                return [Refuse(event.call_id, event.holder, 1.0)]
            return []

    async def _tick(self) -> None:
        """Wake when the state machine wants to, and look for lost holders."""
        while True:
            now = time.monotonic()
            wake = self._state.next_wakeup(now)
            period = self._config.telemetry.report_period_s
            await asyncio.sleep(min(period, max(0.0, wake - now)) if wake else period)
            self._apply(Tick())
            timeout = self._config.telemetry.holder_timeout_s
            for holder, box in list(self._boxes.items()):
                if time.monotonic() - box.seen_s > timeout:
                    del self._boxes[holder]  # if it lives after all, a new box tells it so
                    self._apply(HolderLost(holder))

    async def _report(self) -> None:
        """Tell the monitor the backlog after every change; learn capacity and engine calls."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.telemetry.report_period_s):
                    await self._changed.wait()
            self._changed.clear()
            try:
                report = self._state.report(time.monotonic())
                async with asyncio.timeout(2.0):
                    load = await self._monitor.get().report_queue.remote(report)
                self._learn(load)
            except (RayError, ValueError, TimeoutError):
                self._monitor.forget()
            await asyncio.sleep(REPORT_GAP_S)

    def _learn(self, load: ModelLoad | None) -> None:
        if load is None or load.replicas == 0:
            return
        if load.slots != self._slots:
            self._slots = load.slots
            self._apply(CapacityChanged(load.slots))
        if self._state.orphans and load.running is not None:
            self._apply(EngineCalls(load.engine_calls))
