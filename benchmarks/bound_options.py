"""The options of ``benchmarks.bounds``, measured on the simulator: every plan on every item, alone.

``python -m benchmarks.bound_options --dataset math --rate 100`` prints the three bounds of a pool.
Figures are simulated, and rest on the shipped calibration or that of ``--calibration``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from actors.local_pool import read_serve_file
from benchmarks.bounds import Array, Bounds, Options, Pool, bounds
from rl.baselines.rollout import GivenPlans, IdlePool, query_about
from runtime.config import AppConfig, ModelConfig, SpeedConfig
from runtime.policies.committed import CallOptions, plain_roles
from runtime.policies.gptswarm import SHIPPED, freeze, read_artefact, swarm_plan
from runtime.sim.items import load_folder, shipped
from runtime.sim.outcomes import OutcomeModel, SimItem
from runtime.sim.pool import SimModel
from runtime.sim.quality import QualityModel
from runtime.sim.speeds import calibrated_pool
from runtime.topology import MOA, VOTE, topologies_for
from runtime.types import AgentGraph, Plan, Strategy, TaskKind, Topology

_FULL_TOKENS = 2048
_CALLS = (
    (Strategy.FLASH, None),
    (Strategy.CONCISE, None),
    (Strategy.CONCISE, _FULL_TOKENS),
    (Strategy.DEEPTHINK, _FULL_TOKENS),
)
"""Depths with their caps: the strategies' own, and the 2,048 tokens of the load-blind baselines."""


@dataclass(frozen=True, slots=True)
class PlanOption:
    """A plan with fixed models, and how its calls are made."""

    topology: str
    models: tuple[str, ...]
    strategy: Strategy
    max_tokens: int | None
    graph: AgentGraph | None = None

    @property
    def name(self) -> str:
        cap = "" if self.max_tokens is None else f"@{self.max_tokens}"
        return f"{self.topology}/{'+'.join(self.models)}/{self.strategy}{cap}"

    def plan(self, task: TaskKind) -> Plan:
        roles = plain_roles(task, len(self.models))
        return Plan(self.topology, roles, task, self.models, self.graph)


def all_options(config: AppConfig, dataset: str, task: TaskKind) -> list[PlanOption]:
    """What a policy may do with a query, at fixed models.

    Every model alone, reviewing itself, and (for the first two of the config) sampled five times;
    the first three models and all of them in every topology that combines answers; GPTSwarm's graph
    of the data set. Other mixtures of models and roles, as MasRouter samples them, are not there.
    """
    names = tuple(m.name for m in config.models)
    most = config.limits.max_agents
    groups: list[tuple[str, tuple[str, ...]]] = [
        (topology, (name,)) for topology in (Topology.IO, Topology.REFLECTION) for name in names
    ]
    several = [t for t in (VOTE, Topology.IO, Topology.CHAIN, Topology.FULL_CONNECTED,
                           Topology.DEBATE, MOA) if t in topologies_for(task)]  # fmt: skip
    groups += [(t, group) for t in several for group in dict.fromkeys((names[:3], names[:most]))]
    groups += [(several[0], (name,) * min(5, most)) for name in names[:2]]
    found = [PlanOption(t, group, *call) for t, group in groups for call in _CALLS]
    edges = read_artefact(SHIPPED)
    if dataset in edges["edges"] and set(edges["models"]) == set(names):
        plan = swarm_plan(freeze(tuple(edges["models"]), edges["edges"][dataset]), task)
        found.append(
            PlanOption(plan.topology, plan.models, Strategy.CONCISE, _FULL_TOKENS, plan.graph)
        )
    return found


def at_speed(config: AppConfig, engines: Mapping[str, SimModel]) -> AppConfig:
    """``config`` with the speeds of ``engines``, less the time that KV reads add: a lower bound."""
    return config.model_copy(
        update={"models": tuple(_at_speed(m, engines[m.name]) for m in config.models)}
    )


