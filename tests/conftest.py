"""Shared builders of configs, and what every test may rely on."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.transport import free_port, use_fast_transport, use_own_proxy
from runtime.config import AppConfig, parse_config
from tests.live import Deploy

# Logs of calls go to a folder of their own, not to the user's.
_state = tempfile.mkdtemp(prefix="im-state-", dir="/tmp")
atexit.register(shutil.rmtree, _state, ignore_errors=True)
os.environ["INFRAMIND_STATE"] = _state

use_fast_transport()


def model_args(name: str, **changes: Any) -> dict[str, Any]:
    """One fake model: fast to prefill, 10 ms a token."""
    return {
        "name": name,
        "backend": "fake",
        "context_tokens": 4096,
        "max_output_tokens": 512,
        "max_num_seqs": 4,
        "speed": {"prefill_tokens_per_s": 10_000, "token_s": 0.01},
        **changes,
    }


def app_args(*models: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Args of a pool; three equal models where none are given."""
    pool = list(models) or [model_args(name) for name in ("small", "middle", "large")]
    return {"version": 1, "models": pool, **changes}


@pytest.fixture
def config() -> AppConfig:
    """Three models that get better and slower, with a prior for every task."""
    names = ("small", "middle", "large")
    models = [
        model_args(
            name,
            speed={"prefill_tokens_per_s": 10_000, "token_s": 0.005 * (i + 1)},
            price={"input": 0.1 * i, "output": 0.1 * i},
        )
        for i, name in enumerate(names)
    ]
    prior = {name: [0.3 + 0.2 * i, 0.4 + 0.2 * i, 0.5 + 0.2 * i] for i, name in enumerate(names)}
    tasks = ("math", "code", "knowledge", "general")
    return parse_config(app_args(*models, quality={"prior": dict.fromkeys(tasks, prior)}))


@pytest.fixture(scope="module")
def serve_url() -> Iterator[str]:
    """A Ray of its own with Serve on a free port, for the live tests of one module."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray
    from ray import serve

    temp = tempfile.mkdtemp(prefix="im-test-", dir="/tmp")
    use_own_proxy(Path(temp))
    port = free_port()
    try:
        ray.init(
            address="local",
            num_cpus=8,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=temp,
        )
        serve.start(
            http_options={"host": "127.0.0.1", "port": port},
            logging_config={"log_level": "WARNING", "enable_access_log": False},
        )
        yield f"http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(Exception):
            serve.shutdown()
        ray.shutdown()
        shutil.rmtree(temp, ignore_errors=True)


_app_numbers = itertools.count()


@contextlib.contextmanager
def _deploying(serve_url: str) -> Iterator[Deploy]:
    from ray import serve

    from actors.app import build
    from actors.local_pool import wait_ready
    from actors.names import end_actors

    started: list[tuple[str, AppConfig]] = []

    def start(args: dict[str, Any]) -> str:
        name = f"app{next(_app_numbers)}"
        started.append((name, parse_config(args)))
        serve.run(build(args), name=name, route_prefix=f"/{name}")
        wait_ready(f"{serve_url}/{name}")
        return f"{serve_url}/{name}"

    try:
        yield start
    finally:
        for name, config in started:
            serve.delete(name)
            end_actors(config)


@pytest.fixture(scope="module")
def deploy_once(serve_url: str) -> Iterator[Deploy]:
    """Deploys a pool that the tests of a module share; returns its URL once it is healthy."""
    with _deploying(serve_url) as start:
        yield start


@pytest.fixture
def deploy(serve_url: str) -> Iterator[Deploy]:
    """Deploys a pool for one test."""
    with _deploying(serve_url) as start:
        yield start
