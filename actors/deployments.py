"""Model deployments: from a ``ModelConfig`` to a Serve application, for each backend."""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.deployment import Application

from actors.endpoint_server import EndpointServer
from actors.fake_engine import FakeModelServer
from runtime.config import ModelConfig
from runtime.errors import ConfigError

# Ray's unit for "on a node with this accelerator", the same as in its own LLM code.
ACCELERATOR_SHARE = 0.001

HEALTH_CHECK_PERIOD_S = 2.0
"""Serve's default of 10 s would be most of the time from a replica's death to its successor."""


def build_model(
    model: ModelConfig, *, monitor_name: str, namespace: str, report_period_s: float
) -> Application:
    """The application of one model; its deployment has the model's name.

    Raises:
        ConfigError: the placement cannot be had.
    """
    if model.backend != "vllm":
        server = FakeModelServer if model.backend == "fake" else EndpointServer
        deployment = serve.deployment(server).options(
            ray_actor_options={
                "num_cpus": model.num_cpus,
                "resources": custom_resources(model),
            },
            **serve_options(model),
        )
        return deployment.bind(
            model.model_dump(mode="json"), monitor_name, namespace, report_period_s
        )
    from ray.serve.llm import build_llm_deployment

    config = llm_config(
        model,
        {
            "INFRAMIND_MODEL": model.name,
            "INFRAMIND_MONITOR": monitor_name,
            "INFRAMIND_NAMESPACE": namespace,
            "INFRAMIND_REPORT_PERIOD_S": str(report_period_s),
            "INFRAMIND_MAX_NUM_SEQS": str(model.max_num_seqs),
        },
    )
    return build_llm_deployment(config, override_serve_options={"name": model.name})


def serve_options(model: ModelConfig) -> dict[str, Any]:
    """The Serve options that every backend shares."""
    options: dict[str, Any] = {
        "name": model.name,
        "num_replicas": model.replicas,
        # The bound on running + waiting in the engine. Leases order calls; this holds even
        # when a scheduler is gone and workflows call the engine directly.
        "max_ongoing_requests": model.max_num_seqs,
        # A dead replica is found by its next check; an engine on two busy cores may not get to
        # answer for many seconds.
        "health_check_period_s": HEALTH_CHECK_PERIOD_S,
        "health_check_timeout_s": 120,
        "graceful_shutdown_wait_loop_s": 0.5,
        "graceful_shutdown_timeout_s": 10,
    }
    if model.request_router is not None:
        router = RequestRouterConfig(request_router_class=model.request_router)
        options["request_router_config"] = router
    return options


def custom_resources(model: ModelConfig) -> dict[str, float]:
    """The Ray resources of one replica besides CPU and GPU."""
    resources = dict(model.placement.resources)
    if model.placement.accelerator_type is not None:
        resources[f"accelerator_type:{model.placement.accelerator_type}"] = ACCELERATOR_SHARE
    return resources


def llm_config(model: ModelConfig, env: dict[str, str]) -> Any:
    """Ray's ``LLMConfig`` for ``model``; the replica's environment gets ``env``, too."""
    from ray.serve.llm import LLMConfig

    from actors.models import resolve_source
    from actors.vllm_server import InfraMindLLMServer, SkipDownload

    options = serve_options(model)
    del options["name"]
    return LLMConfig(
        model_loading_config={
            "model_id": model.name,
            "model_source": resolve_source(model.source or ""),
        },
        engine_kwargs={
            "max_model_len": model.context_tokens,
            "max_num_seqs": model.max_num_seqs,
            "scheduling_policy": "priority",
            "enable_prefix_caching": True,
            **model.engine,
        },
        deployment_config={
            **options,
            "ray_actor_options": {"num_cpus": model.placement.num_cpus},
        },
        server_cls=InfraMindLLMServer,
        callback_config={"callback_class": SkipDownload},
        runtime_env={"env_vars": {**model.env, **env, **gpu_env(model)}},
        **accelerator(model),
    )


def accelerator(model: ModelConfig) -> dict[str, Any]:
    """Accelerator and bundles of one replica, as arguments of ``LLMConfig``.

    Three cases. Without an accelerator: CPU. With one, but no ``gpu``: Ray gives each worker a
    whole GPU of its choice. With ``gpu``: that device, shared with others.

    The third is what Ray cannot express. A fraction of ``GPU`` is a share of *some* GPU: Ray
    packs fractions as it likes, and its GPU path fixes vLLM to Ray workers that run where Ray
    put them. So a pinned replica asks for no ``GPU`` at all. It takes its share of the custom
    resource that stands for the device, which keeps account, and ``gpu_env`` shows the process
    that one device. Ray's kind ``cpu`` means just this: no Ray workers, the engine is a plain
    child process and inherits what the replica sees (the device is still found and used: vLLM
    looks for CUDA itself). Ray knows nothing of the use of the device, so on such nodes nothing
    else may ask Ray for ``GPU``.
    """
    placement, resources = model.placement, custom_resources(model)
    num_workers = _num_workers(model)
    if placement.accelerator_type is not None and placement.gpu is None:
        bundles = [{"GPU": 1.0, **resources}] + [{"GPU": 1.0}] * (num_workers - 1)
        return {
            "accelerator_type": placement.accelerator_type,
            "placement_group_config": {"bundles": bundles, "strategy": "STRICT_PACK"},
        }
    if placement.gpu is not None and num_workers != 1:
        raise ConfigError(f"model {model.name!r}: a replica on one `gpu` cannot be parallel")
    return {
        "accelerator_config": {"kind": "cpu"},
        "placement_group_config": {"bundles": [{"CPU": 0.0, **resources}]},
    }


def _num_workers(model: ModelConfig) -> int:
    tensor = int(model.engine.get("tensor_parallel_size", 1))
    return tensor * int(model.engine.get("pipeline_parallel_size", 1))


def gpu_env(model: ModelConfig) -> dict[str, str]:
    """What limits a replica to its device, see ``accelerator``."""
    if model.placement.gpu is None:
        return {}
    return {
        "CUDA_VISIBLE_DEVICES": str(model.placement.gpu),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # so that the index is that of nvidia-smi
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",  # Ray leaves the line above alone
        "INFRAMIND_GPU": str(model.placement.gpu),
    }
