"""Drives many queries at once, each by its own ``QueryRunner``: as an actor, or in a process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from ray.exceptions import RayError

from actors.classify import Classifier
from actors.leases import LeaseBook
from actors.log_sender import LogSender
from actors.names import ActorNames, ActorRef
from actors.programs import ProgramRunner
from actors.runner import Progress, QueryRunner, Services
from runtime.calls import query_of
from runtime.config import parse_config
from runtime.decide import Decider
from runtime.errors import InfraMindError, Overloaded
from runtime.load import LocalLoad
from runtime.outcome import Progress as Facts
from runtime.outcome import build_answer
from runtime.policy import make_policy
from runtime.run_program import check_sandbox
from runtime.telemetry import PoolTelemetry
from runtime.types import Answer, Query
from runtime.watch import CallWatch

logger = logging.getLogger(__name__)

MONITOR_SILENT_S = 8.0
"""An answer to a poll of the monitor comes within 5 s, if it runs."""

LOOK_GAP_S = 0.5
"""Between two looks for calls that no replica knows of any more."""


class WorkflowActor:
    """Plans, routes and runs queries on its own copy of the telemetry.

    ``name`` tells it apart from the others of the pool, towards schedulers and the monitor. The
    ingress and the records actor hold one as a plain object, see ``actors.submission``. The bound
    on queries in flight is that of ``sharing`` such drivers together.
    """

    def __init__(
        self,
        name: str,
        config: dict[str, Any],
        engines: dict[str, Any],
        embed: Any,
        sharing: int = 1,
    ) -> None:
        self._config = parse_config(config)
        names = ActorNames(self._config.digest)
        models = tuple(model.name for model in self._config.models)
        self._name = name
        self._limit = -(-self._config.limits.max_queries_in_flight // sharing)
        self._monitor = ActorRef(names.monitor)
        self._deciders = {"": Decider(self._config, make_policy(self._config))}
        self._runners: dict[str, QueryRunner] = {}
        holder = f"{name}:{time.time_ns()}"
        self._services = Services(
            config=self._config,
            decider=self._decider,
            classify=Classifier(embed, self._config.embedding.timeout_s).classify,
            leases=LeaseBook(holder, names, models, self._config.metered_models),
            load=LocalLoad(self._config, holder),
            watch=CallWatch(self._config.limits.silent_s),
            engines=engines,
            programs=ProgramRunner(self._config),
            log=LogSender(self._config) if self._config.call_log.enabled else None,
        )
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._follow_telemetry()),
            *self._services.leases.start(),
        ]

    async def ready(self) -> bool:
        """Answers once the actor runs."""
        return True

    async def check_sandbox(self) -> None:
        """Raises ``ConfigError`` where the config asks for the sandbox and this node has none."""
        await asyncio.to_thread(check_sandbox, self._config)

    async def run(self, query: Query, spent_s: float) -> Answer:
        """One query to its outcome; ``spent_s`` of its budget went by before it came here."""
        return await self._run(query, spent_s, lambda _: None, streaming=False)

    async def stream(self, query: Query, spent_s: float) -> AsyncIterator[Progress]:
        """The same, with its progress: ``Started`` first, the ``Answer`` last."""
        items: asyncio.Queue[Progress] = asyncio.Queue()
        task = asyncio.create_task(self._run(query, spent_s, items.put_nowait, streaming=True))
        try:
            while True:
                item = await items.get()
                yield item
                if isinstance(item, Answer):
                    return
        finally:
            task.cancel()

    async def cancel(self, query_id: str) -> None:
        """Withdraw a query and everything it started; unknown ids are ignored."""
        self.withdraw(query_id)

    def withdraw(self, query_id: str) -> None:
        """The same, for whoever holds this object itself."""
        if runner := self._runners.get(query_id):
            runner.cancel()

    async def counters(self) -> dict[str, int]:
        """The same as ``in_flight``, for who is elsewhere."""
        return self.in_flight

    @property
    def in_flight(self) -> dict[str, int]:
        """What is in flight now, and how often a scheduler was bypassed."""
        return {
            "queries": len(self._runners),
            "calls": self._services.load.num_in_flight,
            "leases": self._services.leases.num_held,
            "idle_leases": self._services.leases.num_idle,
            "bypassed": self._services.leases.num_bypassed,
            "watched": len(self._services.watch),
            "breakers_not_closed": len(self._services.load.breakers(time.monotonic())),
            "programs": self._services.programs.num_running,
            "programs_not_run": self._services.programs.num_failed,
        }

    @property
    def log_state(self) -> dict[str, Any] | None:
        """How the call log fares, ``None`` where there is none."""
        log = self._services.log
        return None if log is None else log.state

    def log_outcome(self, query: Query, arrival_s: float, answer: Answer) -> None:
        """Log a query that had its outcome before it made a call."""
        if (log := self._services.log) is not None:
            log.add(log.record(query, arrival_s).finished(answer, time.monotonic()))

    async def _run(
        self, query: Query, spent_s: float, emit: Callable[[Progress], None], streaming: bool
    ) -> Answer:
        arrival_s = time.monotonic() - spent_s
        if len(self._runners) >= self._limit:
            answer = _refused(query, arrival_s, self._limit)
            self.log_outcome(query, arrival_s, answer)
            emit(answer)
            return answer
        try:
            runner = QueryRunner(self._services, query, arrival_s, emit, streaming)
            self._runners[query.query_id] = runner
            return await runner.run()
        except Exception as error:  # such as of a policy that is none: it ends its query only
            logger.exception("query %s cannot be driven", query.query_id)
            answer = _failed(query, arrival_s, error)
            self.log_outcome(query, arrival_s, answer)
            emit(answer)
            return answer
        finally:
            self._runners.pop(query.query_id, None)

    def check_policy(self, name: str) -> None:
        """Raises ``ConfigError`` for a policy that cannot decide here."""
        self._decider(name)

    def _decider(self, policy: str | None) -> Decider:
        key = policy or ""
        if key not in self._deciders:
            self._deciders[key] = Decider(self._config, make_policy(self._config, policy))
        return self._deciders[key]

    async def _follow_telemetry(self) -> None:
        """Keep the newest snapshot and do what follows from it; tell the monitor our breakers."""
        version, looked_s, load = -1, 0.0, self._services.load
        while True:
            now = time.monotonic()
            states = (self._name, load.breakers(now))
            spent = (load.holder, load.spent_hour_usd(now))
            try:
                wait = self._monitor.get().wait.remote(version, 5.0, breakers=states, spent=spent)
                async with asyncio.timeout(MONITOR_SILENT_S):
                    snapshot = await wait
            except (RayError, ValueError, TimeoutError):
                self._monitor.forget()
                version = -1
                await asyncio.sleep(0.2)
                self._wake_parked()
                continue
            if snapshot.version == version:
                continue
            version, now = snapshot.version, time.monotonic()
            load.update(snapshot, now)
            self._wake_parked()
            if now - looked_s >= LOOK_GAP_S:
                looked_s = now
                self._give_up_lost(snapshot, now)

    def _wake_parked(self) -> None:
        for runner in list(self._runners.values()):
            with contextlib.suppress(Exception):
                runner.telemetry_changed()

    def _give_up_lost(self, snapshot: PoolTelemetry, now: float) -> None:
        """Calls that no replica knows of any more are tried elsewhere."""
        for call_id in self._services.watch.look(snapshot, now):
            if runner := self._runners.get(query_of(call_id)):
                runner.lost(call_id)


def _refused(query: Query, arrival_s: float, limit: int) -> Answer:
    message = f"{limit} queries are in flight, which is the limit"
    return _failed(query, arrival_s, Overloaded(message, retry_after_s=1.0))


def _failed(query: Query, arrival_s: float, error: Exception) -> Answer:
    """The outcome of a query that could not even be begun."""
    known = error if isinstance(error, InfraMindError) else None
    fault = known or InfraMindError(f"internal error: {type(error).__name__}")
    facts = Facts(query, arrival_s, None, (), "")
    return build_answer(facts, time.monotonic(), "error", None, "", fault)
