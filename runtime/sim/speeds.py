"""How fast the pool's models are on B200, H200 and H100: iteration, prefill, memory.

One engine iteration takes ``a + c * b + d * K / 1000`` seconds, with b running sequences that hold
K tokens of KV cache together (CALIBRATION section 8). Kernels are measured (vLLM 0.24, bf16, one
GPU, composed per layer); what the host adds is assumed, and so is that memory which is neither
weights nor KV.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from runtime.config import AppConfig, ModelConfig
from runtime.errors import ConfigError
from runtime.sim.apis import api_speed
from runtime.sim.pool import SimApi, SimModel

HOST_S = 0.001
"""Assumed: what the host adds to every iteration."""

HOST_S_PER_SEQ = 0.00003
"""Assumed: and for every running sequence; the excess of vLLM over its kernels on H100."""

RESERVE_GB = 2.78
"""Assumed: activations and buffers of an engine."""

GPU_GB = {"B200": 193.0, "H200": 151.1, "H100": 85.6}
"""Memory of a GPU, in units of 10**9 bytes."""


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """One model alone on one GPU; times in seconds, host included."""

    gpu: str
    model: str
    iteration_s: float
    per_seq_s: float
    per_1k_kv_s: float
    prefill_tokens_per_s: float
    weights_gb: float
    kv_bytes_per_token: int

    def kv_tokens(self, memory_share: float = 0.92) -> int:
        """Tokens of KV cache in ``memory_share`` of the GPU; 0 where the weights do not fit."""
        room_gb = GPU_GB[self.gpu] * memory_share - self.weights_gb - RESERVE_GB
        return max(0, int(room_gb * 1e9 / self.kv_bytes_per_token))


def engine_speed(model: str, gpu: str = "B200", *, host: bool = True) -> EngineSpeed:
    """The row of ``calibration/speeds.csv``; without ``host``, of the kernels alone.

    Raises:
        ConfigError: there is no row for the model on that GPU.
    """
    row = _rows().get((gpu, model))
    if row is None:
        raise ConfigError(f"no speed is known of model {model!r} on {gpu}")
    return EngineSpeed(
        gpu=gpu,
        model=model,
        iteration_s=float(row["a_ms"]) / 1000 + (HOST_S if host else 0.0),
        per_seq_s=float(row["c_ms_per_seq"]) / 1000 + (HOST_S_PER_SEQ if host else 0.0),
        per_1k_kv_s=float(row["d_ms_per_1k_kv_tokens"]) / 1000,
        prefill_tokens_per_s=float(row["prefill_tokens_per_s_2k"]),
        weights_gb=float(row["weights_gb"]),
        kv_bytes_per_token=int(row["kv_bytes_per_token"]),
    )


def calibrated_pool(
    config: AppConfig, gpu: str = "B200", slowdown: float = 1.0, seed: int = 0
) -> dict[str, SimModel | SimApi]:
    """An engine for every model of the config, at its calibrated speed on ``gpu``.

    A model has the memory that ``engine.gpu_memory_utilization`` gives it, else vLLM's 0.92, and
    runs on ``placement.gpu``. API models are as in ``runtime.sim.apis`` at the config's own
    ``rpm_limit``; ``seed`` draws what their calls take, and no slowdown reaches them. Raises
    ``ConfigError`` where no speed of a model is known.
    """
    pool: dict[str, SimModel | SimApi] = {}
    for model in config.models:
        if model.api is None:
            pool[model.name] = _engine(model, gpu).slower(slowdown)
        else:
            pool[model.name] = api_speed(model.name).engine(model.api.rpm_limit, seed)
    return pool


def _engine(model: ModelConfig, gpu: str) -> SimModel:
    speed, place = engine_speed(model.name, gpu), model.placement.gpu
    return SimModel(
        a_s=speed.iteration_s,
        c_s=speed.per_seq_s,
        d_s_per_1k=speed.per_1k_kv_s,
        prefill_tokens_per_s=speed.prefill_tokens_per_s,
        kv_tokens=speed.kv_tokens(float(model.engine.get("gpu_memory_utilization", 0.92))),
        gpus=() if place is None else (f"gpu{place}",),
    )


@lru_cache(maxsize=1)
def _rows() -> dict[tuple[str, str], dict[str, str]]:
    path = files("runtime.sim") / "calibration" / "speeds.csv"
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    return {(row["gpu"], row["model"]): row for row in rows}
