"""Sums over the finished queries of a batch: what the multiplier, the table and the log need."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rl.rollout import Record
from rl.spaces import NUM_STRATEGIES, Layout
from runtime.types import STRATEGIES

Sums = dict[tuple[str, ...], float]
_RAW_CLIP = 3.0


def batch_sums(records: Iterable[Record], layout: Layout, clip: float = _RAW_CLIP) -> Sums:
    """Sums by name; ``model``, ``depth`` and ``topology`` count by name.

    A cost that is no number makes its sum NaN, so that the whole batch is skipped.
    """
    names = ("queries", "solved", "on_time", "correct_on_time", "cost", "cost_raw", "priced",
             "money", "latency_s", "calls", "agents")  # fmt: skip
    sums: Sums = dict.fromkeys([(name,) for name in names], 0.0)
    sums |= {("model", name): 0.0 for name in layout.models}
    sums |= {("depth", depth.value): 0.0 for depth in STRATEGIES}
    sums |= {("topology", name): 0.0 for name in layout.topologies}
    sums |= {("stop",): 0.0}
    for record in records:
        _add(sums, record, layout, clip)
    return sums


def _add(sums: Sums, record: Record, layout: Layout, clip: float) -> None:
    outcome = record.outcome
    share, money = record.latency_share, record.money_share
    sums["queries",] += 1
    sums["solved",] += outcome.solved
    sums["on_time",] += record.on_time
    sums["correct_on_time",] += outcome.solved and record.on_time
    sums["cost",] += share if math.isnan(share) else min(share, clip)
    sums["cost_raw",] += share
    sums["latency_s",] += outcome.answer.latency_s
    sums["agents",] += len(outcome.answer.roles)
    if not math.isnan(money):
        sums["priced",] += 1
        sums["money",] += min(money, clip)
    if outcome.answer.topology in layout.topologies:
        sums["topology", outcome.answer.topology] += 1
    for choice in record.steps:
        model, depth = divmod(int(choice.action), NUM_STRATEGIES)
        if model == len(layout.models):
            sums["stop",] += 1
            continue
        sums["calls",] += 1
        sums["model", layout.models[model]] += 1
        sums["depth", STRATEGIES[depth].value] += 1
