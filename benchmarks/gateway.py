"""One call to a model behind us, beside LiteLLM's proxy: ``python -m benchmarks.gateway``.

Three ways to one backend that answers at once: directly, through a pool that fronts it as an
endpoint, and through LiteLLM's proxy 1.99.4, which is installed into an environment of its own
(``--litellm DIR``). They take turns in one run; every text is distinct. Last, one line of JSON:
``added_ms_c1`` and ``litellm_added_ms_c1``, the median latency at concurrency 1 less that of the
direct call, and ``rps_c32`` and ``litellm_rps_c32``, requests per second at concurrency 32.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import aiohttp
import typer
import yaml

from actors.local_pool import ServeFile, running_pool
from actors.transport import free_port
from benchmarks.inputs import own_state, question
from benchmarks.instant_server import MODEL
from runtime.config import parse_config

LITELLM = "litellm[proxy]==1.99.4"
ROUNDS = 3
CALLS_C1 = 150
CONCURRENCY = 32
CALLS_C32 = 960
START_S = 180.0


def pool(backend: str) -> dict[str, Any]:
    """The backend as a pool's one member."""
    model = {
        "name": MODEL,
        "backend": "openai",
        "endpoint": {"url": f"{backend}/v1", "metrics_url": None},
        "context_tokens": 4096,
        "max_output_tokens": 256,
        "max_num_seqs": 2 * CONCURRENCY,
        "speed": {"prefill_tokens_per_s": 1e6, "token_s": 1e-4},
        "placement": {"num_cpus": 0},
    }
    return {"version": 1, "models": [model]}


def litellm_binary(folder: Path) -> Path:
    """LiteLLM's proxy in an environment of its own, installed where it is not yet."""
    binary = folder / "bin" / "litellm"
    if not binary.exists():
        print(f"installing {LITELLM} into {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin" / "pip", "install", "-q", LITELLM], check=True)
    return binary


@contextlib.contextmanager
def process(command: list[str], url: str, **env: str) -> Iterator[str]:
    """A server for as long as the block lasts; yields ``url`` when it lists its models."""
    with tempfile.TemporaryFile("w+") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **env})
        try:
            asyncio.run(_wait_for(url, child))
            yield url
        except TimeoutError:
            log.seek(0)
            raise SystemExit(f"{command[0]} did not come up:\n{log.read()[-2000:]}") from None
        finally:
            child.terminate()
            child.wait(20)


async def _wait_for(url: str, child: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S
    async with aiohttp.ClientSession() as http:
        while time.monotonic() < end and child.poll() is None:
            with contextlib.suppress(aiohttp.ClientError):
                async with http.get(f"{url}/v1/models") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.3)
    raise TimeoutError


@contextlib.contextmanager
def litellm(binary: Path, backend: str) -> Iterator[str]:
    """LiteLLM's proxy before ``backend``, with one worker and no logs of calls."""
    port = free_port()
    params = {"model": f"openai/{MODEL}", "api_base": f"{backend}/v1", "api_key": "none"}
    config = {
        "model_list": [{"model_name": MODEL, "litellm_params": params}],
        "litellm_settings": {"telemetry": False, "num_retries": 0},
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        command = [str(binary), "--config", str(path), "--host", "127.0.0.1", "--port", str(port)]
        local_costs = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
        with process(command, f"http://127.0.0.1:{port}", **local_costs) as url:
            yield url


async def load(url: str, calls: int, concurrency: int) -> tuple[float, float]:
    """Median milliseconds of a call, and calls per second."""
    times: list[float] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def worker() -> None:
            for _ in range(calls // concurrency):
                messages = [{"role": "user", "content": question()}]
                body = {"model": MODEL, "messages": messages, "max_tokens": 64}
                began = time.perf_counter()
                async with http.post(f"{url}/v1/chat/completions", json=body) as response:
                    answer = await response.json()
                times.append((time.perf_counter() - began) * 1000)
                assert response.status == 200, answer
                assert answer["choices"][0]["message"]["content"] == "At once.", answer

        began = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(concurrency)))
        return median(times), len(times) / (time.perf_counter() - began)


def measure(ways: dict[str, str]) -> dict[str, float]:
    """All ways in turns; medians over the rounds."""
    c1: dict[str, list[float]] = {name: [] for name in ways}
    c32: dict[str, list[float]] = {name: [] for name in ways}
    for url in ways.values():
        asyncio.run(load(url, 2 * CONCURRENCY, CONCURRENCY))
    for _ in range(ROUNDS):
        for name, url in ways.items():
            c1[name].append(asyncio.run(load(url, CALLS_C1, 1))[0])
            c32[name].append(asyncio.run(load(url, CALLS_C32, CONCURRENCY))[1])
    added = {
        name: median(a - d for a, d in zip(c1[name], c1["direct"], strict=True)) for name in ways
    }
    return {
        "added_ms_c1": added["ours"],
        "rps_c32": median(c32["ours"]),
        "litellm_added_ms_c1": added["litellm"],
        "litellm_rps_c32": median(c32["litellm"]),
        "direct_ms_c1": median(c1["direct"]),
        "direct_rps_c32": median(c32["direct"]),
        "ratio_added": added["ours"] / added["litellm"],
        "ratio_rps": median(a / b for a, b in zip(c32["ours"], c32["litellm"], strict=True)),
    }


def main(
    litellm_venv: Annotated[
        Path, typer.Option("--litellm", help="Where LiteLLM is, or is installed.")
    ] = Path(".venv-litellm"),
) -> None:
    """Measure what a gateway adds to one call: ours and LiteLLM's."""
    binary = litellm_binary(litellm_venv)
    port, own_port = free_port(), free_port()
    server = [sys.executable, "-m", "benchmarks.instant_server", str(port)]
    with process(server, f"http://127.0.0.1:{port}") as backend, litellm(binary, backend) as proxy:
        args = pool(backend)
        config = parse_config(args)
        file = ServeFile(args, config, port=own_port)
        with own_state(), running_pool(file) as ours:
            found = measure({"direct": backend, "ours": ours, "litellm": proxy})
    print(json.dumps({"benchmark": "gateway", **{k: round(v, 2) for k, v in found.items()}}))


if __name__ == "__main__":
    typer.run(main)
