"""The detached actors of one application version: made once, found by name afterwards."""

from __future__ import annotations

from typing import Any

import ray

from actors.monitor_actor import MonitorActor
from actors.names import NAMESPACE, ActorNames
from actors.scheduler_actor import SchedulerActor
from actors.workflow_actor import WorkflowActor
from runtime.config import AppConfig

MAX_CONCURRENCY = 100_000
"""Ray's default of 1000 would count calls that wait for a lease, and lock up at 1000 of them."""


def ensure_actors(config: AppConfig, engines: dict[str, Any], embed: Any) -> None:
    """Create monitor, schedulers and workflow actors where they do not exist; wait until they run.

    They are detached, since whoever creates them first may end before the application does.
    """
    names = ActorNames(config.digest)
    dump = config.model_dump(mode="json")
    made = [_get(MonitorActor, names.monitor, dump)]
    made += [_get(SchedulerActor, names.scheduler(m.name), m.name, dump) for m in config.models]
    made += [
        _get(WorkflowActor, names.workflow(i), i, dump, engines, embed)
        for i in range(config.workflow_actors)
    ]
    ray.get([actor.ready.remote() for actor in made])


def _get(cls: type, name: str, *args: Any) -> Any:
    options = {
        "name": name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "max_restarts": -1,
        "max_concurrency": MAX_CONCURRENCY,
    }
    return ray.remote(cls).options(**options).remote(*args)
