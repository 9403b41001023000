"""Names of the actors of one application version, and how to reach them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from runtime.config import AppConfig

NAMESPACE = "inframind"
FLUSH_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class ActorNames:
    """Names carry the config's digest, so that two versions never share an actor."""

    digest: str

    @property
    def monitor(self) -> str:
        return f"inframind:{self.digest}:monitor"

    @property
    def records(self) -> str:
        return f"inframind:{self.digest}:records"

    @property
    def log(self) -> str:
        return f"inframind:{self.digest}:log"

    @property
    def ingress(self) -> str:
        """Of the queries that an ingress drives itself; there is no actor of that name."""
        return f"inframind:{self.digest}:ingress"

    def scheduler(self, model: str) -> str:
        return f"inframind:{self.digest}:scheduler:{model}"

    def workflow(self, index: int) -> str:
        return f"inframind:{self.digest}:workflow:{index}"


def actor_names(config: AppConfig) -> tuple[str, ...]:
    """All actors of one version, the monitor last."""
    names = ActorNames(config.digest)
    actors = [names.scheduler(model.name) for model in config.models]
    actors += [names.workflow(index) for index in range(config.workflow_actors)]
    log = (names.log,) if config.call_log.enabled else ()
    return (names.records, *actors, *log, names.monitor)


def end_actors(config: AppConfig) -> None:
    """End the actors of one version, the monitor last; those that are gone already are skipped.

    What the log actor holds is written first.
    """
    flush_log(config)
    for name in actor_names(config):
        with contextlib.suppress(ValueError):
            ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)


def flush_log(config: AppConfig) -> None:
    """Have the log actor write what it holds, if it is there; waits a while for it."""
    with contextlib.suppress(ValueError, RayError):
        actor = ray.get_actor(ActorNames(config.digest).log, namespace=NAMESPACE)
        ray.get(actor.flush.remote(), timeout=FLUSH_TIMEOUT_S)


class ActorRef:
    """A named actor, looked up when needed and again after it was lost."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._handle: Any = None

    def get(self) -> Any:
        """The actor's handle; raises ``ValueError`` while there is no such actor."""
        if self._handle is None:
            self._handle = ray.get_actor(self.name, namespace=NAMESPACE)
        return self._handle

    def forget(self) -> None:
        """Look it up again next time."""
        self._handle = None
