"""API models in a live pool: one window for all processes, refusals of the provider, money."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from actors.names import NAMESPACE, ActorNames
from runtime.config import parse_config
from tests.conftest import app_args, model_args
from tests.live import Deploy, counters, eventually, kill_9
from tests.stand_in import SERVED, TOKENS, StandIn, standing_in

TEXT = "".join(TOKENS)
RPM = 6


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[StandIn, StandIn]]:
    with standing_in() as one, standing_in() as other:
        yield one, other


@pytest.fixture(autouse=True)
def well(servers: tuple[StandIn, StandIn]) -> None:
    for server in servers:
        server.mode, server.retry_after = "ok", "7"
        server.asked.clear()


def member(server: StandIn, name: str, rpm: int = RPM, **changes: Any) -> dict[str, Any]:
    return model_args(
        name,
        backend="openai",
        endpoint={"url": server.url, "model": SERVED},
        api={"rpm_limit": rpm},
        max_num_seqs=16,
        context_tokens=2048,
        price={"input": 1.0, "output": 10.0},
        **changes,
    )


def shown(url: str, name: str = "one") -> dict[str, Any]:
    models = httpx.get(f"{url}/v1/pool").json()["models"]
    return next(model for model in models if model["name"] == name)


def ask(url: str, name: str = "one", **body: Any) -> httpx.Response:
    messages = [{"role": "user", "content": "Hi"}]
    body = {"model": name, "messages": messages, "budget_s": 20, "max_tokens": 16, **body}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)


def told(scheduler: str) -> dict[str, int] | None:
    """Grants of this incarnation of a scheduler, and the requests of the last minute that it knows
    of; ``None`` while there is none."""
    import ray

    try:
        actor = ray.get_actor(scheduler, namespace=NAMESPACE)
        counts = ray.get(actor.counters.remote(), timeout=5)
        return {key: counts[key] for key in ("granted", "recent")}
    except (ray.exceptions.RayError, ValueError):
        return None


def query(url: str, **body: Any) -> dict[str, Any]:
    body = {"question": "Hi", "task": "general", "policy": "cheapest", "budget_s": 20, **body}
    return httpx.post(f"{url}/v1/queries", json=body, timeout=60).json()


def at_once(*work: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(work)) as threads:
        return [future.result() for future in [threads.submit(one) for one in work]]


def test_all_processes_share_one_window_and_a_new_scheduler_knows_it(
    deploy: Deploy, servers: tuple[StandIn, StandIn]
) -> None:
    args = app_args(member(servers[0], "one"), workflow_actors=2)
    url = deploy(args)
    # Planned queries are driven by two workflow actors, calls by name by the ingress.
    planned = at_once(*[lambda: query(url, budget_s=6)] * 4)
    named = at_once(*[lambda: ask(url, budget_s=6)] * 4)
    assert len(servers[0].asked) == RPM
    answered = sum(a["status"] == "ok" for a in planned) + sum(a.is_success for a in named)
    assert answered == RPM
    late = [a.json()["error"]["code"] for a in named if not a.is_success]
    late += [a["error"]["code"] for a in planned if a["status"] != "ok"]
    assert late == ["deadline_exceeded"] * (8 - RPM)
    eventually(lambda: shown(url)["rate"]["recent"] == RPM)
    eventually(lambda: shown(url)["congestion"] == pytest.approx(1.0))  # nobody is held any more
    assert shown(url)["kv_usage"] is None
    assert shown(url)["e2e_s"] > 0

    name = ActorNames(parse_config(args).digest).scheduler("one")
    assert told(name) == {"granted": RPM, "recent": RPM}
    kill_9(name)
    eventually(lambda: told(name) == {"granted": 0, "recent": RPM}, within_s=30)
    assert not ask(url, budget_s=3).is_success
    assert len(servers[0].asked) == RPM
    eventually(lambda: set(counters(args, url).values()) == {0}, within_s=20)


def test_a_refusal_of_the_provider_is_no_failure_and_is_honoured(
    deploy: Deploy, servers: tuple[StandIn, StandIn]
) -> None:
    one, other = servers
    # Kinds of failures that count would open the breaker at the first.
    args = app_args(member(one, "one", 50), member(other, "other", 50), breaker={"failures": 1})
    url = deploy(args)
    one.mode, one.retry_after = "429", "600"
    answer = query(url)
    assert (answer["text"], answer["models"]) == (TEXT, ["other"])
    assert len(one.asked) == 1
    eventually(lambda: shown(url)["rate"]["closed_s"] > 500)
    assert shown(url)["congestion"] > 9
    assert shown(url)["breakers"] == []

    one.mode = "ok"
    refused = ask(url, budget_s=2)  # by its name: held, and not sent before the time
    assert refused.json()["error"]["code"] == "deadline_exceeded"
    assert query(url, policy="least_loaded")["models"] == ["other"]
    assert len(one.asked) == 1

    other.mode, other.retry_after = "429", "1"
    began_s = time.monotonic()
    waiting = at_once(lambda: ask(url, "other", budget_s=30), lambda: set_well_later(other))[0]
    assert waiting.json()["choices"][0]["message"]["content"] == TEXT
    assert time.monotonic() - began_s >= 1.0
    assert len(other.asked) >= 3  # the first query's, the refused one, and its retry


def set_well_later(server: StandIn) -> None:
    """Once it has refused somebody."""
    before = len(server.asked)
    eventually(lambda: len(server.asked) > before)
    server.mode = "ok"


def test_money_is_counted_bounds_a_query_and_the_pools_hour(
    deploy: Deploy, servers: tuple[StandIn, StandIn]
) -> None:
    cost_usd = (11 * 1.0 + 5 * 10.0) / 1e6  # what the stand-in counts
    args = app_args(member(servers[0], "one", 100), money={"per_hour_usd": 2.5 * cost_usd})
    url = deploy(args)
    answer = ask(url)
    assert answer.json()["inframind"]["cost_usd"] == cost_usd
    assert float(answer.headers["x-inframind-cost-usd"]) == cost_usd
    poor = ask(url, budget_usd=1e-6)
    assert (poor.status_code, poor.json()["error"]["code"]) == (402, "money_exhausted")
    assert len(servers[0].asked) == 1
    bad = ask(url, budget_usd="much")
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "budget_usd")
    native = query(url, budget_usd=1.0)
    assert native["usage"]["cost_usd"] == cost_usd
    assert native["steps"][0]["cost_usd"] == cost_usd
    assert native["budget_usd"] == 1.0
    assert ask(url).is_success
    spent = ask(url)
    assert (spent.status_code, spent.json()["error"]["code"]) == (402, "money_exhausted")
    assert "within an hour" in spent.json()["error"]["message"]
    assert spent.headers["retry-after"] == "60"
