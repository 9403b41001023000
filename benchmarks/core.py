"""Speed of the decision core on one CPU core: ``python -m benchmarks.core``.

Each measurement returns items for the result; the last line printed is one line of JSON with all
of them. Inputs come from ``random.Random(0)``. To add a measurement, write a function that
returns its items and list it in ``MEASUREMENTS``.
"""

from __future__ import annotations

import json
import platform
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from actors.local_pool import read_serve_file
from runtime.config import AppConfig
from runtime.decide import Decider
from runtime.dispatch import DispatchState
from runtime.edf import ORDERS, Entry, make_queue
from runtime.events import Acquire, AskRoute, Grant, LeaseId, Release
from runtime.load import LocalLoad
from runtime.policy import make_policy
from runtime.telemetry import ReplicaReport, TelemetryFusion
from runtime.types import Query, TaskKind
from runtime.workflow import WorkflowState

Items = dict[str, float]

NUM_WAITING = 10_000
NUM_OPS = 30_000
NUM_RUNS = 7
NUM_SLOTS = 16
NUM_DECISIONS = 3_000
NUM_IN_FLIGHT = 200
FAKE_POOL = Path(__file__).parent.parent / "serve_configs" / "fake.yaml"
QUESTION = "A shop sells pens at 3 dollars each. How much do 8 pens and 2 boxes of 12 cost? " * 3
STEP_S = 0.002
"""Virtual time from one operation to the next: 10,000 waiting calls are 20 s of arrivals."""


def queue_ops_per_s() -> Items:
    """Push + pop pairs per second of every order, with ``NUM_WAITING`` calls waiting."""
    return _median_rates({f"{order}_ops_per_s": partial(_run_queue, order) for order in ORDERS})


def dispatch_ops_per_s() -> Items:
    """``Acquire`` + ``Release`` pairs per second of ``DispatchState``, the same backlog."""
    return _median_rates({"dispatch_ops_per_s": partial(_run_dispatch, "edf")})


def greedy_ms() -> Items:
    """Milliseconds of one ``greedy`` decision over the five fake models, 200 calls in flight.

    ``greedy_p50_ms`` is a route and its share of everything a workflow actor does for it: the
    view of the load, the mask, the policy, the check. ``greedy_plan_p50_ms`` is a plan.
    """
    config = read_serve_file(FAKE_POOL).config
    decider, load = Decider(config, make_policy(config, "greedy")), _loaded(config)
    routes, plans = [], []
    for number in range(NUM_DECISIONS):
        query = Query(f"q{number}", QUESTION, budget_s=60.0, task=TaskKind.MATH)
        state = WorkflowState(query, config, 0.0)
        state.start(0.0)
        start = time.perf_counter()
        planned = decider.plan(query, TaskKind.MATH, load.view(0.5), 60.0, None)
        plans.append(time.perf_counter() - start)
        asks = [c for c in state.handle(planned, 0.5) if isinstance(c, AskRoute)]
        start = time.perf_counter()
        decider.route(state, asks[0], load.view(0.5), 0.5, None)
        routes.append(time.perf_counter() - start)
    return {"greedy_p50_ms": median(routes) * 1e3, "greedy_plan_p50_ms": median(plans) * 1e3}


def _loaded(config: AppConfig) -> LocalLoad:
    """A snapshot of a busy pool, and calls sent before and after it."""
    names = [model.name for model in config.models]
    fusion, load = TelemetryFusion(tuple(names), config.telemetry), LocalLoad(config)
    for number in range(NUM_IN_FLIGHT):
        sent_s = 0.4 if number % 10 == 0 else 0.0
        load.sent(f"c{number}", names[number % len(names)], sent_s)
    for name in names:
        fusion.add_replica(ReplicaReport(name, "r", 16, 16, 0, 0.4, 4.0, 0.1, 0.012, 99), 0.3)
    load.update(fusion.snapshot(0.3), 0.3)
    return load


MEASUREMENTS: list[Callable[[], Items]] = [queue_ops_per_s, dispatch_ops_per_s, greedy_ms]


def _median_rates(runs: dict[str, Callable[[], float]]) -> Items:
    """Operations per second from the median seconds of ``NUM_RUNS`` runs each.

    The runs take turns, so that a busy machine slows what is compared alike.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(NUM_RUNS):
        for name, run in runs.items():
            seconds[name].append(run())
    return {name: round(NUM_OPS / median(values)) for name, values in seconds.items()}


def _budgets(rng: random.Random) -> list[tuple[float, float]]:
    """(remaining_s, service_s) of every call of a run."""
    return [(rng.uniform(5, 60), rng.uniform(0.2, 4)) for _ in range(NUM_WAITING + NUM_OPS)]


def _run_queue(order: str) -> float:
    entries = [
        Entry(f"c{i}", "h", i * STEP_S + budget_s, i, i * STEP_S, service_s, 0.0, True)
        for i, (budget_s, service_s) in enumerate(_budgets(random.Random(0)))
    ]
    queue = make_queue(order)
    for entry in entries[:NUM_WAITING]:
        queue.push(entry)
    start = time.perf_counter()
    for entry in entries[NUM_WAITING:]:
        queue.push(entry)
        queue.pop(entry.enqueued_s)
    return time.perf_counter() - start


def _run_dispatch(order: str) -> float:
    events = [
        Acquire(f"c{i}", "h", budget_s, service_s, hard=False)
        for i, (budget_s, service_s) in enumerate(_budgets(random.Random(0)))
    ]
    state = DispatchState(
        "m",
        epoch=1,
        slots=NUM_SLOTS,
        order=order,
        max_backlog=NUM_WAITING + NUM_SLOTS + 1,
        now=0.0,
        recovering=False,
    )
    leases: list[LeaseId] = []
    for i, event in enumerate(events[:NUM_WAITING]):
        leases += _leases(state, event, i * STEP_S)
    start = time.perf_counter()
    for i, event in enumerate(events[NUM_WAITING:], NUM_WAITING):
        now = i * STEP_S
        state.handle(event, now)
        leases += _leases(state, Release(leases.pop()), now)
    return time.perf_counter() - start


def _leases(state: DispatchState, event: Acquire | Release, now: float) -> list[LeaseId]:
    return [c.lease for c in state.handle(event, now) if isinstance(c, Grant)]


def main() -> None:
    result: dict[str, float | str] = {"python": platform.python_version(), "waiting": NUM_WAITING}
    for measure in MEASUREMENTS:
        items = measure()
        for name, value in items.items():
            print(f"{name:24} {value:>12,g}")
        result.update(items)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
