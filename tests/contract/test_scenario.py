"""One scenario on simulated time and on live actors: the same grants in the same order.

The simulated side is the product's simulator; the live side is Serve, the actors and the fake
engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from runtime.config import parse_config
from runtime.sim.outcomes import SimItem
from runtime.sim.workload import Arrival
from runtime.types import TaskKind
from tests.sim_case import FixedOutcomes, grants, simulate, statuses

QUESTION = SimItem("product", "scenario", TaskKind.MATH, 10)
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


def simulated(order: str, topology: str) -> tuple[list[str], dict[str, str]]:
    arrivals = [Arrival(at_s, QUESTION, budget_s) for at_s, budget_s in ARRIVALS]
    # As the fake engine: longer than the cap, so that every call takes ``CALL_S``.
    results = simulate(parse_config(args(order, topology)), arrivals, FixedOutcomes(100))
    return [f"q{query}" for query in grants(results)], {
        f"q{query}": status for query, status in statuses(results).items()
    }


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
