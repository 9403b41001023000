"""Leases as a driver of queries takes them: one ``LeaseStock`` per model, kept in step by messages.

Events go to a model's scheduler in batches, one message per turn of the event loop; its mail comes
by long poll, which is also the sign of life of this holder. A scheduler that does not answer for
``FAIL_OPEN_S`` is bypassed: the engine's own bound and its priority by deadline still hold, and
every bypass is counted. That of an API model never is: only it knows what has been sent, so calls
wait until it is back.
"""

from __future__ import annotations

import asyncio
import time

from ray.exceptions import RayError

from actors.names import ActorNames, ActorRef
from runtime.events import Acquire, Mail
from runtime.leasing import LeaseStock, Verdict

FAIL_OPEN_S = 1.0
RETRY_S = 0.05
REGISTER_S = 1.0
SILENT_S = 3.0
"""An answer to a poll comes within ``scheduler_actor.POLL_S``, if the scheduler runs."""


class LeaseBook:
    """All leases of one holder (one driver of queries), over all models."""

    def __init__(
        self,
        holder: str,
        names: ActorNames,
        models: tuple[str, ...],
        metered: frozenset[str] = frozenset(),
    ) -> None:
        """``metered`` are the API models among ``models``."""
        self.holder = holder
        self.metered = metered
        self._lines = {
            model: _Line(holder, ActorRef(names.scheduler(model)), model in metered)
            for model in models
        }

    @property
    def num_held(self) -> int:
        """Calls that run, with or without a lease."""
        return sum(line.stock.num_running for line in self._lines.values())

    @property
    def num_idle(self) -> int:
        """Leases kept for a next call."""
        return sum(line.stock.num_idle for line in self._lines.values())

    @property
    def num_bypassed(self) -> int:
        return sum(line.num_bypassed for line in self._lines.values())

    async def acquire(self, model: str, request: Acquire) -> Verdict | None:
        """Wait until the call may run or never will; ``release`` it in either case.

        ``None`` means that it runs, on a lease that was kept or since no scheduler answers.
        """
        return await self._lines[model].acquire(request)

    def release(self, model: str, call_id: str) -> None:
        """The call is over, or no longer wanted."""
        self._lines[model].release(call_id)

    def limited(self, model: str, retry_after_s: float | None) -> None:
        """The provider of a model refused a request for its rate; matters of API models only."""
        if model in self.metered:
            self._lines[model].limited(retry_after_s)

    def start(self) -> list[asyncio.Task[None]]:
        """Begin to read mail; needs a running event loop."""
        return [asyncio.create_task(line.run()) for line in self._lines.values()]


class _Line:
    """The connection to one model's scheduler."""

    def __init__(self, holder: str, scheduler: ActorRef, metered: bool) -> None:
        self.stock = LeaseStock(holder, metered)
        self.num_bypassed = 0
        self._holder = holder
        self._scheduler = scheduler
        self._verdicts: dict[str, asyncio.Future[Verdict | None]] = {}
        self._flushing = False
        self._read = (-1, 0)
        self._failing_since: float | None = None
        self._registered_s = 0.0

    async def acquire(self, request: Acquire) -> Verdict | None:
        if self.stock.start(request, time.monotonic()):
            return None
        if self._may_bypass():
            self._bypass(request.call_id)
            return None
        verdict = asyncio.get_running_loop().create_future()
        self._verdicts[request.call_id] = verdict
        self._flush_soon()
        try:
            return await verdict
        finally:
            self._verdicts.pop(request.call_id, None)

    def release(self, call_id: str) -> None:
        self.stock.end(call_id, time.monotonic())
        self._flush_soon()

    def limited(self, retry_after_s: float | None) -> None:
        self.stock.limited(retry_after_s)
        self._flush_soon()

    async def run(self) -> None:
        """Poll for ever."""
        while True:
            try:
                async with asyncio.timeout(SILENT_S):
                    mail = await self._poll()
            except (RayError, ValueError, TimeoutError):
                await self._unreachable()
                continue
            if self._failing_since is not None:
                self.stock.start_over(time.monotonic())
            self._failing_since = None
            self._receive(mail)

    async def _poll(self) -> Mail:
        now, held = time.monotonic(), None
        if now - self._registered_s >= REGISTER_S:
            self._registered_s, held = now, self.stock.held
        poll = self._scheduler.get().poll
        mail: Mail = await poll.remote(self._holder, self._read, held)
        return mail

    def _receive(self, mail: Mail) -> None:
        now = time.monotonic()
        self._read = (mail.box, mail.number)
        for verdict in self.stock.receive(mail, now):
            self._resolve(verdict.call_id, verdict)
        self.stock.tidy(now)
        self._flush_soon()

    async def _unreachable(self) -> None:
        """Nobody answered: try again, and after a while let those who wait go ahead."""
        self._scheduler.forget()
        if self._failing_since is None:
            self._failing_since = time.monotonic()
        if self._may_bypass():
            for call_id in list(self._verdicts):
                self._bypass(call_id)
                self._resolve(call_id, None)
        await asyncio.sleep(RETRY_S)

    def _may_bypass(self) -> bool:
        since = self._failing_since
        failing = since is not None and time.monotonic() - since > FAIL_OPEN_S
        return failing and not self.stock.metered

    def _bypass(self, call_id: str) -> None:
        self.stock.run_without(call_id)
        self.num_bypassed += 1

    def _resolve(self, call_id: str, verdict: Verdict | None) -> None:
        future = self._verdicts.pop(call_id, None)
        if future is not None and not future.done():
            future.set_result(verdict)

    def _flush_soon(self) -> None:
        if self.stock.outbox and not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Everything since the last turn as one message, without an answer."""
        self._flushing = False
        events, self.stock.outbox = tuple(self.stock.outbox), []
        try:
            submit = self._scheduler.get().submit.options(num_returns=0)
            submit.remote(self._holder, events)
        except (RayError, ValueError):
            self._scheduler.forget()  # a new incarnation is asked again for all that waits
