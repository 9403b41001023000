"""After each batch: the multipliers (eq. 7 to 9), validation, the learning rate, the best policy.

What must outlive the process is in the learner (its module's buffer and its ``progress``), not
here: RLlib does not save callbacks. ``on_train_result`` runs before Tune's checkpoint.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS

from rl import artefact
from rl.artefact import Artefact
from rl.config import TrainConfig, parse_config
from rl.env_runner import EXECUTOR, PLANNER
from rl.lagrange import BatchCost, Dual, update
from rl.nets import served
from rl.policy import LearnedPolicy
from rl.validation import Score, Validation
from rl.worlds import TrainingWorld

BEST = "best.safetensors"
REFERENCES = ("greedy", "cascade")

_log = logging.getLogger(__name__)


class TrainingCallback(RLlibCallback):
    """Adds ``multipliers``, ``progress``, ``shares`` and, after a validation, ``validation`` to the
    result."""

    def __init__(self) -> None:
        self._validation: Validation | None = None
        self._references: dict[str, Score] = {}

    def on_algorithm_init(self, *, algorithm: Any, **_: Any) -> None:
        """The first weights and multipliers reach every runner."""
        algorithm.env_runner_group.sync_weights(
            from_worker_or_learner_group=algorithm.learner_group, inference_only=True
        )

    def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **_: Any) -> None:
        config = parse_config(algorithm.config.env_config["train"], "env_config")
        sums = plain_sums(result)
        changed = _each_learner(algorithm, lambda learner: _after_batch(learner, config, sums))
        result["multipliers"] = {"time": changed["time"], "money": changed["money"]}
        if changed["skipped"]:
            _log.warning("batch skipped: no query finished, or a cost was no number")
        result["batch"] = means_of(sums)
        if changed["due"]:
            result["validation"] = self._validate(algorithm, config)
        result["progress"] = _each_learner(
            algorithm,
            lambda learner: {
                **learner.progress.as_json(),
                "epoch": learner.progress.epoch,
                "over": learner.progress.over(config.stop),
            },
        )
        result["over"] = result["progress"]["over"]

    def _validate(self, algorithm: Any, config: TrainConfig) -> dict[str, Any]:
        if self._validation is None:
            self._validation = Validation(TrainingWorld(config))
            self._references = {n: self._validation.by_name(n) for n in REFERENCES}
        found = artefact_of(algorithm, config)
        sample = config.validation.sample
        score = self._validation.score(lambda pool: LearnedPolicy.of(pool, found, sample=sample))
        best = _each_learner(algorithm, lambda learner: _after_validation(learner, config, score))
        if best and (out := algorithm.config.env_config.get("out")):
            trained = {"correct_on_time": score.correct_on_time, "config": config.plain()}
            about = Artefact(**{**_fields(found), "trained": {**found.trained, **trained}})
            artefact.save(about, Path(out) / BEST)
        references = {f"{n}_correct_on_time": s.correct_on_time
                      for n, s in self._references.items()}  # fmt: skip
        return {
            "correct_on_time": score.correct_on_time,
            "accuracy": score.accuracy,
            "slo": score.slo,
            "latency_s": score.latency_s,
            "is_best": best,
            **references,
        }


def _fields(found: Artefact) -> dict[str, Any]:
    return {name: getattr(found, name) for name in found.__slots__}


def plain_sums(result: dict[str, Any]) -> dict[str, float]:
    """The runners' sums of this batch as plain numbers, names joined by ``/``."""
    found: dict[str, float] = {}

    def walk(node: Any, name: str) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                walk(value, f"{name}/{key}" if name else str(key))
            return
        value = node.peek() if hasattr(node, "peek") else node
        found[name] = float(value)

    walk(result.get(ENV_RUNNER_RESULTS, {}).get("batch", {}), "")
    return found


def means_of(sums: dict[str, float]) -> dict[str, float]:
    """Per query, and shares of the calls; NaN where there is none."""
    queries, calls = sums.get("queries", 0.0), sums.get("calls", 0.0)
    means = {"queries": queries, "decisions": sums.get("decisions", 0.0)}
    seconds = sums.get("sample_s", 0.0)
    means["decisions_per_s"] = means["decisions"] / seconds if seconds else math.nan
    whole = ("solved", "on_time", "correct_on_time", "cost", "cost_raw", "latency_s", "agents")
    means |= {name: sums.get(name, 0.0) / queries if queries else math.nan for name in whole}
    means["calls"] = calls / queries if queries else math.nan
    for name, value in sums.items():
        kind = name.partition("/")[0]
        if kind in ("model", "depth"):
            means[name] = value / calls if calls else math.nan
        elif kind == "topology":
            means[name] = value / queries if queries else math.nan
    return means


def artefact_of(algorithm: Any, config: TrainConfig) -> Artefact:
    """The algorithm's planner and executor as they would be served."""

    def states(learner: Any) -> Any:
        return {
            name: {k: v.detach().cpu().numpy().copy()
                   for k, v in learner.module[name].unwrapped().state_dict().items()}
            for name in (PLANNER, EXECUTOR)
        }  # fmt: skip

    world = TrainingWorld(config)
    state = _each_learner(algorithm, states)
    epoch = _each_learner(algorithm, lambda learner: learner.progress.epoch)
    return Artefact(
        layout=world.layout,
        planner=served(state[PLANNER]),
        executor=served(state[EXECUTOR]),
        role_vectors=np.ascontiguousarray(world.roles, dtype=np.float32),
        film=config.network.film,
        question=config.network.question,
        trained={"name": config.name, "seed": config.seed, "epoch": epoch},
    )


def _each_learner(algorithm: Any, func: Any) -> Any:
    """``func`` on every learner; they agree, so the first one's answer."""
    found = [r.get() if hasattr(r, "get") and not isinstance(r, dict) else r
             for r in algorithm.learner_group.foreach_learner(func=func)]  # fmt: skip
    return found[0]


def _after_batch(learner: Any, config: TrainConfig, sums: dict[str, float]) -> dict[str, Any]:
    module = learner.module[EXECUTOR].unwrapped()
    dual = Dual(config.lagrange.rate, config.lagrange.maximum)
    cost = BatchCost(
        num_queries=sums.get("queries", 0.0),
        time=sums.get("cost", math.nan),
        num_priced=sums.get("priced", 0.0),
        money=sums.get("money", 0.0),
    )
    after, skipped = update(tuple(module.multipliers.tolist()), cost, dual)
    module.multipliers.copy_(module.multipliers.new_tensor(after))
    progress = learner.progress
    progress.skipped += skipped
    progress.after_batch(int(sums.get("queries", 0.0)))
    due = progress.validation_due(config.validation.every_epochs)
    return {"time": after[0], "money": after[1], "skipped": skipped, "due": due}


def _after_validation(learner: Any, config: TrainConfig, score: Score) -> bool:
    best: bool = learner.progress.after_validation(score.correct_on_time, config.stop)
    learner.apply_rates()
    return best
