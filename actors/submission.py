"""Queries handed to whoever drives them: this process, or workflow actors that may die.

By default the process that takes a query in drives it, too: a hop less on every query. With
``workflow_actors`` in the config, plans run on these, and a query whose actor dies before anything
was said of it runs once more. A call by name needs no plan and is always driven here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from ray.exceptions import RayActorError, RayError

from actors.names import ActorNames, ActorRef
from actors.runner import Progress
from actors.workflow_actor import WorkflowActor
from runtime.config import AppConfig
from runtime.errors import DeadlineExceeded, InfraMindError, NoModelAnswered, QueryCancelled
from runtime.outcome import Progress as Facts
from runtime.outcome import build_answer
from runtime.types import Answer, DeadlineKind, Query

RESTART_POLL_S = 0.2
GRACE_S = 5.0
"""Beyond a hard deadline, for the outcome to come from an actor that runs."""


class Drivers:
    """Who drives the queries of this process; ``own`` drives those that stay here."""

    def __init__(self, config: AppConfig, own: WorkflowActor) -> None:
        names = ActorNames(config.digest)
        self.own = own
        self._workflows = [ActorRef(names.workflow(i)) for i in range(config.workflow_actors)]
        self._turn = itertools.count()

    def submission(self, query: Query, arrival_s: float) -> Submission | DirectSubmission:
        """``query``, ready to be handed over; the workflow actors take turns."""
        if query.direct_model is not None or not self._workflows:
            return DirectSubmission(self.own, query, arrival_s)
        workflow = self._workflows[next(self._turn) % len(self._workflows)]
        return Submission(workflow, query, arrival_s, self.own.log_outcome)

    def withdraw_everywhere(self, query_id: str) -> None:
        """End a query that somebody else handed to a workflow actor, whichever it was."""
        for workflow in self._workflows:
            withdraw(workflow, query_id)


class Submission:
    """A query on its way to a workflow actor; ``arrival_s`` is on this process's monotonic clock.

    Use either ``answer`` or ``items``, once. Both end with an ``Answer``, whatever happens.
    """

    def __init__(
        self,
        workflow: ActorRef,
        query: Query,
        arrival_s: float,
        log: Callable[[Query, float, Answer], None],
    ) -> None:
        self.query = query
        self._log = log
        self._workflow = workflow
        self._arrival_s = arrival_s
        self._withdrawn = False

    async def answer(self) -> Answer:
        """Run to the outcome."""
        for last in (False, True):
            try:
                method = self._workflow.get().run
                sent = method.remote(self.query, self._spent_s())
                async with asyncio.timeout(self._patience_s()):
                    answer: Answer = await sent
                return answer
            except TimeoutError:
                return self._silent()
            except (RayActorError, ValueError) as error:
                if last or not await self._back():
                    return self._lost(error)
        raise AssertionError("unreachable")

    async def items(self) -> AsyncIterator[Progress]:
        """The query's progress. It is submitted once more only if nothing was said before."""
        silent = True
        for last in (False, True):
            try:
                method = self._workflow.get().stream.options(num_returns="streaming")
                refs = aiter(method.remote(self.query, self._spent_s()))
                while (item := await self._next(refs)) is not None:
                    silent = False
                    if self._withdrawn and not isinstance(item, Answer):
                        self.withdraw()  # the first time may have come before the query itself
                    yield item
                return
            except TimeoutError:
                yield self._silent()
                return
            except (RayError, ValueError) as error:
                if last or not silent or not await self._back():
                    yield self._lost(error)
                    return

    def withdraw(self) -> None:
        """End it, and everything it started, wherever it is; saying it twice is harmless."""
        self._withdrawn = True
        withdraw(self._workflow, self.query.query_id)

    async def _next(self, refs: AsyncIterator[Any]) -> Progress | None:
        """The next item, ``None`` at the end."""
        try:
            async with asyncio.timeout(self._patience_s()):
                item: Progress = await (await anext(refs))
                return item
        except StopAsyncIteration:
            return None

    def _patience_s(self) -> float | None:
        """How long an actor that says nothing is waited for; a soft deadline ends nothing."""
        if self.query.deadline_kind is DeadlineKind.SOFT:
            return None
        return max(0.0, self.query.budget_s - self._spent_s()) + GRACE_S

    def _silent(self) -> Answer:
        self.withdraw()
        error = DeadlineExceeded("the workflow actor does not answer")
        return failed(self.query, self._spent_s(), error)

    def _spent_s(self) -> float:
        return time.monotonic() - self._arrival_s

    async def _back(self) -> bool:
        """Wait until a workflow actor that died runs again; ``False``: it would be of no use."""
        while self._spent_s() < self.query.budget_s and not self._withdrawn:
            self._workflow.forget()
            try:
                await self._workflow.get().ready.remote()
                return not self._withdrawn
            except (RayActorError, ValueError):
                await asyncio.sleep(RESTART_POLL_S)
        return False

    def _lost(self, cause: BaseException) -> Answer:
        """The outcome where the workflow actor can tell none."""
        error: InfraMindError
        if self._withdrawn:
            error = QueryCancelled("the query was withdrawn")
        else:
            error = NoModelAnswered(f"the workflow actor was lost: {type(cause).__name__}")
        answer = failed(self.query, self._spent_s(), error)
        self._log(self.query, self._arrival_s, answer)  # whoever ran it no longer can
        return answer


class DirectSubmission:
    """The same for a query that runs in this process: it lives and dies with the connection."""

    def __init__(self, runner: WorkflowActor, query: Query, arrival_s: float) -> None:
        self.query = query
        self._runner = runner
        self._arrival_s = arrival_s

    async def answer(self) -> Answer:
        """Run to the outcome."""
        return await self._runner.run(self.query, time.monotonic() - self._arrival_s)

    async def items(self) -> AsyncIterator[Progress]:
        """The query's progress."""
        stream = self._runner.stream(self.query, time.monotonic() - self._arrival_s)
        async with contextlib.aclosing(stream) as items:
            async for item in items:
                yield item

    def withdraw(self) -> None:
        """End it, and everything it started."""
        self._runner.withdraw(self.query.query_id)


def withdraw(workflow: ActorRef, query_id: str) -> None:
    """Tell a workflow actor, if it is there, to end a query."""
    with contextlib.suppress(RayError, ValueError):
        workflow.get().cancel.remote(query_id)


def failed(query: Query, spent_s: float, error: InfraMindError) -> Answer:
    """The outcome of a query of which nothing else is known."""
    return build_answer(Facts(query, 0.0, None, (), ""), spent_s, "error", None, "", error)
