"""Train the learned baselines on the simulator and write what ``runtime.policies`` serves.

``python -m rl.baselines.train gptswarm --out FOLDER``: a minute.
``python -m rl.baselines.train masrouter --out FOLDER --embeddings FILE.npz``: some minutes. The
file is written by ``python -m benchmarks.embed``.

Both read the pool of ``--config`` and the shipped calibration (or ``--calibration FOLDER``), train
on the train splits of the five data sets, and draw luck and unmeasured difficulties anew as they
go. The last line printed is one line of JSON.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from rl.baselines.gptswarm import SwarmTraining, train_edges
from rl.baselines.items import MODELS, MODES, TASKS
from rl.baselines.masrouter import (
    ItemVectors,
    MasRouterModule,
    RouterTraining,
    tensors_to_serve,
    train_router,
)
from rl.baselines.rollout import GivenPlans, read_pool
from rl.baselines.worlds import RouterReward, SwarmUtility, World
from runtime.config import AppConfig
from runtime.errors import ConfigError
from runtime.policies import gptswarm, masrouter_net
from runtime.policies.committed import CallOptions
from runtime.roles import roles_for
from runtime.sim.items import TASKS as TASK_OF_DATASET
from runtime.sim.items import Calibration, load_folder, shipped
from runtime.sim.outcomes import SimItem
from runtime.sim.quality import QualityModel
from runtime.types import TaskKind

DATASETS = tuple(TASK_OF_DATASET)


def make_world(config: AppConfig, calibration: Calibration, seed: int) -> World:
    quality = QualityModel(calibration, seed)
    return World(config, GivenPlans(config, CallOptions()), quality, seed)


# --- GPTSwarm --------------------------------------------------------------------------------


def train_swarm(
    config: AppConfig, calibration: Calibration, settings: SwarmTraining, out: Path
) -> dict[str, Any]:
    """One graph per data set; writes ``gptswarm.json``."""
    models = tuple(m.name for m in config.models)
    edges: dict[str, list[float]] = {}
    report: dict[str, Any] = {}
    for dataset in DATASETS:
        items = calibration.select(dataset, "train")
        world = make_world(config, calibration, settings.seed)
        utility = SwarmUtility(world, items, models, settings)
        learned = train_edges(len(models), len(items), utility, settings)
        edges[dataset] = [round(p, 4) for p in learned.probabilities]
        swarm = gptswarm.freeze(models, edges[dataset])
        last = learned.utilities[-20:]
        report[dataset] = {
            "agents": len(swarm.models),
            "edges": len(swarm.graph.edges),
            "voters": [swarm.models[i] for i in swarm.graph.final],
            "utility_last_20": round(sum(last) / len(last), 3),
        }
    artefact = {"format": gptswarm.FORMAT, "models": models, "edges": edges}
    (out / gptswarm.SHIPPED.name).write_text(json.dumps(artefact, indent=1) + "\n")
    return report


# --- MasRouter -------------------------------------------------------------------------------


class Vectors:
    """Embeddings by key, from a file of ``benchmarks.embed``."""

    def __init__(self, path: Path) -> None:
        with np.load(path, allow_pickle=False) as file:
            self._rows = dict(zip(file["keys"].tolist(), file["vectors"], strict=True))

    def __getitem__(self, key: str) -> torch.Tensor:
        if key not in self._rows:
            raise ConfigError(f"no embedding of {key!r}; run `python -m benchmarks.embed` again")
        return torch.from_numpy(self._rows[key].astype(np.float32))

    def stack(self, keys: list[str]) -> torch.Tensor:
        return torch.stack([self[key] for key in keys])


def all_roles() -> list[tuple[str, str]]:
    return [(task.value, role.name) for task in TaskKind for role in roles_for(task)]


def item_vectors(vectors: Vectors, models: list[str]) -> ItemVectors:
    tasks = [task.value for task in TASKS]
    roles = all_roles()
    numbers = [tasks.index(task) if task in tasks else -1 for task, _ in roles]
    return ItemVectors(
        tasks=vectors.stack([f"task:{task}" for task in tasks]),
        modes=vectors.stack([f"mode:{mode}" for mode in MODES]),
        roles=vectors.stack([f"role:{task}/{name}" for task, name in roles]),
        models=vectors.stack([f"model:{name}" for name in models]),
        role_tasks=torch.tensor(numbers),
    )


def train_masrouter(
    config: AppConfig,
    calibration: Calibration,
    vectors: Vectors,
    settings: RouterTraining,
    cost_weight: float,
    out: Path,
) -> dict[str, Any]:
    """One cascade over all data sets; writes ``masrouter.safetensors`` and ``masrouter.json``."""
    torch.manual_seed(settings.seed)
    items = [item for name in DATASETS for item in calibration.select(name, "train")]
    tasks, models = list(TASKS), list(MODELS)
    if {m.name for m in config.models} != set(models):
        raise ConfigError(f"rl.baselines.items describes the models {models}, not this pool's")
    module = MasRouterModule(item_vectors(vectors, models))
    world = make_world(config, calibration, settings.seed)
    reward = RouterReward(world, items, list(MODES), all_roles(), models, cost_weight)
    queries = vectors.stack([item.item_id for item in items])
    labels = torch.tensor([tasks.index(item.task) for item in items])
    utilities = train_router(module, queries, labels, reward, settings)
    about = {
        "format": masrouter_net.FORMAT,
        "embedding": "minilm",
        "tasks": tasks,
        "modes": list(MODES),
        "roles": all_roles(),
        "models": models,
        "cost_weight": cost_weight,
        "epochs": settings.epochs,
    }
    path = out / "masrouter.safetensors"
    save_file(tensors_to_serve(module), path)
    path.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n")
    return {"utility": [round(u, 3) for u in utilities],
            **shares(masrouter_net.load(path), calibration, vectors)}  # fmt: skip


def shares(
    net: masrouter_net.CascadeNet, calibration: Calibration, vectors: Vectors, draws: int = 400
) -> dict[str, Any]:
    """How the trained cascade spreads over models and modes on the validation questions."""
    rng = Random(0)
    items = [item for name in DATASETS for item in calibration.select(name, "val")]
    by_model: Counter[str] = Counter()
    by_mode: Counter[str] = Counter()
    agents, right = 0, 0
    for _ in range(draws):
        item: SimItem = rng.choice(items)
        query = vectors[item.item_id].numpy()
        roles = [i for i, (task, _) in enumerate(net.roles) if task == item.task.value]
        chosen = net.sample(query, modes=range(len(net.modes)), roles=roles, most=6, rng=rng)
        by_model.update(net.models[i] for i in chosen.models)
        by_mode[net.modes[chosen.mode]] += 1
        agents += len(chosen.models)
        right += net.tasks[int(net.task_probabilities(query).argmax())] == item.task.value
    return {
        "model_share": {name: round(n / agents, 3) for name, n in by_model.most_common()},
        "mode_share": {name: round(n / draws, 3) for name, n in by_mode.most_common()},
        "agents_mean": round(agents / draws, 2),
        "task_accuracy": round(right / draws, 3),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("gptswarm", "masrouter"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=Path("serve_configs/b200.yaml"))
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--embeddings", type=Path)
    parser.add_argument("--epochs", type=int, default=RouterTraining().epochs)
    parser.add_argument("--iterations", type=int, default=SwarmTraining().iterations)
    parser.add_argument("--cost-weight", type=float, default=100.0, help="per dollar of a query")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.what == "masrouter" and args.embeddings is None:
        parser.error("masrouter needs --embeddings")
    return args


def main() -> None:
    args = _arguments()
    torch.set_num_threads(1)  # the tensors are small: more threads only wait for each other
    config = read_pool(args.config)
    calibration = load_folder(args.calibration) if args.calibration else shipped()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.what == "gptswarm":
        swarm = SwarmTraining(iterations=args.iterations, seed=args.seed)
        report = train_swarm(config, calibration, swarm, args.out)
    else:
        router = RouterTraining(epochs=args.epochs, seed=args.seed)
        report = train_masrouter(
            config, calibration, Vectors(args.embeddings), router, args.cost_weight, args.out
        )
    print(json.dumps({"trained": args.what, **report}))


if __name__ == "__main__":
    main()
