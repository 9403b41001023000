"""A pool on this machine for as long as a ``with`` block lasts: Ray, Serve and one application."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from actors.client import Client
from actors.endpoint_http import auth_headers
from actors.models import resolve_source
from actors.transport import use_fast_transport, use_own_proxy
from runtime.config import AppConfig, parse_config
from runtime.errors import ConfigError
from runtime.run_program import check_sandbox

READY_TIMEOUT_S = 60.0
STEADY_S = 1.5
IMPORT_PATH = "actors.app:build"


@dataclass(frozen=True, slots=True)
class ServeFile:
    """What a Serve config file with one application of ours says, or would if there were one."""

    args: dict[str, Any]
    config: AppConfig
    name: str = "inframind"
    route_prefix: str = "/"
    host: str = "127.0.0.1"
    port: int = 8000

    @property
    def simulated(self) -> bool:
        """Whether any model of the pool is the fake engine."""
        return any(model.simulated for model in self.config.models)


def read_serve_file(path: Path) -> ServeFile:
    """Read and check a Serve config file; raises ``ConfigError`` that names file and key."""
    try:
        data = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    applications = data.get("applications") if isinstance(data, dict) else None
    if not isinstance(applications, list) or len(applications) != 1:
        raise ConfigError(f"{path}: must have `applications:` with exactly one application")
    app, http = applications[0], data.get("http_options") or {}
    if not isinstance(app, dict) or not isinstance(http, dict):
        raise ConfigError(f"{path}: the application and `http_options:` must be mappings")
    if app.get("import_path") != IMPORT_PATH:
        raise ConfigError(f"{path}: applications.0.import_path must be {IMPORT_PATH!r}")
    args, port = app.get("args") or {}, http.get("port", 8000)
    if not isinstance(port, int) or not 0 < port < 65536:
        raise ConfigError(f"{path}: http_options.port must be 1 to 65535, not {port!r}")
    return ServeFile(
        name=app.get("name", "inframind"),
        route_prefix=app.get("route_prefix", "/"),
        host=http.get("host", "127.0.0.1"),
        port=port,
        args=args,
        config=parse_config(args, f"{path}: applications.0.args"),
    )


@contextlib.contextmanager
def running_pool(
    file: ServeFile, port: int | None = None, tell: Callable[[str], None] = lambda _: None
) -> Iterator[str]:
    """Start the pool, yield its URL, stop everything that was started.

    ``tell`` receives what is being waited for, about once a second.

    Raises:
        ConfigError: the port is taken, or what a model needs is not installed or prepared.
        RuntimeError: the application did not come up; the message holds Serve's reason.
    """
    port = port or file.port
    _check_needs(file.config)
    _check_port(file.host, port)
    logging.disable(logging.WARNING)  # the engines' import chatter; replicas log to their files
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    use_fast_transport()
    import ray
    from ray import serve

    temp = tempfile.mkdtemp(prefix="inframind-", dir="/tmp")
    use_own_proxy(Path(temp))
    url = f"http://{file.host}:{port}{file.route_prefix.rstrip('/')}"
    try:
        with _without_ray_chatter():
            tell("starting Ray")
            ray.init(
                address="local",
                num_cpus=_cpus(file.config),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _temp_dir=temp,
            )
            serve.start(
                proxy_location="HeadOnly",
                http_options={"host": file.host, "port": port},
                logging_config={"log_level": "WARNING", "enable_access_log": False},
            )
            with _watch(file.name, tell):
                _deploy(file)
            wait_ready(url)
        yield url
    finally:
        with _without_ray_chatter():
            with contextlib.suppress(Exception):
                serve.shutdown()
            _flush_log(file.config)
            ray.shutdown()
        shutil.rmtree(temp, ignore_errors=True)


@contextlib.contextmanager
def _without_ray_chatter() -> Iterator[None]:
    """Ray's remarks while it starts and stops, which no log level governs; errors still raise.

    Whoever wants to write meanwhile holds on to the stream itself.
    """
    void = io.StringIO()
    with contextlib.redirect_stderr(void), contextlib.redirect_stdout(void):
        yield


def _deploy(file: ServeFile) -> None:
    from ray import serve

    from actors.app import build

    serve.run(build(file.args), name=file.name, route_prefix=file.route_prefix, blocking=False)


def _flush_log(config: AppConfig) -> None:
    from actors.names import flush_log

    flush_log(config)


def _cpus(config: AppConfig) -> float:
    """Logical CPUs: the machine's, or what the replicas ask for if that is more."""
    asked = sum(m.num_cpus * m.replicas for m in config.models)
    return max(float(os.cpu_count() or 1), float(-(-asked // 1)) + 2)


def _check_needs(config: AppConfig) -> None:
    """Before Ray starts: the sandbox, keys, vLLM, weights that are to be prepared; each only where
    the config wants it."""
    check_sandbox(config)
    for model in config.models:
        if model.endpoint is not None:
            auth_headers(model.endpoint)
    sources = [m.source or "" for m in config.models if m.backend == "vllm"]
    if sources and importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "this pool needs vLLM, which is not installed: run `make install-vllm`; "
            "serve_configs/fake.yaml works without"
        )
    if config.embedding.backend == "minilm":
        sources.append(config.embedding.source)
    for source in sources:
        resolve_source(source)


def _check_port(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port"
            ) from None


def wait_ready(url: str) -> None:
    """Return when a model of the pool has reported; ``RuntimeError`` after a minute.

    The pool must answer for ``STEADY_S`` on end: while its routes spread, a request may still
    meet a proxy that does not know them.
    """
    client = Client(url)
    end = time.monotonic() + READY_TIMEOUT_S
    healthy_since: float | None = None
    while True:
        now = time.monotonic()
        if not client.healthy():
            healthy_since = None
        elif healthy_since is None:
            healthy_since = now
        elif now - healthy_since >= STEADY_S:
            return
        if now > end:
            raise RuntimeError(f"{url} is up, but no model has reported within a minute")
        time.sleep(0.1)


@contextlib.contextmanager
def _watch(app: str, tell: Callable[[str], None]) -> Iterator[None]:
    """Tell once a second which deployments are still starting."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(1.0):
            with contextlib.suppress(Exception):
                tell(_waiting_for(app))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _waiting_for(app: str) -> str:
    from ray import serve

    status = serve.status().applications.get(app)
    if status is None:
        return "building the application"
    waiting = [n for n, d in status.deployments.items() if d.status != "HEALTHY"]
    return f"waiting for {', '.join(waiting)}" if waiting else "starting the actors"
