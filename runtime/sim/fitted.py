"""What was fitted to a pool's own log, as the simulator takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from runtime.config import AppConfig
from runtime.sim.items import Calibration
from runtime.sim.parameters import EngineParameters, PoolParameters
from runtime.sim.pool import SimModel, sim_model


def fitted_engine(engine: EngineParameters, beside: SimModel) -> SimModel:
    """The fitted speed; what a log does not show (memory, loading, GPUs) is that of ``beside``."""
    return replace(
        beside,
        a_s=engine.a_s.value,
        c_s=engine.c_s.value,
        d_s_per_1k=engine.d_s_per_1k.value,
        prefill_tokens_per_s=engine.prefill_tokens_per_s.value,
        dispatch_s=engine.dispatch_s.value,
    )


def fitted_pool(config: AppConfig, engines: Mapping[str, EngineParameters]) -> dict[str, SimModel]:
    """An engine for every model of the config: the fitted one, else what the config assumes."""
    pool = {model.name: sim_model(model) for model in config.models}
    for name, engine in engines.items():
        if name in pool:
            pool[name] = fitted_engine(engine, pool[name])
    return pool


def fitted_calibration(base: Calibration, pool: PoolParameters) -> Calibration:
    """``base`` with the models of the file, in place of those of the same name."""
    return replace(base, parameters=base.parameters.with_models(*pool.models))
