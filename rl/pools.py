"""A pool at an operating point: its config and its simulated engines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rl.baselines.rollout import read_pool
from rl.config import PointConfig
from runtime.config import AppConfig, ModelConfig
from runtime.errors import ConfigError
from runtime.sim.pool import SimApi, SimModel, sim_pool
from runtime.sim.speeds import calibrated_pool

_NO_BOUND = 1_000_000

Engines = dict[str, SimModel | SimApi]


def training_pool(path: Path) -> AppConfig:
    """The pool of a Serve config file, with soft deadlines, deadline order, and nothing refused for
    its backlog. Raises ``ConfigError``."""
    base = read_pool(path)
    limits = {"max_queries_in_flight": _NO_BOUND, "max_backlog_per_model": _NO_BOUND}
    return base.model_copy(
        update={
            "at_deadline": "run_on",
            "order": "edf",
            "limits": base.limits.model_copy(update=limits),
        }
    )


def at_point(base: AppConfig, point: PointConfig) -> tuple[AppConfig, Engines]:
    """The pool and its engines at ``point``. Engines are the calibrated ones where the speed of
    every model is known, else those that the config describes.

    Raises:
        ConfigError: ``max_num_seqs`` of a model that there is not.
    """
    names = {model.name for model in base.models}
    if unknown := point.max_num_seqs.keys() - names:
        raise ConfigError(f"points: max_num_seqs: no such model {sorted(unknown)}")
    models = tuple(_model(model, point) for model in base.models)
    config = base.model_copy(update={"models": models})
    # The config's speeds are slowed already; calibrated engines are not.
    try:
        engines = calibrated_pool(config, slowdown=point.slowdown)
    except ConfigError:
        engines = sim_pool(config)
    return config, {name: _cached(engine, point) for name, engine in engines.items()}


def _model(model: ModelConfig, point: PointConfig) -> ModelConfig:
    seqs = point.max_num_seqs.get(model.name, model.max_num_seqs)
    if model.api is not None:
        return model
    speed = model.speed.model_copy(
        update={
            "token_s": model.speed.token_s * point.slowdown,
            "token_s_per_seq": model.speed.token_s_per_seq * point.slowdown,
            "prefill_tokens_per_s": model.speed.prefill_tokens_per_s / point.slowdown,
        }
    )
    return model.model_copy(update={"max_num_seqs": seqs, "speed": speed})


def _cached(engine: SimModel | SimApi, point: PointConfig) -> SimModel | SimApi:
    if isinstance(engine, SimApi):
        return engine
    read = engine.prefill_tokens_per_s / (1.0 - point.prefix_hit)
    return replace(engine, prefill_tokens_per_s=read)
