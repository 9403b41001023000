"""What validation items tell policies of a data set: ``python -m benchmarks.validated``.

Every (model, depth) answers the validation split with one call, on an idle simulated pool, in
several worlds (luck, and difficulties that are not measured, drawn anew). From that come the
``quality`` of the pool's config on this data set, for every policy that reads it, and the single
best pair; from Mixture-of-Agents with each aggregator comes its aggregator. Shares are shrunk
towards the config's own by ``PSEUDO_ITEMS`` items: HumanEval has 10 to validate on. Writes the
sections ``prior``, ``single_best``, ``moa`` and ``gptswarm`` of ``chosen.json`` and prints one line
of JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contenders import choose
from benchmarks.points import POOL
from benchmarks.worlds import DATASETS, World
from rl.baselines.rollout import IdlePool, query_about, read_pool
from rl.baselines.select import best_aggregator, worlds
from runtime.config import AppConfig
from runtime.policies.single import SingleBest, Validated, choose_best
from runtime.sim.outcomes import OutcomeModel, SimItem
from runtime.types import STRATEGIES

COMMAND = "python -m benchmarks.validated"
PSEUDO_ITEMS = 20

Rows = dict[str, list[float]]  # by model: Flash, Concise, DeepThink


@dataclass(frozen=True, slots=True)
class Pair:
    """One call of a model at a depth on the validation items."""

    found: Validated
    tokens: float


def measure(
    config: AppConfig, outcomes: Sequence[OutcomeModel], items: Sequence[SimItem], budget_s: float
) -> list[Pair]:
    """Every pair, models in the config's order, depths from Flash to DeepThink."""
    return [
        _pair(config, outcomes, items, budget_s, model.name, strategy)
        for model in config.models
        for strategy in STRATEGIES
    ]


def _pair(
    config: AppConfig,
    outcomes: Sequence[OutcomeModel],
    items: Sequence[SimItem],
    budget_s: float,
    model: str,
    strategy: Any,
) -> Pair:
    best = {items[0].task: {"model": model, "strategy": strategy}}
    policy = SingleBest.from_config(config, {"best": best})
    plays = [
        pool.play(query_about(item, f"v{number}", budget_s), item)
        for pool in (IdlePool(config, outcome, policy) for outcome in outcomes)
        for number, item in enumerate(items)
    ]
    right = sum(p.solved and p.latency_s <= budget_s for p in plays) / len(plays)
    work_s = sum(sum(p.work_s.values()) for p in plays) / len(plays)
    tokens = sum(p.answer.usage.completion_tokens for p in plays) / len(plays)
    return Pair(Validated(model, strategy, right, work_s), tokens)


def prior(config: AppConfig, items: Sequence[SimItem], pairs: Sequence[Pair]) -> dict[str, Rows]:
    """The ``quality.prior`` and ``quality.tokens`` of the items' task, as lists by model."""
    task, weight = items[0].task, len(items) / (len(items) + PSEUDO_ITEMS)
    found: dict[str, Rows] = {"prior": {}, "tokens": {}}
    for pair in pairs:
        model, strategy = pair.found.model, pair.found.strategy
        known = config.quality.expected(task, model, strategy)
        long = config.quality.expected_tokens(task, model, strategy, 2048)
        share = weight * pair.found.correct_on_time + (1 - weight) * known
        tokens = weight * pair.tokens + (1 - weight) * long
        found["prior"].setdefault(model, []).append(round(share, 3))
        found["tokens"].setdefault(model, []).append(round(tokens))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calibration", type=Path, help="a folder with a full items.csv")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds")
    parser.add_argument("--worlds", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    config, calibration = read_pool(POOL), World(args.calibration).calibration()
    sections: dict[str, dict[str, Any]] = {
        "prior": {}, "single_best": {}, "moa": {}, "gptswarm": {}
    }  # fmt: skip
    for dataset in DATASETS:
        items = calibration.select(dataset, "val")
        outcomes = worlds(calibration, args.worlds, args.seed)
        chosen = _choices(config, outcomes, items, args.budget, dataset)
        for name, value in chosen.items():
            sections[name][dataset] = value
        print(f"{dataset}: {json.dumps(chosen)}", flush=True)
    for name, value in sections.items():
        choose(name, value, COMMAND)
    print(json.dumps({"benchmark": "validated", "simulated": True, **sections}))


def _choices(
    config: AppConfig,
    outcomes: Sequence[OutcomeModel],
    items: Sequence[SimItem],
    budget_s: float,
    dataset: str,
) -> Mapping[str, Any]:
    pairs = measure(config, outcomes, items, budget_s)
    best = choose_best([pair.found for pair in pairs])
    aggregator = best_aggregator(config, outcomes, items, budget_s)
    single = {items[0].task: {"model": best.model, "strategy": best.strategy}}
    return {
        "prior": prior(config, items, pairs),
        "single_best": {"best": single},
        "moa": {"aggregator": aggregator.model},
        "gptswarm": {"dataset": dataset},
    }


if __name__ == "__main__":
    main()
