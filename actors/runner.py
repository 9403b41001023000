"""One query on the event loop: performs the commands of its ``WorkflowState``."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

from actors.failures import call_failed
from actors.leases import LeaseBook
from actors.log_sender import LogSender
from actors.programs import ProgramRunner
from actors.protocol import (
    EngineBusy,
    EngineChunk,
    EngineRequest,
    ToolCallDelta,
    merged,
    whole_calls,
)
from runtime.attempt import denied, too_late
from runtime.config import AppConfig
from runtime.decide import Decider
from runtime.errors import InfraMindError, QueryCancelled
from runtime.events import (
    Acquire,
    AskPlan,
    AskRoute,
    CallDone,
    CallFailed,
    CancelCall,
    Cancelled,
    DeadlinePassed,
    FailureKind,
    Finish,
    RunCall,
    TelemetryChanged,
    WorkflowCommand,
    WorkflowEvent,
)
from runtime.load import LocalLoad
from runtime.types import (
    Answer,
    Call,
    CallResult,
    Query,
    StepKind,
    TaskKind,
    TokenLogprob,
    Topology,
)
from runtime.watch import CallWatch
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
    """A piece of the answer number ``choice``."""

    text: str
    choice: int = 0
    tool_calls: tuple[ToolCallDelta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None


Progress = Started | StepStarted | Delta | Answer


@dataclass(frozen=True, slots=True)
class Services:
    """What all queries of one driver share."""

    config: AppConfig
    decider: Callable[[str | None], Decider]
    classify: Callable[[str, TaskKind | None], Awaitable[tuple[TaskKind, Any]]]
    leases: LeaseBook
    load: LocalLoad
    watch: CallWatch
    engines: dict[str, Any]
    programs: ProgramRunner
    log: LogSender | None = None


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
        self._outcome: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._streamed: dict[int, list[str]] = {}  # what has left, by choice
        self._embedding: Sequence[float] | None = None
        log = services.log
        self._record = None if log is None else log.record(query, arrival_s)

    def cancel(self) -> None:
        """The client went away."""
        self._take(Cancelled())

    def lost(self, call_id: str) -> None:
        """No replica knows of a call any more: give it up; unknown ids are ignored."""
        call, task = self._state.call(call_id), self._tasks.pop(call_id, None)
        if call is not None and task is not None:
            task.cancel()
            event = self._lost(call, "no replica has reported the call for too long")
            self._ended(call, event)
            self._take(event)

    def telemetry_changed(self) -> None:
        """A new snapshot arrived; only a query with a parked step cares."""
        if any(step.status == "parked" for step in self._state.steps):
            self._take(TelemetryChanged())

    async def run(self) -> Answer:
        """Run to the outcome; never raises for a failure of the query itself."""
        left_s = max(0.0, self._state.deadline_s - time.monotonic())
        timer = asyncio.get_running_loop().call_later(left_s, self._deadline_passed)
        try:
            self._perform_all(self._guard(self._state.start))
            return await self._outcome
        finally:
            timer.cancel()
            for task in list(self._tasks.values()):
                task.cancel()
            self._given_up()

    def _given_up(self) -> None:
        """Where there is no outcome yet, nobody waits for one any more; the log is told."""
        if self._state.answer is None:
            self._state.fail(QueryCancelled("the query was given up"), time.monotonic())
            assert self._state.answer is not None
            self._log(self._state.answer)

    def _deadline_passed(self) -> None:
        first = self._streamed[min(self._streamed)] if self._streamed else []
        self._take(DeadlinePassed("".join(first)))

    def _take(self, event: WorkflowEvent) -> None:
        """Apply one event and do what follows from it."""
        self._perform_all(self._guard(lambda now: self._state.handle(event, now)))

    def _guard(self, advance: Callable[[float], list[WorkflowCommand]]) -> list[WorkflowCommand]:
        """Advance the state machine; what is wrong with a plan or a policy ends the query."""
        now = time.monotonic()
        try:
            return advance(now)
        except InfraMindError as error:
            return self._state.fail(error, now)
        # A policy is a plug-in: its fault ends its query, not the actor. Nothing is awaited here,
        # so a `CancelledError` is its own, too.
        except (Exception, asyncio.CancelledError) as error:
            logger.exception("query %s: the policy failed", self.query.query_id)
            return self._state.fail(InfraMindError(f"the policy failed: {error!r}"), now)

    def _perform_all(self, commands: list[WorkflowCommand]) -> None:
        """Perform commands, and what each leads to before the next: a step is routed with the
        calls of its siblings on their way."""
        for command in commands:
            self._perform_all(self._perform(command))

    def _perform(self, command: WorkflowCommand) -> list[WorkflowCommand]:
        match command:
            case AskPlan():
                return self._ask_plan()
            case AskRoute() as ask:
                return self._guard(lambda now: self._route(ask, now))
            case RunCall(call=call):
                self._start(call)
            case CancelCall(call_id=call_id):
                if task := self._tasks.pop(call_id, None):
                    task.cancel()
            case Finish(answer=answer):
                self._log(answer)
                self._emit(answer)
                if not self._outcome.done():
                    self._outcome.set_result(answer)
            case _:
                assert_never(command)
        return []

    def _ask_plan(self) -> list[WorkflowCommand]:
        """Ask the planner; first find kind and embedding, where anybody wants them."""
        task = self.query.task
        if task is not None and not self._decider.policy.needs_embedding:
            return self._guard(lambda now: self._plan(task, now))
        self._tasks["plan"] = _own_task(self._classify())
        return []

    async def _classify(self) -> None:
        classify = self._services.classify
        task, self._embedding = await classify(self.query.question, self.query.task)
        self._perform_all(self._guard(lambda now: self._plan(task, now)))

    def _plan(self, task: TaskKind, now: float) -> list[WorkflowCommand]:
        pool, left_s = self._services.load.view(now), self._state.deadline_s - now
        planned = self._decider.plan(self.query, task, pool, left_s, self._embedding)
        commands = self._state.handle(planned, now)
        if self._state.answer is None:
            self._emit(Started(planned.plan.topology))
        return commands

    def _route(self, ask: AskRoute, now: float) -> list[WorkflowCommand]:
        if self._state.answer is not None:
            return []
        pool = self._services.load.view(now)
        routed = self._decider.route(self._state, ask, pool, now, self._embedding)
        return self._state.handle(routed, now)

    # --- calls -------------------------------------------------------------------------------

    def _start(self, call: Call) -> None:
        now, load = time.monotonic(), self._services.load
        step = self._state.steps[call.step_id].step
        if self._record is not None:
            self._record.asked(call, step, self._state.num_shown(step), load.view(now), now)
        load.sent(call.call_id, call.model, now)
        if step.kind is StepKind.DIRECT:
            self._emit(Started(Topology.IO))
        depth = "as sent" if step.kind is StepKind.DIRECT else call.strategy
        self._emit(StepStarted(call.step_id, step.role, call.model, depth))
        task = self._tasks[call.call_id] = _own_task(self._run_call(call))
        # Also here: a task that is cancelled before it began runs none of its own code.
        task.add_done_callback(lambda _: self._ended(call))

    def _ended(self, call: Call, event: WorkflowEvent | None = None) -> None:
        """The call no longer counts as load; saying it twice is harmless."""
        now = time.monotonic()
        self._services.load.ended(call.call_id, call.model, now, event)
        if event is not None:
            self._services.load.paid(call, event, now)
        if isinstance(event, CallFailed) and event.kind.of_the_model:
            kind, why = event.kind.value, event.message
            logger.warning("query %s: a call failed (%s): %s", self.query.query_id, kind, why)
        if self._record is not None:
            self._record.ended(call.call_id, event, now)

    def _log(self, answer: Answer) -> None:
        """The query has its outcome: its rows go to the log."""
        log = self._services.log
        if self._record is None or log is None:
            return
        try:
            log.add(self._record.finished(answer, time.monotonic(), self._embedding))
        except Exception:  # the answer goes out all the same
            logger.exception("query %s: no rows for the log", self.query.query_id)

    async def _run_call(self, call: Call) -> None:
        event = await self._attempt(call)
        self._ended(call, event)
        if isinstance(event, CallDone):
            event = await self._with_run(event)
        self._tasks.pop(call.call_id, None)
        self._take(event)

    async def _with_run(self, done: CallDone) -> CallDone:
        """The same with what came of the program in the answer; its slot is free meanwhile."""
        call_id, result = done.call_id, done.result
        program = self._state.program(call_id, result.text, time.monotonic())
        if program is None:
            return done
        run = await self._services.programs.run(program)
        return CallDone(call_id, replace(result, run=run))

    async def _attempt(self, call: Call) -> WorkflowEvent:
        """Lease, call, release; what went wrong becomes an event."""
        started = time.monotonic()
        request = Acquire(
            call.call_id,
            self._services.leases.holder,
            self._state.deadline_s - started,
            call.service_s or 0.0,
            call.path_s,
            self._state.hard,
        )
        leases = self._services.leases
        try:
            verdict = await leases.acquire(call.model, request)
            if (event := denied(call, verdict)) is not None:
                return event
            granted = time.monotonic()
            admitted = self._services.load.admits(call.call_id, call.model)
            max_tokens = self._state.max_tokens_at(call.call_id, granted)
            if (event := too_late(call, admitted, max_tokens)) is not None:
                return event
            self._services.watch.began(call.call_id, call.model)
            if self._record is not None:
                self._record.granted(call.call_id, max_tokens, granted)
            result = await self._generate(call, max_tokens, started, granted)
            return CallDone(call.call_id, result)
        except asyncio.CancelledError:
            if not _cancelled_by_us():  # by the replica, as it went down
                return self._lost(call, "the replica gave up the call")
            raise
        except Exception as error:
            # Before the lease goes back, so that nobody is granted its place meanwhile.
            if isinstance(error, EngineBusy) and error.limited:
                leases.limited(call.model, error.retry_after_s)
            return call_failed(call, error, self._has_left(call), call.model in leases.metered)
        finally:
            self._services.watch.ended(call.call_id)
            leases.release(call.model, call.call_id)

    def _lost(self, call: Call, why: str) -> CallFailed:
        message = f"{call.model}: {why}"
        return CallFailed(call.call_id, FailureKind.LOST, message, self._has_left(call))

    def _has_left(self, call: Call) -> bool:
        """Whether some of the call's text is with the client."""
        return call.final and call.choice in self._streamed

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
            prompt=call.prompt,
            stall_s=self._state.stall_limit_at(call.call_id, granted),
        )
        engine = self._services.engines[call.model]
        if request.stream:
            last = await self._stream(engine, request, call.choice)
        else:
            last = await engine.answer.remote(request)
        return CallResult(
            text=last.text,
            finish_reason=last.finish_reason or "stop",
            prompt_tokens=last.prompt_tokens,
            completion_tokens=last.completion_tokens,
            queue_s=granted - started,
            service_s=time.monotonic() - granted,
            ttft_s=last.ttft_s,
            replica=last.replica,
            tool_calls=whole_calls(last.tool_calls),
            logprobs=last.logprobs,
        )

    async def _stream(self, engine: Any, request: EngineRequest, choice: int) -> EngineChunk:
        """The whole answer as one chunk; every piece is emitted as it comes."""
        response = engine.options(stream=True).generate.remote(request)
        chunks: list[EngineChunk] = []
        try:
            async for chunk in response:
                chunks.append(chunk)
                if chunk.text or chunk.tool_calls or chunk.logprobs:
                    self._streamed.setdefault(choice, []).append(chunk.text)
                    self._emit(Delta(chunk.text, choice, chunk.tool_calls, chunk.logprobs))
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                response.cancel()
            raise
        return merged(chunks)


def _own_task(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task outside the request's context. When a client goes, Serve cancels the handle calls of
    its request, and a call that somebody else cancels looks like one that its replica lost."""
    return asyncio.create_task(work, context=contextvars.Context())


def _cancelled_by_us() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
