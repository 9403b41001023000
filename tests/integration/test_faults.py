"""Replicas that die, models that hang, clients that go away: nothing is lost, nothing stays."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.live import Deploy, counters, engines_idle, eventually, replica_pids

SLOTS = 4


def model(name: str, **fake: Any) -> dict[str, Any]:
    """Four slots, a quarter of a second a call."""
    return {
        "name": name,
        "backend": "fake",
        "context_tokens": 4096,
        "max_output_tokens": 512,
        "max_num_seqs": SLOTS,
        "speed": {"prefill_tokens_per_s": 50_000, "token_s": 0.01},
        "placement": {"num_cpus": 0.1},
        "fake": {"answer_tokens": 25, **fake},
    }


def args(*models: dict[str, Any], **changes: Any) -> dict[str, Any]:
    policy = {"name": "least_loaded", "options": {"topology": "IO", "agents": 1}}
    return {"version": 1, "models": list(models), "policy": policy, **changes}


def pool(url: str) -> dict[str, dict[str, Any]]:
    """The live figures, by model."""
    return {m["name"]: m for m in httpx.get(f"{url}/v1/pool", timeout=30).json()["models"]}


def ask(url: str, timeout_s: float = 150, **body: Any) -> httpx.Response:
    body = {"question": "What is 6 times 7?", "task": "math", **body}
    return httpx.post(f"{url}/v1/queries", json=body, timeout=timeout_s)


def chat(url: str, name: str, **body: Any) -> httpx.Response:
    body = {"model": name, "messages": [{"role": "user", "content": "Hi"}], **body}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=150)


async def load(
    url: str, num_queries: int, meanwhile: Callable[[], None], **body: Any
) -> tuple[Counter[int], dict[str, int]]:
    """Outcomes of queries in a steady flow, and the most calls that each engine ever held."""
    most: dict[str, int] = {}
    body = {"question": "What is 6 times 7?", "task": "math", **body}
    async with httpx.AsyncClient(timeout=200) as http:

        async def look() -> None:
            while True:
                for one in (await http.get(f"{url}/v1/pool")).json()["models"]:
                    held = (one.get("running") or 0) + (one.get("waiting") or 0)
                    most[one["name"]] = max(most.get(one["name"], 0), held)
                await asyncio.sleep(0.05)

        looking = asyncio.create_task(look())
        posts = []
        for number in range(num_queries):
            posts.append(asyncio.create_task(http.post(f"{url}/v1/queries", json=body)))
            if number == num_queries // 3:
                await asyncio.to_thread(meanwhile)
            await asyncio.sleep(0.05)
        await asyncio.wait(posts)
        assert not looking.done(), "the pool's figures could not be read"
        looking.cancel()
    for post in posts:
        if post.result().status_code != 200:
            print(post.result().text)  # pytest shows it where a test fails
    return Counter(post.result().status_code for post in posts), most


def nothing_is_left(url: str, config: dict[str, Any], within_s: float = 30.0) -> None:
    eventually(lambda: set(counters(config, url).values()) == {0}, within_s)
    eventually(lambda: engines_idle(url), within_s)


def kill_replicas(url: str, deployment: str) -> None:
    pids = replica_pids(url, deployment)
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


# --- kill -9 -----------------------------------------------------------------------------------


def test_queries_outlive_the_death_of_the_embedding(deploy: Deploy) -> None:
    config = args(model("only"), default_budget_s=100.0)
    url = deploy(config)
    kill = lambda: kill_replicas(url, "embedding")  # noqa: E731
    codes, most = asyncio.run(load(url, 40, kill, task=None))
    assert codes == {200: 40}
    assert most["only"] <= SLOTS
    nothing_is_left(url, config)

    def embeds() -> bool:
        body = {"model": "hash-384", "input": "text"}
        return httpx.post(f"{url}/v1/embeddings", json=body, timeout=30).status_code == 200

    eventually(embeds, 30.0)


def test_queries_wait_for_the_only_model_to_come_back(deploy: Deploy) -> None:
    config = args(model("only"), default_budget_s=110.0)
    url = deploy(config)
    codes, most = asyncio.run(load(url, 40, lambda: kill_replicas(url, "only"), policy="random"))
    assert codes == {200: 40}
    assert most["only"] <= SLOTS
    nothing_is_left(url, config)
    assert chat(url, "only").status_code == 200


def test_another_model_takes_over_from_one_that_died(deploy: Deploy) -> None:
    config = args(model("small"), model("large"), default_budget_s=120.0)
    url = deploy(config)
    codes, most = asyncio.run(load(url, 60, lambda: kill_replicas(url, "small")))
    assert codes == {200: 60}
    assert max(most.values()) <= SLOTS
    nothing_is_left(url, config)
    eventually(lambda: chat(url, "small").status_code == 200, 30.0)


# --- hangs and breakers --------------------------------------------------------------------------


def test_a_hung_model_is_left_alone_and_the_others_do_not_notice(deploy: Deploy) -> None:
    hung = model("hung", faults={"hang_rate": 1.0})
    limits, breaker = {"stall_s": 2.0}, {"open_s": 60.0}
    config = args(hung, model("well"), default_budget_s=20.0, limits=limits, breaker=breaker)
    url = deploy(config)
    codes, most = asyncio.run(load(url, 40, lambda: None))
    assert codes == {200: 40}
    assert max(most.values()) <= SLOTS
    assert pool(url)["hung"]["breakers"] == ["open"]
    assert pool(url)["well"]["breakers"] == []
    nothing_is_left(url, config)

    answers = [ask(url).json() for _ in range(8)]
    assert {a["steps"][0]["attempts"] for a in answers} == {1}
    assert {a["models"][0] for a in answers} == {"well"}
    began = time.monotonic()
    refused = chat(url, "hung")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_unavailable")
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert time.monotonic() - began < 10.0
    assert chat(url, "well").status_code == 200
    nothing_is_left(url, config)


def test_a_breaker_closes_when_the_model_is_well_again(deploy: Deploy) -> None:
    # With this seed the first three calls hang and the next seventeen do not.
    sick = model("sick", faults={"hang_rate": 0.3, "seed": 1012})
    config = args(sick, limits={"stall_s": 2.0}, breaker={"open_s": 5.0})
    url = deploy(config)
    first = ask(url)
    assert first.status_code in (502, 503), first.text
    eventually(lambda: pool(url)["sick"]["breakers"] == ["open"], 2.5)
    waited = ask(url, budget_s=60)
    assert waited.status_code == 200, "it waited for the probe"
    eventually(lambda: pool(url)["sick"]["breakers"] == [])
    assert {chat(url, "sick", max_tokens=10).status_code for _ in range(3)} == {200}
    nothing_is_left(url, config)


def test_requests_at_fault_never_open_a_breaker(deploy: Deploy) -> None:
    config = args(model("only"), default_budget_s=31.0)
    url = deploy(config)
    schema = {"name": "n", "schema": {"type": "no such type"}}
    wanted = {"type": "json_schema", "json_schema": schema}
    for _ in range(6):
        assert chat(url, "only", response_format=wanted).status_code == 400
    assert pool(url)["only"]["breakers"] == []
    assert chat(url, "only").status_code == 200
    nothing_is_left(url, config)


def test_calls_of_a_replica_that_stops_are_made_elsewhere_until_it_is_back(deploy: Deploy) -> None:
    config = args(model("small"), model("large"), default_budget_s=60.0)
    url = deploy(config)
    [pid] = replica_pids(url, "small")
    try:
        codes, _ = asyncio.run(load(url, 40, lambda: os.kill(pid, signal.SIGSTOP)))
        assert codes == {200: 40}
    finally:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: chat(url, "small", budget_s=10).status_code == 200, 40.0)
    nothing_is_left(url, config)


# --- clients that go away ------------------------------------------------------------------------


DISCONNECTS = 1000
AT_ONCE = 50


def request(url: str, number: int) -> bytes:
    """Plain, streamed and native queries in turn, of one and of several agents."""
    ask = {"budget_s": 60, "task": "math"}
    path = "/v1/chat/completions"
    if number % 3 == 2:
        path, body = "/v1/queries", {"question": f"What is 6 times {number}?", **ask}
    else:
        messages = [{"role": "user", "content": f"What is 6 times {number}?"}]
        body = {"model": "inframind", "messages": messages, "stream": number % 3 == 1, **ask}
    if number % 2:
        body["policy"] = "random"
    data = json.dumps(body).encode()
    parts = urlsplit(url)
    head = f"POST {parts.path}{path} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


async def go_away(url: str, number: int, after_s: float, gate: asyncio.Semaphore) -> None:
    """Send a query and close the connection ``after_s`` later, whatever has come by then."""
    parts = urlsplit(url)
    async with gate:
        _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(request(url, number))
        await writer.drain()
        await asyncio.sleep(after_s)
        if number % 5 == 0:
            writer.transport.abort()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@pytest.mark.timeout(400)
def test_after_a_thousand_disconnects_every_counter_is_zero(deploy: Deploy) -> None:
    config = args(model("small"), model("large"), default_budget_s=90.0)
    url = deploy(config)
    draw = random.Random(7)

    async def all_go_away() -> None:
        gate = asyncio.Semaphore(AT_ONCE)
        moments = [draw.uniform(0.0, 1.2) for _ in range(DISCONNECTS)]
        await asyncio.gather(*(go_away(url, n, s, gate) for n, s in enumerate(moments)))

    asyncio.run(all_go_away())
    nothing_is_left(url, config, within_s=60.0)
    assert all(m["breakers"] == [] for m in pool(url).values())
    assert ask(url).status_code == 200
    nothing_is_left(url, config)
