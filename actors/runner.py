"""One query on the event loop: performs the commands of its ``WorkflowState``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, RayServeException

from actors.leases import LeaseBook
from actors.protocol import EngineChunk, EngineRefused, EngineRequest
from runtime.config import AppConfig
from runtime.decide import Decider
from runtime.errors import InfraMindError
from runtime.events import (
    Acquire,
    AskPlan,
    AskRoute,
    CallDone,
    CallDropped,
    CallFailed,
    CancelCall,
    Cancelled,
    DeadlinePassed,
    Drop,
    FailureKind,
    Finish,
    Planned,
    Refuse,
    RunCall,
    TelemetryChanged,
    WorkflowCommand,
    WorkflowEvent,
)
from runtime.load import LocalLoad
from runtime.types import Answer, Call, CallResult, Query, StepKind, TaskKind, Topology
from runtime.workflow import WorkflowState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Started:
    """The plan is made."""

    topology: str


@dataclass(frozen=True, slots=True)
class StepStarted:
    """A call is on its way to a model's queue."""

    step_id: int
    role: str
    model: str
    strategy: str


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of the answer's text."""

    text: str


Progress = Started | StepStarted | Delta | Answer


@dataclass(frozen=True, slots=True)
class Services:
    """What all queries of one workflow actor share."""

    config: AppConfig
    decider: Callable[[str | None], Decider]
    classify: Callable[[str, TaskKind | None], Awaitable[tuple[TaskKind, Any]]]
    leases: LeaseBook
    load: LocalLoad
    engines: dict[str, Any]


