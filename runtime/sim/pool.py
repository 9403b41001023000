"""What the simulator assumes of an engine, and what may go wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from runtime.config import AppConfig, ModelConfig

KV_BLOCK_TOKENS = 16
"""Tokens of one KV block, as vLLM's default."""

CHUNK_TOKENS = 8192
"""Tokens of one engine iteration, decoded and prefilled, as vLLM's ``max_num_batched_tokens``."""


@dataclass(frozen=True, slots=True)
class SimModel:
    """The engine of one model: CALIBRATION section 8.

    An iteration with ``b`` running sequences that hold ``K`` KV tokens takes ``a_s + c_s * b +
    d_s_per_1k * K / 1000`` seconds, and the prompt tokens that it reads over
    ``prefill_tokens_per_s`` on top. ``kv_tokens`` is the KV memory of one replica (``None``: never
    short), ``load_s`` how long a replica takes to come up, ``dispatch_s`` what passes between the
    grant of a slot and the engine. Replica ``i`` runs on ``gpus[i]``; busy engines on one GPU share
    its time equally (ASSUMED). Beyond the list every replica has a GPU of its own.
    """

    a_s: float
    c_s: float
    d_s_per_1k: float
    prefill_tokens_per_s: float
    kv_tokens: int | None = None
    load_s: float = 60.0
    dispatch_s: float = 0.0
    chunk_tokens: int = CHUNK_TOKENS
    gpus: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (self.a_s > 0 and self.prefill_tokens_per_s > 0 and self.chunk_tokens > 0):
            raise ValueError("a_s, prefill_tokens_per_s and chunk_tokens must be above zero")
        if min(self.c_s, self.d_s_per_1k, self.load_s, self.dispatch_s) < 0:
            raise ValueError("c_s, d_s_per_1k, load_s and dispatch_s must not be negative")

    def slower(self, factor: float) -> SimModel:
        """The same engine at ``1 / factor`` of the speed; memory and loading stay."""
        return replace(
            self,
            a_s=self.a_s * factor,
            c_s=self.c_s * factor,
            d_s_per_1k=self.d_s_per_1k * factor,
            prefill_tokens_per_s=self.prefill_tokens_per_s / factor,
        )

    def alone_s(self, prompt_tokens: int, output_tokens: int) -> float:
        """Seconds of a call in an empty engine, for at least one output token."""
        decoded = max(1, output_tokens) - 1
        read = decoded * prompt_tokens + decoded * (decoded - 1) // 2
        chunks = max(1, -(-prompt_tokens // self.chunk_tokens))
        fixed = (chunks + decoded) * (self.a_s + self.c_s)
        return fixed + self.d_s_per_1k * read / 1e3 + prompt_tokens / self.prefill_tokens_per_s


@dataclass(frozen=True, slots=True)
class SimApi:
    """A model behind a provider's API: everything is as seen from the client's side (ASSUMED).

    A call takes a time to the first token and a time per token, both lognormal and drawn once per
    call with the given means and coefficients of variation; whoever else calls makes no difference.
    The provider refuses what exceeds ``rpm_limit`` within its own sliding minute (``None``: never)
    and asks for silence until that has room. ``dispatch_s`` is the way there.
    """

    ttft_s: float
    tokens_per_s: float
    ttft_cv: float = 0.0
    rate_cv: float = 0.0
    rpm_limit: int | None = None
    dispatch_s: float = 0.0
    seed: int = 0

    load_s: ClassVar[float] = 0.0
    kv_tokens: ClassVar[int | None] = None
    gpus: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if not (self.ttft_s > 0 and self.tokens_per_s > 0):
            raise ValueError("ttft_s and tokens_per_s must be above zero")
        if min(self.ttft_cv, self.rate_cv, self.dispatch_s) < 0:
            raise ValueError("ttft_cv, rate_cv and dispatch_s must not be negative")

    def slower(self, factor: float) -> SimApi:
        """The same: the slowdown of a pool is that of its own GPUs."""
        return self

    def alone_s(self, prompt_tokens: int, output_tokens: int) -> float:
        """Mean seconds of a call."""
        return self.ttft_s + (max(1, output_tokens) - 1) / self.tokens_per_s


def sim_api(model: ModelConfig) -> SimApi:
    """The API that the config's ``speed`` and ``api`` describe, without any variation."""
    assert model.api is not None
    start_s = max(model.speed.start_s, model.speed.token_s)
    return SimApi(start_s, 1.0 / model.speed.token_s, rpm_limit=model.api.rpm_limit)


def sim_model(model: ModelConfig) -> SimModel:
    """The engine that the config's ``speed`` describes; its GPU is ``placement.gpu``."""
    speed, gpu = model.speed, model.placement.gpu
    return SimModel(
        a_s=speed.token_s,
        c_s=speed.token_s_per_seq,
        d_s_per_1k=speed.token_s_per_1k_kv,
        prefill_tokens_per_s=speed.prefill_tokens_per_s,
        kv_tokens=model.fake.kv_tokens if model.simulated else None,
        gpus=() if gpu is None else (f"gpu{gpu}",),
    )


def sim_pool(config: AppConfig, slowdown: float = 1.0) -> dict[str, SimModel | SimApi]:
    """An engine for every model of the config, all slowed by ``slowdown`` but those of APIs."""
    return {
        m.name: (sim_model(m) if m.api is None else sim_api(m)).slower(slowdown)
        for m in config.models
    }


@dataclass(frozen=True, slots=True)
class Death:
    """A replica dies at ``at_s`` and its calls are lost. It is started again ``back_after_s``
    later (``None``: never), and serves once it has loaded."""

    at_s: float
    model: str
    replica: int = 0
    back_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A replica takes ``factor`` times as long from ``at_s`` on; 1 ends it. ``inf`` freezes it:
    it gives no token any more, but still answers that it is there."""

    at_s: float
    model: str
    factor: float
    replica: int = 0


Fault = Death | Slowdown


def check_faults(faults: tuple[Fault, ...], config: AppConfig) -> None:
    """Raise ``ValueError`` for a fault of a replica that there is not."""
    replicas: Mapping[str, int] = {m.name: m.replicas for m in config.models}
    for fault in faults:
        if not 0 <= fault.replica < replicas.get(fault.model, 0):
            raise ValueError(f"there is no replica {fault.replica} of model {fault.model!r}")
        if isinstance(fault, Slowdown) and not fault.factor > 0:
            raise ValueError(f"factor must be above zero, not {fault.factor}")
