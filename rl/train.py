"""Training: iterations until it is over, each one saved, so that a killed run can go on.

``python -m rl.train CONFIG --out FOLDER`` is the job for ``ray job submit``; people use
``inframind train``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.rllib.algorithms.ppo import PPO

from rl.algorithm import algorithm_config
from rl.callback import BEST
from rl.config import TrainConfig, read_config
from rl.run_log import RunLog, row_of
from rl.worlds import TrainingWorld
from runtime.errors import ConfigError

_CHECKPOINTS = "checkpoints"
_KEPT = 2

OnResult = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Trained:
    """How a training ended. ``best`` is the artefact of the best validation, in percent."""

    out: Path
    iterations: int
    epochs: float
    best_score: float | None
    best: Path


def train(
    config: TrainConfig,
    out: Path,
    *,
    resume: bool = False,
    max_iterations: int | None = None,
    on_result: OnResult | None = None,
) -> Trained:
    """Train to the end, or for ``max_iterations`` of this call, in the folder ``out``.

    With ``resume`` the last iteration that was saved whole is where it goes on, at most one behind
    where it was killed; queries in flight then are lost, and sweeps begin anew.

    Raises:
        ConfigError: ``out`` holds a run and ``resume`` is off, or it is of another config.
    """
    _claim(config, out, resume)
    start_ray(config)
    algorithm = algorithm_config(config, TrainingWorld(config), out).build_algo()
    try:
        if (latest := latest_checkpoint(out)) is not None:
            algorithm.restore_from_path(str(latest))
        return _iterate(algorithm, out, max_iterations, on_result)
    finally:
        algorithm.stop()


def _iterate(
    algorithm: PPO, out: Path, max_iterations: int | None, on_result: OnResult | None
) -> Trained:
    done = 0
    with RunLog(out) as log:
        while True:
            result = algorithm.train()
            done += 1
            save_checkpoint(algorithm, out, int(result["training_iteration"]))
            log.add(row_of(result))
            if on_result is not None:
                on_result(result)
            if result["over"] or (max_iterations is not None and done >= max_iterations):
                break
    progress = result["progress"]
    return Trained(
        out, int(result["training_iteration"]), progress["epoch"], progress["best"], out / BEST
    )


def tune(config: TrainConfig, out: Path, *, resume: bool = False) -> Any:
    """The same as a Tune job in the folder ``out``; returns Tune's results. A killed one goes on
    with ``resume``."""
    from ray import tune as ray_tune
    from ray.tune import CheckpointConfig, RunConfig, Tuner

    start_ray(config)
    folder = out.resolve() / config.name
    if resume and Tuner.can_restore(folder):
        tuner = Tuner.restore(str(folder), PPO, resume_unfinished=True, resume_errored=True)
    else:
        tuner = Tuner(
            PPO,
            param_space=algorithm_config(config, out=out),
            tune_config=ray_tune.TuneConfig(metric="progress/best", mode="max"),
            run_config=RunConfig(
                name=config.name,
                storage_path=str(out.resolve()),
                stop={"over": 1},
                checkpoint_config=CheckpointConfig(
                    num_to_keep=_KEPT, checkpoint_frequency=1, checkpoint_at_end=True
                ),
            ),
        )
    return tuner.fit()


def start_ray(config: TrainConfig) -> None:
    """A Ray for this process, or the cluster it was submitted to."""
    if ray.is_initialized():
        return
    if os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=False)
        return
    ray.init(num_cpus=1 + config.env_runners, include_dashboard=False, log_to_driver=False)


# --- the folder ----------------------------------------------------------------------------------


def _claim(config: TrainConfig, out: Path, resume: bool) -> None:
    path = out / "config.json"
    told = json.dumps(config.plain(), indent=1) + "\n"
    if path.exists():
        if not resume:
            raise ConfigError(f"{out} holds a run already; resume it, or choose another folder")
        if path.read_text(encoding="utf-8") != told:
            raise ConfigError(f"{out} holds a run of another config; its own is in {path}")
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(told, encoding="utf-8")


def save_checkpoint(algorithm: PPO, out: Path, iteration: int) -> Path:
    """Save whole or not at all; the last two are kept."""
    folder = (out / _CHECKPOINTS).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    fresh, path = folder / "fresh", folder / f"{iteration:06d}"
    shutil.rmtree(fresh, ignore_errors=True)
    algorithm.save_to_path(str(fresh))
    shutil.rmtree(path, ignore_errors=True)
    fresh.rename(path)
    for old in _saved(out)[:-_KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return path


def latest_checkpoint(out: Path) -> Path | None:
    """The last one that is whole."""
    return next(reversed(_saved(out)), None)


def _saved(out: Path) -> list[Path]:
    return sorted(p.resolve() for p in (out / _CHECKPOINTS).glob("[0-9]*"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--tune", action="store_true", help="as a Tune job")
    parser.add_argument("--max-iterations", type=int)
    args = parser.parse_args()
    config = read_config(args.config)
    if args.tune:
        best = tune(config, args.out, resume=args.resume).get_best_result()
        print(json.dumps({"best_correct_on_time": best.metrics["progress"]["best"]}))
        return
    trained = train(
        config, args.out, resume=args.resume, max_iterations=args.max_iterations,
        on_result=_print_validation,
    )  # fmt: skip
    print(json.dumps({"best_correct_on_time": trained.best_score, "best": str(trained.best)}))


def _print_validation(result: dict[str, Any]) -> None:
    if found := result.get("validation"):
        epoch, batch = result["progress"]["epoch"], result["batch"]
        print(f"epoch {epoch:.1f}", json.dumps({"lambda": result["multipliers"]["time"],
              "solved": batch["solved"], **found}), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