def _at_speed(model: ModelConfig, engine: SimModel) -> ModelConfig:
    speed = SpeedConfig(
        prefill_tokens_per_s=engine.prefill_tokens_per_s,
        token_s=engine.a_s,
        token_s_per_seq=engine.c_s,
    )
    return model.model_copy(update={"speed": speed})


def measure(
    config: AppConfig,
    outcomes: OutcomeModel,
    items: Sequence[SimItem],
    options: Sequence[PlanOption],
    *,
    samples: int,
    budget_s: float,
) -> Options:
    """Play every option on every item ``samples`` times on an idle pool.

    ``chance`` and ``work_s`` are means over the samples; the first of them is what was drawn.
    """
    shape = (samples, len(items), len(options))
    right = np.zeros(shape)
    share = sharing(config)
    work = np.zeros((*shape, share.shape[1]))
    for o, option in enumerate(options):
        call = CallOptions(strategy=option.strategy, max_tokens=option.max_tokens)
        pool = IdlePool(config, outcomes, GivenPlans(config, call))
        for i, item in enumerate(items):
            for s in range(samples):
                played = pool.play(query_about(item, f"s{s}", budget_s), item,
                                   option.plan(item.task))  # fmt: skip
                right[s, i, o] = played.solved and played.latency_s <= budget_s
                work[s, i, o] = [played.work_s.get(m.name, 0.0) for m in config.models] @ share
    return Options(
        chance=right.mean(axis=0),
        drawn=right[0],
        work_s=work.mean(axis=0),
        drawn_work_s=work[0],
        features=[item.dataset for item in items],
    )


def sharing(config: AppConfig) -> Array:
    """[models, resources]: which resource each model's work falls on. Models on one GPU share it,
    as the simulator has it; others have engines of their own."""
    names = list(resources(config))
    rows = [[float(_resource(model) == name) for name in names] for model in config.models]
    return np.array(rows)


def resources(config: AppConfig) -> dict[str, float]:
    """Seconds of work per second by resource: one per GPU, else one per replica of the model."""
    found: dict[str, float] = {}
    for model in config.models:
        alone = model.placement.gpu is None
        found[_resource(model)] = float(model.replicas) if alone else 1.0
    return found


def _resource(model: ModelConfig) -> str:
    gpu = model.placement.gpu
    return model.name if gpu is None else f"gpu{gpu}"


def _report(found: Bounds, options: Sequence[PlanOption]) -> dict[str, object]:
    own = found.own.shares.sum(axis=0)
    most = [(options[o].name, round(float(own[o]), 3)) for o in np.argsort(-own)[:6] if own[o] > 0]
    return {
        "own": round(100 * found.own.value, 1),
        "item": round(100 * found.item.value, 1),
        "outcome": round(100 * found.outcome.value, 1),
        "own_takes": most,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="math")
    parser.add_argument("--rate", type=float, default=100.0, help="queries per minute")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds")
    parser.add_argument("--queries", type=int, default=500, help="length of the run; 0: endless")
    parser.add_argument("--items", type=int, default=200)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--slowdown", type=float, default=1.0)
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--config", type=Path, default=Path("serve_configs/b200.yaml"))
    args = parser.parse_args()
    config = read_serve_file(args.config).config
    config = at_speed(config, calibrated_pool(config, slowdown=args.slowdown))
    calibration = load_folder(args.calibration) if args.calibration else shipped()
    items = calibration.select(args.dataset)[: args.items]
    options = all_options(config, args.dataset, items[0].task)
    measured = measure(config, QualityModel(calibration, 0), items, options,
                       samples=args.samples, budget_s=args.budget)  # fmt: skip
    rate_per_s = args.rate / 60
    horizon_s = args.queries / rate_per_s if args.queries else None
    capacity = np.array(list(resources(config).values()))
    found = bounds(measured, Pool(rate_per_s, capacity, horizon_s), args.budget)
    print(json.dumps({"benchmark": "bounds", "simulated": True, "dataset": args.dataset,
                      "rate_rpm": args.rate, "slowdown": args.slowdown,
                      **_report(found, options)}))  # fmt: skip


if __name__ == "__main__":
    main()
