"""Endpoints as members of a live pool: their load, their faults, their death and return."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.conftest import app_args, model_args
from tests.live import Deploy, counters, eventually
from tests.stand_in import SERVED, TOKENS, StandIn, standing_in

TEXT = "".join(TOKENS)
SLOTS = 2


def member(server: StandIn, name: str, **settings: Any) -> dict[str, Any]:
    return model_args(
        name,
        backend="openai",
        endpoint={"url": server.url, "model": SERVED, "poll_period_s": 0.1, **settings},
        max_num_seqs=SLOTS,
        context_tokens=2048,
    )


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[StandIn, StandIn]]:
    with standing_in() as one, standing_in() as other:
        yield one, other


@pytest.fixture(scope="module")
def args(servers: tuple[StandIn, StandIn]) -> dict[str, Any]:
    one, other = servers
    return app_args(
        member(one, "one"),
        member(other, "other"),
        telemetry={"gone_after_s": 1.5},
        breaker={"failures": 1000},  # each test shows what a failure does, none what many do
    )


@pytest.fixture(scope="module")
def pool_url(deploy_once: Deploy, args: dict[str, Any]) -> str:
    return deploy_once(args)


@pytest.fixture
def url(pool_url: str, args: dict[str, Any], servers: tuple[StandIn, StandIn]) -> Iterator[str]:
    """The pool with two endpoints that are well, before and after each test."""
    eventually(lambda: all(model(pool_url, i)["running"] == 0 for i in (0, 1)), within_s=30)
    yield pool_url
    for server in servers:
        server.mode, server.metrics, server.others, server.token_s = "ok", None, 0, 0.01
    eventually(lambda: set(counters(args, pool_url).values()) == {0}, within_s=20)


def model(url: str, index: int) -> dict[str, Any]:
    return httpx.get(f"{url}/v1/pool").json()["models"][index]


def ask(url: str, name: str = "one", **body: Any) -> httpx.Response:
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "budget_s": 20,
        "max_tokens": 16,
        **body,
    }
    return httpx.post(f"{url}/v1/chat/completions", json={"model": name, **body}, timeout=60)


def query(url: str, **body: Any) -> dict[str, Any]:
    body = {"question": "Hi", "task": "general", "policy": "cheapest", "budget_s": 20, **body}
    return httpx.post(f"{url}/v1/queries", json=body, timeout=60).json()


def in_threads(work: Callable[[], Any], number: int) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, daemon=True) for _ in range(number)]
    for thread in threads:
        thread.start()
    return threads


def test_a_call_is_answered_whole_and_streamed(url: str) -> None:
    answer = ask(url).json()
    assert answer["choices"][0]["message"]["content"] == TEXT
    assert answer["usage"] == {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}
    streamed = ask(url, stream=True).text
    assert '"content":"The' in streamed.replace(": ", ":")
    assert streamed.rstrip().endswith("data: [DONE]")


def test_the_pool_says_what_it_fronts(url: str, servers: tuple[StandIn, StandIn]) -> None:
    shown = model(url, 0)
    assert (shown["backend"], shown["simulated"]) == ("openai", False)
    assert shown["endpoint"] == servers[0].host
    assert (shown["slots"], shown["kv_usage"]) == (SLOTS, 0.25)


def test_the_load_of_other_clients_is_seen(url: str, servers: tuple[StandIn, StandIn]) -> None:
    servers[0].others = 3
    eventually(lambda: model(url, 0)["running"] == 3)
    assert model(url, 1)["running"] == 0
    assert query(url, policy="least_loaded")["models"] == ["other"]


def test_no_more_than_the_slots_are_ever_sent(url: str, servers: tuple[StandIn, StandIn]) -> None:
    servers[0].token_s = 0.1
    threads = in_threads(lambda: ask(url), 8)
    most = 0
    while any(thread.is_alive() for thread in threads):
        most = max(most, servers[0].running)
        time.sleep(0.01)
    assert most == SLOTS


def test_a_hung_metrics_page_delays_nobody(url: str, servers: tuple[StandIn, StandIn]) -> None:
    servers[0].metrics = "hang"
    eventually(lambda: model(url, 0)["kv_usage"] is None)
    began_s = time.monotonic()
    assert ask(url).status_code == 200
    assert time.monotonic() - began_s < 2.0
    shown = model(url, 1)
    assert shown["kv_usage"] == 0.25
    assert shown["age_s"] < 0.5


def test_a_refused_request_is_a_400_and_not_tried_elsewhere(
    url: str, servers: tuple[StandIn, StandIn]
) -> None:
    servers[0].mode, before = "400", len(servers[1].asked)
    refused = ask(url)
    assert refused.status_code == 400
    assert "told to answer 400" in refused.json()["error"]["message"]
    servers[0].mode = "context"
    assert ask(url).json()["error"]["code"] == "context_length_exceeded"
    assert len(servers[1].asked) == before


@pytest.mark.parametrize("mode", ["500", "429", "garbage"])
def test_a_failing_endpoint_is_replaced_within_the_query(
    url: str, servers: tuple[StandIn, StandIn], mode: str
) -> None:
    servers[0].mode = mode
    answer = query(url)
    assert (answer["text"], answer["models"]) == (TEXT, ["other"])
    assert answer["steps"][0]["attempts"] == 2


def test_a_stream_that_breaks_ends_with_an_error_and_is_not_tried_again(
    url: str, servers: tuple[StandIn, StandIn]
) -> None:
    servers[0].mode, servers[0].token_s = "break", 0.1
    asked = [len(server.asked) for server in servers]
    lines = ask(url, stream=True).text.strip().splitlines()
    assert any('"content"' in line for line in lines)
    events = [line for line in lines if line.startswith("data:")]
    assert '"error"' in events[-2]
    assert events[-1] == "data: [DONE]"
    assert [len(server.asked) for server in servers] == [asked[0] + 1, asked[1]]


def test_a_client_that_goes_away_ends_the_call_there(
    url: str, servers: tuple[StandIn, StandIn]
) -> None:
    servers[0].mode, servers[0].token_s = "endless", 0.1
    body = {"model": "one", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=30) as response:
        lines = response.iter_lines()  # dropped, it would close the connection
        next(line for line in lines if '"content"' in line)
        eventually(lambda: servers[0].running == 1)
    eventually(lambda: servers[0].running == 0)


def test_a_dead_endpoint_is_no_capacity_and_comes_back(
    url: str, servers: tuple[StandIn, StandIn]
) -> None:
    servers[0].stop()
    try:
        eventually(lambda: model(url, 0)["replicas"] == 0)
        assert query(url)["models"] == ["other"]
    finally:
        servers[0].start()
    eventually(lambda: model(url, 0)["slots"] == SLOTS)
    eventually(lambda: ask(url).status_code == 200, within_s=20)
