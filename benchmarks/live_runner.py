"""The cells of Table 2 on a running pool: open loop over HTTP, real graders.

Policies are asked for by name with the pool's own options for them, so what validation chose for
the simulated ones does not hold here. Orders are the pool's, too: contenders that differ in the
order alone are left out.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.cells import SLO_S
from benchmarks.contenders import Contender
from benchmarks.inputs import items_to_test
from benchmarks.open_loop import Offer, Row, graded, offer_all
from benchmarks.report import Common
from benchmarks.rows import Row as TableRow
from benchmarks.rows import interval, write_rows
from runtime.datasets import Item
from runtime.sim.workload import poisson


def offers(items: Sequence[Item], rate_rpm: float, queries: int, seed: int) -> list[Offer]:
    """``queries`` of the items in turns, at Poisson times."""
    times_s = poisson(rate_rpm, seed)
    return [Offer(next(times_s), items[i % len(items)], SLO_S) for i in range(queries)]


def row_of(dataset: str, rate_rpm: float, policy: str, rows: Sequence[Row], seed: int) -> TableRow:
    """What came back, as a row of Table 2; the pool's GPU time is not known from outside."""
    right = np.array([r.correct for r in rows], dtype=float)
    on_time = np.array([r.on_time for r in rows], dtype=float)
    came = [r.latency_s for r in rows if r.status in ("ok", "late", "degraded")]
    low, high = interval(right, [r.offer.item.id for r in rows])

    def quantile(share: float) -> float:
        return float(np.quantile(came, share)) if came else math.nan

    return TableRow(
        pool="live",
        operating_point="live",
        dataset=dataset,
        rate_rpm=rate_rpm,
        policy=policy,
        n_offered=len(rows),
        accuracy=100 * float(right.mean()),
        accuracy_lo=100 * low,
        accuracy_hi=100 * high,
        latency_mean_s=float(np.mean(came)) if came else math.nan,
        latency_p50_s=quantile(0.5),
        latency_p90_s=quantile(0.9),
        slo=100 * float(on_time.mean()),
        correct_on_time=100 * float((right * on_time).mean()),
        cost_gpu_s=math.nan,
        calls_per_query=sum(len(r.steps) for r in rows) / len(rows),
        seed=seed,
    )


def live_cells(
    url: str,
    data: Path | None,
    datasets: Iterable[str],
    rates_rpm: Sequence[float],
    contenders: Sequence[Contender],
    queries: int,
    options: Common,
) -> list[TableRow]:
    """Run the cells one after another; writes ``table2_live.csv`` and prints a line of JSON."""
    started_s = time.monotonic()
    policies = [c.name for c in contenders if c.name == c.policy]
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[TableRow] = []
    for dataset in datasets:
        (items,) = items_to_test(data, [dataset])
        for rate in rates_rpm:
            for policy in policies:
                asked = offers(items, rate, queries, options.seed)
                body = {"policy": policy, "deadline": "soft"}
                found = graded(asyncio.run(offer_all(url, asked, body)))
                rows.append(row_of(dataset, rate, policy, found, options.seed))
                write_rows(options.out / "table2_live.csv", rows)
                print(f"{dataset} {rate:g}/min {policy}: {rows[-1].correct_on_time:.1f} %")
    wall_s = round(time.monotonic() - started_s, 1)
    print(
        json.dumps(
            {
                "benchmark": "table2",
                "simulated": False,
                "cells": len(rows),
                "queries": queries,
                "seed": options.seed,
                "wall_s": wall_s,
            }
        )
    )
    return rows
