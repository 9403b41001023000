"""One scenario on simulated time and on live actors: the same grants in the same order.

Both sides drive the same two state machines. The simulated side is a heap of events with an
engine that takes a fixed time; the live side is Serve, the actors and the fake engine.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from runtime.config import AppConfig, parse_config
from runtime.decide import Decider
from runtime.dispatch import DispatchState
from runtime.events import (
    Acquire,
    AskPlan,
    AskRoute,
    CallDone,
    CallDropped,
    CallFailed,
    Drop,
    FailureKind,
    Finish,
    Grant,
    Release,
    RunCall,
    WorkflowCommand,
)
from runtime.load import LocalLoad
from runtime.policy import make_policy
from runtime.types import Answer, CallResult, Query, TaskKind
from runtime.workflow import WorkflowState

CALL_S = 1.0
# The first holds the only slot; the others come while it runs. Budgets are far enough apart, and
# long enough, that a slow machine changes no order and loses no deadline.
ARRIVALS = ((0.0, 200.0), (0.2, 160.0), (0.35, 90.0), (0.5, 120.0), (0.65, 60.0))


def args(order: str, topology: str) -> dict[str, Any]:
    model = {
        "name": "only",
        "backend": "fake",
        "context_tokens": 4096,
        "max_output_tokens": 25,
        "max_num_seqs": 1,
        "speed": {"prefill_tokens_per_s": 1e6, "token_s": CALL_S / 25},
        "fake": {"answer_tokens": 100},
        "placement": {"num_cpus": 0.1},
    }
    policy = {"name": "fixed", "options": {"topology": topology, "strategy": "DeepThink"}}
    return {"version": 1, "models": [model], "order": order, "policy": policy}


@dataclass
class Simulation:
    """Simulated time: queries arrive, one engine serves whom the dispatcher grants."""

    config: AppConfig
    now: float = 0.0
    grants: list[str] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._decider = Decider(self.config, make_policy(self.config))
        self._load = LocalLoad(self.config)
        self._queries: dict[str, WorkflowState] = {}
        self._dispatch = DispatchState(
            "only", epoch=1, slots=1, order=self.config.order, max_backlog=100, now=0.0,
            recovering=False,
        )  # fmt: skip

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (when, next(self._order), action))

    def run(self) -> None:
        while self._heap:
            self.now, _, action = heapq.heappop(self._heap)
            action()

    def arrive(self, query: Query) -> None:
        state = self._queries[query.query_id] = WorkflowState(query, self.config, self.now)
        self._perform(state, state.start(self.now))

    def _perform(self, state: WorkflowState, commands: list[WorkflowCommand]) -> None:
        for command in commands:
            match command:
                case AskPlan():
                    view = self._load.view(self.now)
                    planned = self._decider.plan(state.query, TaskKind.MATH, view, 1e3, None)
                    self._perform(state, state.handle(planned, self.now))
                case AskRoute():
                    view = self._load.view(self.now)
                    routed = self._decider.route(state, command, view, self.now, None)
                    self._perform(state, state.handle(routed, self.now))
                case RunCall(call=call):
                    left = state.deadline_s - self.now
                    ask = Acquire(call.call_id, "w", left, call.service_s or 0.0, call.path_s)
                    self._dispatched(ask)
                case Finish(answer=answer):
                    self.answers[answer.query_id] = answer

    def _dispatched(self, event: Any) -> None:
        for command in self._dispatch.handle(event, self.now):
            query_id = command.call_id.split(".")[0]
            state = self._queries[query_id]
            if isinstance(command, Grant):
                self.grants.append(query_id)
                self.at(self.now + CALL_S, lambda c=command, s=state: self._served(c, s))
            elif isinstance(command, Drop):
                self._perform(state, state.handle(CallDropped(command.call_id), self.now))
            else:
                failed = CallFailed(command.call_id, FailureKind.REFUSED, "full")
                self._perform(state, state.handle(failed, self.now))

    def _served(self, grant: Grant, state: WorkflowState) -> None:
        result = CallResult("Answer: 42", "stop", 10, 25, queue_s=0.0, service_s=CALL_S)
        done = state.handle(CallDone(grant.call_id, result), self.now)
        self._dispatched(Release(grant.lease))
        self._perform(state, done)


def simulated(order: str, topology: str) -> tuple[list[str], dict[str, str]]:
    simulation = Simulation(parse_config(args(order, topology)))
    for index, (at_s, budget_s) in enumerate(ARRIVALS):
        query = Query(f"q{index}", "What is 6 times 7?", budget_s, TaskKind.MATH)
        simulation.at(at_s, lambda q=query: simulation.arrive(q))
    simulation.run()
    return simulation.grants, {q: a.status for q, a in simulation.answers.items()}


async def live(url: str) -> tuple[list[str], dict[str, str]]:
    """Grants in order: each call's time of asking plus its wait, on the client's clock."""
    loop = asyncio.get_running_loop()
    origin = loop.time()
    grants: list[tuple[float, str]] = []
    statuses: dict[str, str] = {}

    async def one(http: httpx.AsyncClient, name: str, at_s: float, budget_s: float) -> None:
        await asyncio.sleep(at_s)
        sent_s = loop.time() - origin
        body = {"question": "What is 6 times 7?", "task": "math", "budget_s": budget_s}
        answer = (await http.post(f"{url}/v1/queries", json=body)).json()
        statuses[name] = answer["status"]
        for step in answer["steps"]:
            grants.append((sent_s + step["started_after_s"] + step["queue_s"], name))

    async with httpx.AsyncClient(timeout=120) as http:
        await one(http, "warm-up", 0.0, 100.0)
        grants.clear()
        statuses.clear()
        origin = loop.time()
        await asyncio.gather(
            *(one(http, f"q{i}", at, budget) for i, (at, budget) in enumerate(ARRIVALS))
        )
    return [name for _, name in sorted(grants)], statuses


@pytest.mark.parametrize(
    ("order", "topology"), [("edf", "IO"), ("fcfs", "IO"), ("edf", "Reflection")]
)
def test_simulated_and_live_grant_in_the_same_order(
    deploy: Callable[[dict[str, Any]], str], order: str, topology: str
) -> None:
    grants, statuses = simulated(order, topology)
    assert (grants, statuses) == asyncio.run(live(deploy(args(order, topology))))


def test_the_scenario_tells_the_orders_apart() -> None:
    edf, fcfs = simulated("edf", "IO")[0], simulated("fcfs", "IO")[0]
    assert edf == ["q0", "q4", "q2", "q3", "q1"]
    assert fcfs == ["q0", "q1", "q2", "q3", "q4"]
