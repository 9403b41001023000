"""The document of ``GET /v1/pool``."""

from __future__ import annotations

import dataclasses
from typing import Any

from runtime.config import AppConfig
from runtime.telemetry import PoolTelemetry


def pool_document(
    config: AppConfig, snapshot: PoolTelemetry | None, age_s: float | None
) -> dict[str, Any]:
    """Settings and live figures of every model; a figure that is not known is ``null``."""
    return {
        "version": snapshot.version if snapshot else None,
        "age_s": age_s,
        "policy": config.policy.name,
        "order": config.order,
        "quality_prior": config.quality.status,
        "code_execution": config.code_execution,
        "models": [_model(config, model.name, snapshot) for model in config.models],
    }


def _model(config: AppConfig, name: str, snapshot: PoolTelemetry | None) -> dict[str, Any]:
    model = config.model(name)
    figures: dict[str, Any] = {}
    if snapshot is not None and name in snapshot.models:
        figures = dataclasses.asdict(snapshot.models[name])
        figures.pop("engine_calls")
        figures.pop("model")
        rate = snapshot.models[name].rate
        figures["congestion"] = rate.congestion if rate else None
    return {
        "name": name,
        "backend": model.backend,
        "simulated": model.simulated,
        "endpoint": model.endpoint.host if model.endpoint else None,
        "context_tokens": model.context_tokens,
        "max_num_seqs": model.max_num_seqs,
        **figures,
    }
