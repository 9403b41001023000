"""What the baselines without training take from validation: the single best (model, depth), and the
aggregator of Mixture-of-Agents. ``python -m rl.baselines.select --dataset math``.

Every candidate answers the validation items on an idle, simulated pool, in several worlds (luck and
unmeasured difficulties drawn anew). The last line printed is one line of JSON with the options of
both policies.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

from rl.baselines.rollout import IdlePool, query_about, read_pool
from runtime.config import AppConfig
from runtime.policies.ensembles import MixtureOfAgents
from runtime.policies.single import SingleBest, Validated, choose_best
from runtime.policy import Policy
from runtime.sim.items import Calibration, load_folder, shipped
from runtime.sim.outcomes import OutcomeModel, SimItem
from runtime.sim.quality import QualityModel
from runtime.types import STRATEGIES, Strategy


def worlds(calibration: Calibration, count: int, seed: int) -> list[QualityModel]:
    rng, first = Random(seed), QualityModel(calibration, seed)
    return [first.redraw(rng) for _ in range(count)]


def validate(
    config: AppConfig,
    policy: Policy,
    outcomes: Sequence[OutcomeModel],
    items: Sequence[SimItem],
    budget_s: float,
) -> tuple[float, float]:
    """Share of queries that are correct and on time on an idle pool, and engine seconds each."""
    right, work_s, played = 0, 0.0, 0
    for outcome in outcomes:
        pool = IdlePool(config, outcome, policy)
        for item in items:
            done = pool.play(query_about(item, f"v{played}", budget_s), item)
            right += done.solved and done.latency_s <= budget_s
            work_s += sum(done.work_s.values())
            played += 1
    return right / played, work_s / played


def single_best(
    config: AppConfig, outcomes: Sequence[OutcomeModel], items: Sequence[SimItem], budget_s: float
) -> Validated:
    """The best model and depth for items of one task."""
    results = []
    for model in (m.name for m in config.models):
        for strategy in STRATEGIES:
            best = {items[0].task: {"model": model, "strategy": strategy}}
            policy = SingleBest.from_config(config, {"best": best})
            share, cost = validate(config, policy, outcomes, items, budget_s)
            results.append(Validated(model, strategy, share, cost))
    return choose_best(results)


def best_aggregator(
    config: AppConfig, outcomes: Sequence[OutcomeModel], items: Sequence[SimItem], budget_s: float
) -> Validated:
    """The model that synthesises best, at the depth that Mixture-of-Agents has by default."""
    results = []
    for model in (m.name for m in config.models):
        policy = MixtureOfAgents.from_config(config, {"aggregator": model})
        share, cost = validate(config, policy, outcomes, items, budget_s)
        results.append(Validated(model, Strategy.CONCISE, share, cost))
    return choose_best(results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--config", type=Path, default=Path("serve_configs/b200.yaml"))
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--budget", type=float, default=300.0, help="seconds")
    parser.add_argument("--worlds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    config = read_pool(args.config)
    calibration = load_folder(args.calibration) if args.calibration else shipped()
    items = calibration.select(args.dataset, "val")
    outcomes = worlds(calibration, args.worlds, args.seed)
    pair = single_best(config, outcomes, items, args.budget)
    aggregator = best_aggregator(config, outcomes, items, args.budget)
    best = {items[0].task: {"model": pair.model, "strategy": pair.strategy}}
    print(json.dumps({
        "dataset": args.dataset,
        "single_best": {"best": best}, "single_best_share": round(pair.correct_on_time, 3),
        "moa": {"aggregator": aggregator.model},
        "moa_share": round(aggregator.correct_on_time, 3),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
