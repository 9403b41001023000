"""From the death of any part to full service: ``python -m benchmarks.recovery``.

A pool of two FAKE models serves a steady flow of queries; then each part in turn is killed with
``kill -9``. Last comes one line of JSON: for each part, the seconds from the kill until the first
of ``IN_A_ROW`` probe queries that all ended as they did before, with the killed process replaced
and no call past a scheduler; and ``lost``, the queries of the whole run that got no answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from actors.local_pool import ServeFile, running_pool
from actors.names import NAMESPACE, ActorNames
from actors.transport import free_port
from benchmarks.inputs import own_state
from runtime.config import AppConfig, parse_config

APP = "recovery"
RATE_PER_S = 5.0
IN_A_ROW = 20
GIVE_UP_S = 60.0
PARTS = ("scheduler", "monitor", "workflow", "embedding", "model")


def pool() -> dict[str, Any]:
    """Two equal models, a fifth of a second a call."""
    models = [
        {
            "name": name,
            "backend": "fake",
            "context_tokens": 4096,
            "max_output_tokens": 128,
            "max_num_seqs": 8,
            "speed": {"prefill_tokens_per_s": 50_000, "token_s": 0.01},
            "placement": {"num_cpus": 0.1},
            "fake": {"answer_tokens": 20},
        }
        for name in ("first", "second")
    ]
    policy = {"name": "least_loaded", "options": {"topology": "IO", "agents": 1}}
    return {
        "version": 1,
        "models": models,
        "policy": policy,
        "default_budget_s": 30,
        "workflow_actors": 1,
    }


@dataclass
class Flow:
    """Queries at a steady rate, each with its own text and no task kind, so that it is embedded."""

    url: str
    http: httpx.AsyncClient
    num_sent: int = 0
    lost: list[str] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self) -> None:
        while True:
            task = asyncio.create_task(self._send())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            await asyncio.sleep(1 / RATE_PER_S)

    async def drain(self) -> None:
        await asyncio.gather(*self._tasks)

    async def _send(self) -> None:
        self.num_sent += 1
        body = {"question": f"What is 6 times {self.num_sent}?"}
        try:
            response = await self.http.post(f"{self.url}/v1/queries", json=body)
        except httpx.HTTPError as error:
            self.lost.append(repr(error))
        else:
            if response.status_code != 200:
                self.lost.append(response.text)


class Pool:
    """The processes of the running pool, and whether it serves as it should."""

    def __init__(self, url: str, config: AppConfig, http: httpx.AsyncClient) -> None:
        self._url = url
        self._config = config
        self._names = ActorNames(config.digest)
        self._http = http

    def pid(self, part: str) -> int | None:
        """The process that is this part now; ``None`` while there is none."""
        import ray

        try:
            actor = ray.get_actor(*self._actor(part))
            find = actor.__ray_call__.remote(lambda _: os.getpid())
            return int(ray.get(find, timeout=2.0))
        except (ray.exceptions.RayError, ValueError, LookupError):
            return None

    def _actor(self, part: str) -> tuple[str, str]:
        import ray

        names = self._names
        own = {
            "scheduler": names.scheduler("first"),
            "monitor": names.monitor,
            "workflow": names.workflow(0),
        }
        if part in own:
            return own[part], NAMESPACE
        start = f"SERVE_REPLICA::{APP}#{'first' if part == 'model' else part}#"
        named = ray.util.list_named_actors(all_namespaces=True)
        [name] = [a["name"] for a in named if a["name"].startswith(start)]
        return name, "serve"

    async def bypassed(self) -> int:
        """Calls so far that ran without a scheduler."""
        import ray

        actor = ray.get_actor(self._names.workflow(0), namespace=NAMESPACE)
        return int((await actor.counters.remote())["bypassed"])

    async def serves(self, usual_s: float) -> bool:
        """One probe of each kind, at once: embedded and planned, and each model by its name."""
        names = [model.name for model in self._config.models]
        began = time.perf_counter()
        whole = await asyncio.gather(self._query(), *(self._chat(name) for name in names))
        return all(whole) and time.perf_counter() - began <= usual_s

    async def _query(self) -> bool:
        text = f"What is {time.time_ns() % 1000} times 7?"
        response = await self._http.post(f"{self._url}/v1/queries", json={"question": text})
        # The task kind tells whether the embedding answered: without it the kind is general.
        return response.status_code == 200 and response.json()["task"] != "general"

    async def _chat(self, model: str) -> bool:
        body = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
        response = await self._http.post(f"{self._url}/v1/chat/completions", json=body)
        return response.status_code == 200


async def recovery_s(pool: Pool, part: str, usual_s: float) -> float:
    """Kill ``part``; seconds until full service."""
    old = await asyncio.to_thread(pool.pid, part)
    assert old is not None
    os.kill(old, signal.SIGKILL)
    killed = time.perf_counter()
    since, in_a_row, bypassed = killed, 0, -1
    while in_a_row < IN_A_ROW:
        if time.perf_counter() - killed > GIVE_UP_S:
            raise RuntimeError(f"no full service {GIVE_UP_S:g} s after the death of {part}")
        began = time.perf_counter()
        well = await pool.serves(usual_s)
        if well and in_a_row == 0:
            well = await asyncio.to_thread(pool.pid, part) not in (None, old)
            bypassed = await pool.bypassed() if well else -1
        if well and in_a_row == IN_A_ROW - 1:
            well = await pool.bypassed() == bypassed
        if well:
            since = began if in_a_row == 0 else since
            in_a_row += 1
        else:
            in_a_row = 0
            await asyncio.sleep(0.1)
    return since - killed


async def usual(pool: Pool) -> float:
    """The longest that a probe may take: five times its median, at least two seconds."""
    times = []
    for _ in range(IN_A_ROW):
        began = time.perf_counter()
        await pool.serves(GIVE_UP_S)
        times.append(time.perf_counter() - began)
    return max(2.0, 5 * sorted(times)[len(times) // 2])


async def run(url: str, config: AppConfig) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=90, limits=limits) as http:
        parts, flow = Pool(url, config, http), Flow(url, http)
        usual_s = await usual(parts)
        flowing = asyncio.create_task(flow.run())
        for part in PARTS:
            figures[f"{part}_s"] = round(await recovery_s(parts, part, usual_s), 1)
            print(f"{part:<10} {figures[f'{part}_s']:5.1f} s to full service", flush=True)
        flowing.cancel()
        await flow.drain()
        for text in flow.lost:
            print(f"lost: {text[:300]}")
        return {**figures, "queries": flow.num_sent, "lost": len(flow.lost)}


def main() -> None:
    """Run it all and print the figures."""
    args = pool()
    config = parse_config(args)
    file = ServeFile(args, config, APP, port=free_port())
    with own_state(), running_pool(file) as url:
        figures = asyncio.run(run(url, config))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