class QueryRunner:
    """Runs one query to its outcome; ``emit`` receives progress and last the ``Answer``.

    With ``streaming`` the text of the final step is emitted as it comes.
    """

    def __init__(
        self,
        services: Services,
        query: Query,
        arrival_s: float,
        emit: Callable[[Progress], None],
        streaming: bool,
    ) -> None:
        self.query = query
        self._services = services
        self._emit = emit
        self._streaming = streaming
        self._state = WorkflowState(query, services.config, arrival_s)
        self._decider = services.decider(query.policy)
        self._events: asyncio.Queue[WorkflowEvent] = asyncio.Queue()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._streamed: list[str] = []
        self._embedding: Sequence[float] | None = None

    def cancel(self) -> None:
        """The client went away."""
        self._events.put_nowait(Cancelled())

    def telemetry_changed(self) -> None:
        """A new snapshot arrived; only a query with a parked step cares."""
        if any(step.status == "parked" for step in self._state.steps):
            self._events.put_nowait(TelemetryChanged())

    async def run(self) -> Answer:
        """Run to the outcome; never raises for a failure of the query itself."""
        left_s = max(0.0, self._state.deadline_s - time.monotonic())
        timer = asyncio.get_running_loop().call_later(left_s, self._deadline_passed)
        try:
            self._perform_all(self._guard(self._state.start))
            while self._state.answer is None:
                event = await self._events.get()
                commands = self._guard(lambda now, event=event: self._state.handle(event, now))
                if isinstance(event, Planned) and self._state.answer is None:
                    self._emit(Started(event.plan.topology))
                self._perform_all(commands)
            return self._state.answer
        finally:
            timer.cancel()
            for task in list(self._tasks.values()):
                task.cancel()

    def _deadline_passed(self) -> None:
        self._events.put_nowait(DeadlinePassed("".join(self._streamed)))

    def _guard(self, advance: Callable[[float], list[WorkflowCommand]]) -> list[WorkflowCommand]:
        """Advance the state machine; what is wrong with a plan or a policy ends the query."""
        now = time.monotonic()
        try:
            return advance(now)
        except InfraMindError as error:
            return self._state.fail(error, now)
        except Exception as error:  # a policy is a plug-in: its fault ends its query, not the actor
            logger.exception("query %s: the policy failed", self.query.query_id)
            return self._state.fail(InfraMindError(f"the policy failed: {error!r}"), now)

    def _perform_all(self, commands: list[WorkflowCommand]) -> None:
        """Perform commands and those that they lead to; deciding on a route needs no waiting."""
        while commands:
            commands = [c for command in commands for c in self._perform(command)]

    def _perform(self, command: WorkflowCommand) -> list[WorkflowCommand]:
        match command:
            case AskPlan():
                self._tasks["plan"] = asyncio.create_task(self._plan())
            case AskRoute() as ask:
                return self._guard(lambda now: self._route(ask, now))
            case RunCall(call=call):
                self._start(call)
            case CancelCall(call_id=call_id):
                if task := self._tasks.pop(call_id, None):
                    task.cancel()
            case Finish(answer=answer):
                self._emit(answer)
            case _:
                assert_never(command)
        return []

    async def _plan(self) -> None:
        """Find kind and embedding, where anybody wants them, then ask the planner."""
        query, task = self.query, self.query.task or TaskKind.GENERAL
        if query.task is None or self._decider.policy.needs_embedding:
            task, self._embedding = await self._services.classify(query.question, query.task)

        def ask(now: float) -> list[WorkflowCommand]:
            pool, left_s = self._services.load.view(now), self._state.deadline_s - now
            planned = self._decider.plan(query, task, pool, left_s, self._embedding)
            self._events.put_nowait(planned)
            return []

        self._perform_all(self._guard(ask))
        if self._state.answer is not None:
            self._events.put_nowait(TelemetryChanged())  # wakes the loop, which then ends

    def _route(self, ask: AskRoute, now: float) -> list[WorkflowCommand]:
        if self._state.answer is not None:
            return []
        pool = self._services.load.view(now)
        routed = self._decider.route(self._state, ask, pool, now, self._embedding)
        return self._state.handle(routed, now)

    # --- calls -------------------------------------------------------------------------------

    def _start(self, call: Call) -> None:
        self._services.load.sent(call.call_id, call.model, time.monotonic())
        step = self._state.steps[call.step_id].step
        if step.kind is StepKind.DIRECT:
            self._emit(Started(Topology.IO))
        depth = "as sent" if step.kind is StepKind.DIRECT else call.strategy
        self._emit(StepStarted(call.step_id, step.role, call.model, depth))
        task = self._tasks[call.call_id] = asyncio.create_task(self._run_call(call))
        # Also here: a task that is cancelled before it began runs none of its own code.
        task.add_done_callback(lambda _: self._ended(call))

    def _ended(self, call: Call) -> None:
        """The call no longer counts as load; saying it twice is harmless."""
        self._services.load.ended(call.call_id, call.model, time.monotonic())

    async def _run_call(self, call: Call) -> None:
        event = await self._attempt(call)
        self._ended(call)
        self._tasks.pop(call.call_id, None)
        self._events.put_nowait(event)

    async def _attempt(self, call: Call) -> WorkflowEvent:
        """Lease, call, release; what went wrong becomes an event."""
        started = time.monotonic()
        before = len(self._streamed)
        request = Acquire(
            call.call_id,
            self._services.leases.holder,
            self._state.deadline_s - started,
            call.service_s or 0.0,
            call.path_s,
            self._state.hard,
        )
        try:
            async with self._services.leases.lease(call.model, request) as verdict:
                if isinstance(verdict, Drop):
                    return CallDropped(call.call_id)
                if isinstance(verdict, Refuse):
                    return CallFailed(
                        call.call_id,
                        FailureKind.REFUSED,
                        f"the backlog of {call.model} is full",
                        retry_after_s=verdict.retry_after_s,
                    )
                granted = time.monotonic()
                max_tokens = self._state.max_tokens_at(call.call_id, granted)
                if max_tokens < 1:
                    message = f"the time left allows no token on {call.model}"
                    return CallFailed(call.call_id, FailureKind.TIME, message)
                result = await self._generate(call, max_tokens, started, granted)
                return CallDone(call.call_id, result)
        except EngineRefused as error:
            context = error.kind == "context"
            kind = FailureKind.CONTEXT if context else FailureKind.REQUEST
            return CallFailed(call.call_id, kind, f"{call.model}: {error.message}")
        except BackPressureError as error:
            return CallFailed(call.call_id, FailureKind.REFUSED, f"{call.model}: {error}")
        except (RayError, RayServeException, RuntimeError, OSError) as error:
            streamed = len(self._streamed) > before
            message = f"{call.model}: {_first_line(error)}"
            return CallFailed(call.call_id, FailureKind.MODEL, message, streamed)

    async def _generate(
        self, call: Call, max_tokens: int, started: float, granted: float
    ) -> CallResult:
        request = EngineRequest(
            call_id=call.call_id,
            messages=call.messages,
            max_tokens=max_tokens,
            remaining_s=self._state.deadline_s - granted,
            sampling=call.sampling,
            stream=call.final and self._streaming,
            limit_s=self._state.time_limit_at(call.call_id, granted),
        )
        engine = self._services.engines[call.model]
        if request.stream:
            last, text = await self._stream(engine, request)
        else:
            last = await engine.answer.remote(request)
            text = last.text
        return CallResult(
            text=text,
            finish_reason=last.finish_reason or "stop",
            prompt_tokens=last.prompt_tokens,
            completion_tokens=last.completion_tokens,
            queue_s=granted - started,
            service_s=time.monotonic() - granted,
            ttft_s=last.ttft_s,
            replica=last.replica,
        )

    async def _stream(self, engine: Any, request: EngineRequest) -> tuple[EngineChunk, str]:
        """The last chunk and the whole text; every piece is emitted as it comes."""
        response = engine.options(stream=True).generate.remote(request)
        texts: list[str] = []
        last: EngineChunk | None = None
        try:
            async for chunk in response:
                last = chunk
                if chunk.text:
                    texts.append(chunk.text)
                    self._streamed.append(chunk.text)
                    self._emit(Delta(chunk.text))
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                response.cancel()
            raise
        if last is None or last.finish_reason is None:
            raise RuntimeError("the engine ended without a last chunk")
        return last, "".join(texts)


def _first_line(error: BaseException) -> str:
    cause = getattr(error, "cause", None) or error
    lines = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {lines[-1] if lines else 'no message'}"
