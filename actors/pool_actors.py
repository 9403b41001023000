"""The detached actors of one application version: made once, found by name afterwards."""

from __future__ import annotations

import logging
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.log_actor import LogActor
from actors.monitor_actor import MonitorActor
from actors.names import NAMESPACE, ActorNames, actor_names
from actors.records_actor import RecordsActor
from actors.scheduler_actor import SchedulerActor
from actors.workflow_actor import WorkflowActor
from runtime.config import AppConfig
from runtime.run_program import check_sandbox

logger = logging.getLogger(__name__)

START_S = 20.0
"""An actor that does not answer by then keeps nobody from starting; it may only be stopped."""

MAX_CONCURRENCY = 100_000
"""Ray's default of 1000 would count calls that wait for a lease, and lock up at 1000 of them."""


def ensure_actors(config: AppConfig, engines: dict[str, Any], embed: Any) -> None:
    """Create the actors of ``config`` where they do not exist; wait until they run.

    They are detached, since whoever creates them first may end before the application does.

    Raises:
        ConfigError: generated code is to be run, and cannot be run safely where queries are driven.
    """
    check_sandbox(config)
    names = ActorNames(config.digest)
    dump = config.model_dump(mode="json")
    made = [_get(MonitorActor, names.monitor, dump)]
    made += [_get(SchedulerActor, names.scheduler(m.name), m.name, dump) for m in config.models]
    workflows = [
        _get(WorkflowActor, name, name, dump, engines, embed, config.workflow_actors)
        for name in map(names.workflow, range(config.workflow_actors))
    ]
    made += workflows
    made.append(_get(RecordsActor, names.records, dump, engines, embed, here=True))
    if config.call_log.enabled:
        made.append(_get(LogActor, names.log, dump, here=True))
    _wait([actor.ready.remote() for actor in made])
    _wait([workflow.check_sandbox.remote() for workflow in workflows])


def missing_actors(config: AppConfig) -> bool:
    """Whether an actor of ``config`` is gone for good; one that is being restarted is not."""
    named = ray.util.list_named_actors(all_namespaces=True)
    there = {actor["name"] for actor in named if actor["namespace"] == NAMESPACE}
    return not there.issuperset(actor_names(config))


def _wait(refs: list[Any]) -> None:
    if not refs:
        return
    done, away = ray.wait(refs, num_returns=len(refs), timeout=START_S)
    ray.get(done)
    if away:
        logger.warning("%d actors do not answer yet", len(away))


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
