"""What tests of live pools share: ports, counters, waiting."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import httpx

from actors.names import NAMESPACE, ActorNames
from runtime.config import parse_config

Deploy = Callable[[dict[str, Any]], str]


def counters(args: dict[str, Any], url: str) -> dict[str, int]:
    """Everything that must be zero when nothing is going on, over all processes of a pool."""
    import ray

    config = parse_config(args)
    names = ActorNames(config.digest)
    total: dict[str, int] = {}
    actors = [names.records, *(names.workflow(i) for i in range(config.workflow_actors))]
    actors += [names.scheduler(model.name) for model in config.models]
    handles = [ray.get_actor(name, namespace=NAMESPACE) for name in actors]
    figures = ray.get([handle.counters.remote() for handle in handles])
    for one in [*figures, httpx.get(f"{url}/v1/pool", timeout=30).json()["in_flight"]]:
        for key, value in one.items():
            if key in ("queries", "calls", "leases", "backlog", "leased", "unread", "idle_leases"):
                total[key] = total.get(key, 0) + value
    return total


def engines_idle(url: str) -> bool:
    models = httpx.get(f"{url}/v1/pool", timeout=30).json()["models"]
    return all(m["running"] == 0 and m["waiting"] == 0 for m in models)


def finished_calls(url: str) -> int:
    """Calls that the engines of a pool of one model finished since its start."""
    return int(httpx.get(f"{url}/v1/pool", timeout=30).json()["models"][0]["finished"])


def from_a_thread(handle: Any) -> Any:
    """``handle`` for use outside an event loop, which the fast transport does not expect."""
    handle._init(_run_router_in_separate_loop=True)
    return handle


def eventually(check: Callable[[], bool], within_s: float = 10.0) -> None:
    end = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.1)


def pid_of(name: str, namespace: str = NAMESPACE) -> int:
    """The process of a named actor."""
    import ray

    actor = ray.get_actor(name, namespace=namespace)
    return int(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())))


def kill_9(name: str) -> None:
    """Kill the process of a named actor."""
    os.kill(pid_of(name), signal.SIGKILL)


def replica_pids(url: str, deployment: str) -> list[int]:
    """The processes of the replicas of one deployment of the pool at ``url``."""
    import ray

    start = f"SERVE_REPLICA::{url.rsplit('/', 1)[1]}#{deployment}#"
    named = ray.util.list_named_actors(all_namespaces=True)
    return [pid_of(a["name"], a["namespace"]) for a in named if a["name"].startswith(start)]
