"""The settings of Ray Serve's transport that ship: gRPC between replicas, one event loop each.

Ray reads them when its modules load, in every process, so they must be in the environment of the
process that starts Ray (and of ``ray start`` on each node of a cluster, see ``cluster.yaml``).
"""

from __future__ import annotations

import os

SETTINGS = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    # Ray's set of settings would also have every replica of the ingress listen on all interfaces
    # and wait 30 s before it ends. Only its HAProxy needs that.
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",
}


def use_fast_transport() -> None:
    """Set what is not set yet; before ``ray`` is imported for the first time."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
