"""A process that pauses for half a minute must not cost the pool its actors for good."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import httpx
import pytest

from actors.names import ActorNames
from runtime.config import parse_config
from tests.live import Deploy, eventually, pid_of, replica_pids

PAUSE_S = 36.0


def args(seed: int) -> dict[str, Any]:
    only = {
        "name": "only",
        "backend": "fake",
        "context_tokens": 4096,
        "max_output_tokens": 512,
        "max_num_seqs": 4,
        "speed": {"prefill_tokens_per_s": 50_000, "token_s": 0.01},
        "placement": {"num_cpus": 0.1},
    }
    policy = {"name": "least_loaded", "options": {"topology": "IO", "agents": 1}, "seed": seed}
    return {"version": 1, "models": [only], "policy": policy, "default_budget_s": 60.0}


def healthy(url: str) -> bool:
    return httpx.get(f"{url}/healthz", timeout=30).status_code == 200


def long_query(url: str) -> int:
    body = {"question": "What is 6 times 7?", "task": "math"}
    prefer = {"prefer": "respond-async, wait=10"}
    return httpx.post(f"{url}/v1/queries", json=body, headers=prefer, timeout=60).status_code


@pytest.mark.timeout(240)
@pytest.mark.parametrize("who", ["ingress", "monitor"])
def test_a_pause_of_a_process_does_not_end_the_actors_of_the_pool(deploy: Deploy, who: str) -> None:
    config = args(7 if who == "ingress" else 8)
    url = deploy(config)
    names = ActorNames(parse_config(config).digest)
    assert long_query(url) == 200
    pid = replica_pids(url, "ingress")[0] if who == "ingress" else pid_of(names.monitor)
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(PAUSE_S)
    finally:
        os.kill(pid, signal.SIGCONT)
    time.sleep(3.0)
    eventually(lambda: healthy(url), 30.0)
    assert long_query(url) == 200
