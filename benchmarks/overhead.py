"""What planning, leasing and routing cost: ``python -m benchmarks.overhead``.

One pool of one FAKE model without service time, under the shipped transport settings; what is
compared takes turns in one run, on texts that are all distinct, with slots for every call at once.
Embedding is left out and reported apart. Last comes one line of JSON:

``ratio_p50_c1``, ``ratio_p50_c32``
    A query of one leased call (planned, routed, leased, called, answered) inside a workflow actor
    over the same call made directly through the model's handle in the same process, at
    concurrency 1 and 32; the direct side is the faster of a whole and a streamed answer.
``ratio_throughput``
    Queries per second over HTTP with three leased steps in sequence over the same three calls made
    by a plain FastAPI application on Serve.
``mb_per_1000_queries``
    Growth of a workflow actor's resident memory with 1,000 queries in flight in it.
"""

from __future__ import annotations

import asyncio
import json
import time
from statistics import median
from typing import Any

import aiohttp

from actors.local_pool import ServeFile, running_pool
from actors.transport import free_port
from benchmarks.inputs import own_state, question
from runtime.config import parse_config

Items = dict[str, float]

CONCURRENCY = 32
CALLS = {1: 200, CONCURRENCY: 640}
ROUNDS = 7
SLOTS = 256
HTTP_QUERIES = 192
IN_FLIGHT = 1000


def pool() -> dict[str, Any]:
    """One instant model and one that holds its calls for ever."""
    instant = {
        "name": "instant",
        "backend": "fake",
        "context_tokens": 4096,
        "max_output_tokens": 64,
        "max_num_seqs": SLOTS,
        "speed": {"prefill_tokens_per_s": 1e9, "token_s": 1e-9},
        "fake": {"answer_tokens": 16},
        "placement": {"num_cpus": 0.01},
    }
    held = {
        **instant,
        "name": "held",
        "max_num_seqs": IN_FLIGHT,
        "fake": {"answer_tokens": 16, "faults": {"hang_rate": 1.0}},
    }
    # Two agents one after another, then the decision: three calls in sequence.
    chain = {"name": "fixed", "options": {"topology": "Chain", "agents": 2, "model": "instant"}}
    return {"version": 1, "models": [instant, held], "policy": chain, "max_budget_s": 3600}


async def queries_per_s(url: str) -> float:
    """Queries per second over HTTP, ``CONCURRENCY`` at a time."""
    limits = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=limits) as http:

        async def worker() -> None:
            for _ in range(HTTP_QUERIES // CONCURRENCY):
                body = {"question": question(), "task": "math", "budget_s": 300}
                async with http.post(f"{url}/v1/queries", json=body) as response:
                    answer = await response.json()
                    assert response.status == 200, answer

        began = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))
        return HTTP_QUERIES / (time.perf_counter() - began)


def ratios(first: list[float], second: list[float]) -> float:
    """Median of the ratios of what was measured side by side."""
    return median(a / b for a, b in zip(first, second, strict=True))


def calls(actor: Any, concurrency: int) -> Items:
    """Leased and direct calls in turns."""
    import ray

    leased, whole, streamed = [], [], []
    for _ in range(ROUNDS):
        leased.append(ray.get(actor.leased.remote(CALLS[concurrency], concurrency)))
        whole.append(ray.get(actor.direct.remote(CALLS[concurrency], concurrency, False)))
        streamed.append(ray.get(actor.direct.remote(CALLS[concurrency], concurrency, True)))
    direct = min(whole, streamed, key=median)
    return {
        f"ratio_p50_c{concurrency}": ratios(leased, direct),
        f"leased_ms_c{concurrency}": median(leased),
        f"direct_ms_c{concurrency}": median(direct),
        f"direct_whole_ms_c{concurrency}": median(whole),
        f"direct_streamed_ms_c{concurrency}": median(streamed),
    }


def throughput(ours: str, plain: str) -> Items:
    """Queries of three steps over HTTP, in turns."""
    rates: dict[str, list[float]] = {ours: [], plain: []}
    for _ in range(ROUNDS):
        for url, found in rates.items():
            found.append(asyncio.run(queries_per_s(url)))
    return {
        "ratio_throughput": ratios(rates[ours], rates[plain]),
        "ours_queries_per_s": median(rates[ours]),
        "plain_queries_per_s": median(rates[plain]),
    }


def main() -> None:
    args, port = pool(), free_port()
    config = parse_config(args)
    url = f"http://127.0.0.1:{port}"
    file = ServeFile(args, config, "ours", "/ours", port=port)
    with own_state(), running_pool(file):
        import ray
        from ray import serve

        from actors.deployments import build_model
        from benchmarks.overhead_sides import BenchActor, Plain, plain_api

        plain = serve.deployment(serve.ingress(plain_api)(Plain)).options(
            name="plain", max_ongoing_requests=SLOTS, ray_actor_options={"num_cpus": 0}
        )
        engine = build_model(
            config.models[0], monitor_name="none", namespace="none", report_period_s=60
        )
        serve.run(plain.bind(engine), name="plain", route_prefix="/plain")
        engines = {m.name: serve.get_deployment_handle(m.name, "ours") for m in config.models}
        embedder = serve.get_deployment_handle("embedding", "ours")
        actor = ray.remote(BenchActor).options(num_cpus=0, max_concurrency=100_000)
        bench = actor.remote("bench", config.model_dump(mode="json"), engines, embedder)
        ray.get(bench.leased.remote(CALLS[CONCURRENCY], CONCURRENCY))
        items: Items = {}
        for measure in (
            lambda: calls(bench, 1),
            lambda: calls(bench, CONCURRENCY),
            lambda: throughput(f"{url}/ours", f"{url}/plain"),
            lambda: {"embedding_ms": ray.get(bench.embedding.remote(50))},
            lambda: {"mb_per_1000_queries": ray.get(bench.memory_mb.remote(IN_FLIGHT))},
        ):
            found = measure()
            print({k: round(v, 3) for k, v in found.items()}, flush=True)
            items |= found
    print(json.dumps({"benchmark": "overhead", **{k: round(v, 3) for k, v in items.items()}}))


if __name__ == "__main__":
    main()
