"""Composition: ``build(args)`` is what Serve config files import. It only binds."""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve import Application

from actors.deployments import HEALTH_CHECK_PERIOD_S, build_model
from actors.embedding import Embedder
from actors.ingress import Ingress, api
from actors.names import NAMESPACE, ActorNames
from runtime.config import AppConfig, parse_config
from runtime.policy import make_policy

MAX_ONGOING = 100_000
"""The bound on queries in flight is the drivers'; Serve's must not come first."""


def build(args: dict[str, Any]) -> Application:
    """The application of one pool.

    Args:
        args: the ``args:`` of a Serve config file, see ``runtime.config.AppConfig``.

    Raises:
        ConfigError: the args cannot be used; names the key.
    """
    config = parse_config(args, "args")
    make_policy(config)
    names = ActorNames(config.digest)
    engines = {
        model.name: build_model(
            model,
            monitor_name=names.monitor,
            namespace=NAMESPACE,
            report_period_s=config.telemetry.report_period_s,
        )
        for model in config.models
    }
    ingress = serve.deployment(
        serve.ingress(api)(Ingress),
        name="ingress",
        health_check_period_s=HEALTH_CHECK_PERIOD_S,
        max_ongoing_requests=MAX_ONGOING,
        ray_actor_options={"num_cpus": 0},
    )
    return ingress.bind(config.model_dump(mode="json"), engines, _embedder(config))


def _embedder(config: AppConfig) -> Application:
    settings = config.embedding
    embedder = serve.deployment(
        Embedder,
        name="embedding",
        num_replicas=settings.replicas,
        health_check_period_s=HEALTH_CHECK_PERIOD_S,
        max_ongoing_requests=MAX_ONGOING,
        ray_actor_options={"num_cpus": 0},
    )
    return embedder.bind(settings.backend, settings.source, settings.max_batch)
