"""Operating points of the paper's pool: how fast its engines are and how they are set up.

``calibrated``: as measured in public (``runtime.sim.speeds``). ``matched``: every engine slower by
the one factor that fits the paper's baselines best (``benchmarks.matched``). ``tuned``: what an
engineer would do first: the best ``max_num_seqs`` per model and a prefix cache
(``benchmarks.tuned``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from benchmarks.contenders import Contender, chosen
from rl.baselines.rollout import read_pool
from runtime.config import AppConfig, ModelConfig, QualityConfig
from runtime.errors import ConfigError
from runtime.sim.items import TASKS
from runtime.sim.pool import SimApi, SimModel
from runtime.sim.speeds import calibrated_pool

POOL = Path(__file__).parent.parent / "serve_configs" / "b200.yaml"
PREFIX_HIT = 0.5
"""Assumed: the share of prompt tokens that a prefix cache has; decoding dominates either way."""

_NO_BOUND = 1_000_000
_CAPPED = ("moa", "gptswarm", "masrouter", "self_consistency")  # they cap every call themselves


@dataclass(frozen=True, slots=True)
class Point:
    """``max_num_seqs`` holds for all models, ``per_model`` for those that it names; ``cap`` is
    the most tokens of a call. Without ``shared_gpus`` every model has a GPU of its own."""

    name: str
    slowdown: float = 1.0
    max_num_seqs: int | None = None
    per_model: tuple[tuple[str, int], ...] = ()
    prefix_hit: float = 0.0
    cap: int | None = None
    shared_gpus: bool = True
    pool: Path = POOL

    def config(self, contender: Contender, dataset: str, hard: bool) -> AppConfig:
        """The pool with the contender's policy and order, and as ``quality`` what validation found
        on the data set; nothing is refused for its backlog."""
        base = _base(self.pool)
        options = contender.options_for(dataset)
        if self.cap is not None and contender.policy in _CAPPED:
            options["max_tokens"] = self.cap
        policy = base.policy.model_copy(update={"name": contender.policy, "options": options})
        limits = {"max_queries_in_flight": _NO_BOUND, "max_backlog_per_model": _NO_BOUND}
        return base.model_copy(
            update={
                "models": tuple(self._model(m) for m in base.models),
                "policy": policy,
                "order": contender.order,
                "at_deadline": "finish" if hard else "run_on",
                "limits": base.limits.model_copy(update=limits),
                "quality": _quality(base, dataset),
                "strategies": base.strategies.model_copy(update=self._caps()),
            }
        )

    def engines(self, config: AppConfig, seed: int = 0) -> dict[str, SimModel | SimApi]:
        """The engine of every model of ``config``; ``seed`` is that of what API calls take."""
        pool = calibrated_pool(config, seed=seed)
        return {n: self._engine(e) if isinstance(e, SimModel) else e for n, e in pool.items()}

    def _caps(self) -> dict[str, int]:
        if self.cap is None:
            return {}
        return dict.fromkeys(("flash_tokens", "concise_tokens", "deepthink_tokens"), self.cap)

    def _model(self, model: ModelConfig) -> ModelConfig:
        if model.api is not None:  # a provider's speed is not ours to change
            return model.model_copy(
                update={"max_output_tokens": self.cap or model.max_output_tokens}
            )
        seqs = dict(self.per_model).get(model.name, self.max_num_seqs or model.max_num_seqs)
        speed = model.speed.model_copy(
            update={
                "token_s": model.speed.token_s * self.slowdown,
                "token_s_per_seq": model.speed.token_s_per_seq * self.slowdown,
                "prefill_tokens_per_s": model.speed.prefill_tokens_per_s / self.slowdown,
            }
        )
        most = self.cap or model.max_output_tokens
        return model.model_copy(
            update={"max_num_seqs": seqs, "speed": speed, "max_output_tokens": most}
        )

    def _engine(self, engine: SimModel) -> SimModel:
        slower = engine.slower(self.slowdown)
        return replace(
            slower,
            prefill_tokens_per_s=slower.prefill_tokens_per_s / (1.0 - self.prefix_hit),
            gpus=slower.gpus if self.shared_gpus else (),
        )


CALIBRATED = Point("calibrated")


def matched() -> Point:
    """Raises ``ConfigError`` where no factor has been fitted."""
    return Point("matched", slowdown=float(chosen("matched")["slowdown"]))


def tuned() -> Point:
    """Raises ``ConfigError`` where nothing has been tuned."""
    seqs = chosen("tuned")["max_num_seqs"]
    return Point("tuned", per_model=tuple(seqs.items()), prefix_hit=PREFIX_HIT)


def point(name: str) -> Point:
    """The operating point called ``name``; raises ``ConfigError``."""
    known = {"calibrated": lambda: CALIBRATED, "matched": matched, "tuned": tuned}
    if name not in known:
        raise ConfigError(f"unknown operating point {name!r}; there are {', '.join(known)}")
    return known[name]()


def _quality(base: AppConfig, dataset: str) -> QualityConfig:
    """What ``benchmarks.validated`` found in place of the config's figures for the whole task."""
    found, task = chosen("prior").get(dataset), TASKS.get(dataset)
    if found is None or task is None:
        return base.quality
    prior = {**base.quality.prior, task: {m: tuple(row) for m, row in found["prior"].items()}}
    tokens = {**base.quality.tokens, task: {m: tuple(row) for m, row in found["tokens"].items()}}
    return base.quality.model_copy(update={"prior": prior, "tokens": tokens})


@lru_cache(maxsize=4)
def _base(path: Path) -> AppConfig:
    return read_pool(path)
