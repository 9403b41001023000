"""Drives many queries at once, each by its own ``QueryRunner``: as an actor, or in a process."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from ray.exceptions import RayError

from actors.classify import Classifier
from actors.leases import LeaseBook
from actors.names import ActorNames, ActorRef
from actors.runner import Progress, QueryRunner, Services
from runtime.calls import query_of
from runtime.config import parse_config
from runtime.decide import Decider
from runtime.errors import Overloaded
from runtime.load import LocalLoad
from runtime.outcome import Progress as Facts
from runtime.outcome import build_answer
from runtime.policy import make_policy
from runtime.telemetry import PoolTelemetry
from runtime.types import Answer, Query
from runtime.watch import CallWatch

MONITOR_SILENT_S = 8.0
"""An answer to a poll of the monitor comes within 5 s, if it runs."""

LOOK_GAP_S = 0.5
"""Between two looks for calls that no replica knows of any more."""


class WorkflowActor:
    """Plans, routes and runs queries on its own copy of the telemetry.

    ``name`` tells it apart from the others of the pool, towards schedulers and the monitor. The
    ingress and the records actor hold one as a plain object, see ``actors.submission``.
    """

    def __init__(
        self, name: str, config: dict[str, Any], engines: dict[str, Any], embed: Any
    ) -> None:
        self._config = parse_config(config)
        names = ActorNames(self._config.digest)
        models = tuple(model.name for model in self._config.models)
        self._name = name
        sharing = max(1, self._config.workflow_actors)
        self._limit = -(-self._config.limits.max_queries_in_flight // sharing)
        self._monitor = ActorRef(names.monitor)
        self._deciders = {"": Decider(self._config, make_policy(self._config))}
        self._runners: dict[str, QueryRunner] = {}
        self._services = Services(
            config=self._config,
            decider=self._decider,
            classify=Classifier(embed, self._config.embedding.timeout_s).classify,
            leases=LeaseBook(f"{name}:{time.time_ns()}", names, models),
            load=LocalLoad(self._config),
            watch=CallWatch(self._config.limits.silent_s),
            engines=engines,
        )
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._follow_telemetry()),
            *self._services.leases.start(),
        ]

    async def ready(self) -> bool:
        """Answers once the actor runs."""
        return True

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
        }

    async def _run(
        self, query: Query, spent_s: float, emit: Callable[[Progress], None], streaming: bool
    ) -> Answer:
        arrival_s = time.monotonic() - spent_s
        if len(self._runners) >= self._limit:
            answer = _refused(query, arrival_s, self._limit)
            emit(answer)
            return answer
        runner = QueryRunner(self._services, query, arrival_s, emit, streaming)
        self._runners[query.query_id] = runner
        try:
            return await runner.run()
        finally:
            del self._runners[query.query_id]

    def _decider(self, policy: str | None) -> Decider:
        key = policy or ""
        if key not in self._deciders:
            self._deciders[key] = Decider(self._config, make_policy(self._config, policy))
        return self._deciders[key]

    async def _follow_telemetry(self) -> None:
        """Keep the newest snapshot and do what follows from it; tell the monitor our breakers."""
        version, looked_s, load = -1, 0.0, self._services.load
        while True:
            states = (self._name, load.breakers(time.monotonic()))
            try:
                wait = self._monitor.get().wait.remote(version, 5.0, breakers=states)
                snapshot = await asyncio.wait_for(wait, MONITOR_SILENT_S)
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
    facts = Facts(query, arrival_s, None, (), "")
    error = Overloaded(f"{limit} queries are in flight, which is the limit", retry_after_s=1.0)
    return build_answer(facts, time.monotonic(), "error", None, "", error)
