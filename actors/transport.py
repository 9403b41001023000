"""The settings of Ray Serve's transport that ship: gRPC, one event loop each, HAProxy in front.

Ray reads them when its modules load, in every process, so they must be in the environment of the
process that starts Ray (on a cluster, of ``ray start`` on each node, see ``cluster.yaml``).
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from pathlib import Path

SETTINGS = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    # On a busy machine a proxy takes longer to start than the 5 s after which Serve kills it.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    # How long an ingress that is going away still answers whoever has not heard of it.
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
    # After a change of routes a HAProxy that is left over still serves its connections so long.
    "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "3600",
}
"""Of a pool on one machine. HAProxy takes the place of Serve's own proxy, which is in Python."""


def use_fast_transport() -> None:
    """Set what is not set yet; before ``ray.serve`` is imported for the first time."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)


def use_own_proxy(folder: Path) -> None:
    """Give the Ray that starts next a HAProxy of its own: its files, sockets and ports.

    By default all pools of a machine would share them. Two ports show statistics, and two are of
    Serve's own proxy, to which HAProxy turns while no ingress is there.
    """
    for kind in ("HTTP", "GRPC"):
        os.environ[f"RAY_SERVE_FALLBACK_PROXY_{kind}_PORT"] = str(free_port())
    files = {
        "CONFIG_FILE_LOC": folder / "haproxy.cfg",
        "SOCKET_PATH": folder / "haproxy.sock",
        "SERVER_STATE_BASE": folder,
        "SERVER_STATE_FILE": folder / "haproxy-state",
        "STATS_PORT": free_port(),
        "METRICS_PORT": free_port(),
    }
    for name, value in files.items():
        os.environ[f"RAY_SERVE_HAPROXY_{name}"] = str(value)


PORTS = range(20_000, 30_000)
"""Below those that systems give to outgoing connections, which could take one before it is used,
and between those of Ray's workers and of Serve's replicas."""


def free_port() -> int:
    """A TCP port that nobody listens on."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
