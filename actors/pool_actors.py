"""The detached actors of one application version: made once, found by name afterwards."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.monitor_actor import MonitorActor
from actors.names import NAMESPACE, ActorNames
from actors.records_actor import RecordsActor
from actors.scheduler_actor import SchedulerActor
from actors.workflow_actor import WorkflowActor
from runtime.config import AppConfig

MAX_CONCURRENCY = 100_000
"""Ray's default of 1000 would count calls that wait for a lease, and lock up at 1000 of them."""


def ensure_actors(config: AppConfig, engines: dict[str, Any], embed: Any) -> None:
    """Create the actors of ``config`` where they do not exist; wait until they run.

    They are detached, since whoever creates them first may end before the application does.
    """
    names = ActorNames(config.digest)
    dump = config.model_dump(mode="json")
    made = [_get(MonitorActor, names.monitor, dump)]
    made += [_get(SchedulerActor, names.scheduler(m.name), m.name, dump) for m in config.models]
    made += [
        _get(WorkflowActor, names.workflow(i), names.workflow(i), dump, engines, embed)
        for i in range(config.workflow_actors)
    ]
    made.append(_get(RecordsActor, names.records, dump, engines, embed, here=True))
    ray.get([actor.ready.remote() for actor in made])


def _get(cls: type, name: str, *args: Any, here: bool = False) -> Any:
    """``here``: on this node as long as it lives, also after a restart."""
    options: dict[str, Any] = {
        "name": name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "max_restarts": -1,
        "max_concurrency": MAX_CONCURRENCY,
    }
    if here:
        node = ray.get_runtime_context().get_node_id()
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=True)
    return ray.remote(cls).options(**options).remote(*args)
