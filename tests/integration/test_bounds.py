"""Engines are never handed more than they hold, and the death of an actor loses no query."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from actors.names import ActorNames
from runtime.config import parse_config
from tests.live import (
    Deploy,
    counters,
    engines_idle,
    eventually,
    kill_9,
    pid_of,
    replica_pids,
)

SLOTS = 3
QUERIES = 40


def args(**changes: Any) -> dict[str, Any]:
    """One model with three slots, a quarter of a second a call."""
    model = {
        "name": "only",
        "backend": "fake",
        "context_tokens": 4096,
        "max_output_tokens": 512,
        "max_num_seqs": SLOTS,
        "speed": {"prefill_tokens_per_s": 50_000, "token_s": 0.01},
        "placement": {"num_cpus": 0.1},
        "fake": {"answer_tokens": 25},
    }
    return {"version": 1, "models": [model], "default_budget_s": 120.0, **changes}


async def flood(url: str, meanwhile: Callable[[], None] | None = None) -> tuple[list[int], int]:
    """Status codes of many chains at once, and the most calls that the engine ever held."""
    most = 0
    body = {"question": "What is 6 times 7?", "task": "math", "policy": "random"}

    async with httpx.AsyncClient(timeout=150) as http:
        posts = [
            asyncio.create_task(http.post(f"{url}/v1/queries", json=body)) for _ in range(QUERIES)
        ]
        await asyncio.sleep(1.0)
        if meanwhile is not None:
            await asyncio.to_thread(meanwhile)
        while not all(post.done() for post in posts):
            model = (await http.get(f"{url}/v1/pool")).json()["models"][0]
            if model.get("running") is not None:
                most = max(most, model["running"] + model["waiting"])
            await asyncio.sleep(0.05)
        return [post.result().status_code for post in posts], most


def test_an_engine_never_holds_more_than_its_slots(deploy: Deploy) -> None:
    config = args()
    url = deploy(config)
    codes, most = asyncio.run(flood(url))
    assert codes == [200] * QUERIES
    assert most == SLOTS
    eventually(lambda: set(counters(config, url).values()) == {0})
    eventually(lambda: engines_idle(url))


@pytest.mark.parametrize("part", ["scheduler", "monitor"])
def test_a_killed_actor_comes_back_and_no_query_is_lost(deploy: Deploy, part: str) -> None:
    config = args(default_budget_s=120.0 + len(part))
    names = ActorNames(parse_config(config).digest)
    name = names.monitor if part == "monitor" else names.scheduler("only")
    url = deploy(config)
    codes, most = asyncio.run(flood(url, lambda: kill_9(name)))
    assert codes == [200] * QUERIES
    assert most <= SLOTS
    eventually(lambda: set(counters(config, url).values()) == {0}, within_s=30)
    eventually(lambda: engines_idle(url), within_s=30)


def test_a_workflow_actor_that_stops_for_a_while_is_given_up_and_taken_back(
    deploy: Deploy,
) -> None:
    """Its engine calls end meanwhile; afterwards every slot is free and every query answered."""
    telemetry = {"holder_timeout_s": 1.5}
    config = args(default_budget_s=150.0, telemetry=telemetry, workflow_actors=1)
    name = ActorNames(parse_config(config).digest).workflow(0)
    url = deploy(config)

    def pause() -> None:
        pid = pid_of(name)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(4.0)
        os.kill(pid, signal.SIGCONT)

    codes, most = asyncio.run(flood(url, pause))
    assert codes == [200] * QUERIES
    assert most <= SLOTS
    eventually(lambda: set(counters(config, url).values()) == {0}, within_s=30)
    eventually(lambda: engines_idle(url), within_s=30)


def test_a_killed_workflow_actor_is_replaced_and_its_queries_run_once_more(deploy: Deploy) -> None:
    config = args(default_budget_s=140.0, workflow_actors=1)
    names = ActorNames(parse_config(config).digest)
    url = deploy(config)
    codes, most = asyncio.run(flood(url, lambda: kill_9(names.workflow(0))))
    assert codes == [200] * QUERIES
    assert most <= SLOTS
    eventually(lambda: set(counters(config, url).values()) == {0}, within_s=30)
    eventually(lambda: engines_idle(url), within_s=30)


def test_a_killed_ingress_breaks_its_connections_and_leaves_nothing_behind(
    deploy: Deploy,
) -> None:
    """Queries that it drove end with their connection; their slots come back, and so does it."""
    config = args(default_budget_s=145.0)
    url = deploy(config)
    body = {"question": "What is 6 times 7?", "task": "math", "policy": "random"}

    async def broken() -> list[int | str]:
        async def one(http: httpx.AsyncClient) -> int | str:
            try:
                return (await http.post(f"{url}/v1/queries", json=body)).status_code
            except httpx.HTTPError as error:
                return type(error).__name__

        async with httpx.AsyncClient(timeout=150) as http:
            posts = [asyncio.create_task(one(http)) for _ in range(QUERIES)]
            await asyncio.sleep(1.0)
            for pid in await asyncio.to_thread(replica_pids, url, "ingress"):
                os.kill(pid, signal.SIGKILL)
            return await asyncio.gather(*posts)

    ends = asyncio.run(broken())
    assert len(ends) == QUERIES
    assert any(end != 200 for end in ends)
    eventually(lambda: answers(url, body), within_s=60)
    eventually(lambda: set(counters(config, url).values()) == {0}, within_s=30)
    eventually(lambda: engines_idle(url), within_s=30)


def answers(url: str, body: dict[str, Any]) -> bool:
    try:
        return httpx.post(f"{url}/v1/queries", json=body, timeout=60).status_code == 200
    except httpx.HTTPError:
        return False
