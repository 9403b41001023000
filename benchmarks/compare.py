"""Our cells beside the paper's, one by one: ``python -m benchmarks.compare``.

Reads ``table2.csv`` and ``table4.csv`` in the folder of results. Where the paper has InfraMind, a
learned policy, ``greedy`` stands. Writes ``compare.md`` and ``compare.csv`` and prints one line of
JSON with how many cells are near the paper's.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks import paper
from benchmarks.report import Common, Report, common, table
from benchmarks.rows import Row, read_rows

NEAR_ACCURACY = 5.0
NEAR_SLO = 20.0
NEAR_LATENCY = 2.0
OURS = {"inframind": "greedy"}


@dataclass(frozen=True, slots=True)
class Pair:
    """A cell of the paper and ours at one operating point."""

    where: tuple[str, float, str]  # data set or pool, rate, the paper's policy
    theirs: paper.Figures
    ours: Row

    @property
    def accuracy(self) -> float:
        """Points."""
        return self.ours.accuracy - self.theirs.accuracy

    @property
    def latency(self) -> float:
        """Ratio of means."""
        return self.ours.latency_mean_s / self.theirs.latency_s

    @property
    def slo(self) -> float:
        """Points."""
        return self.ours.slo - self.theirs.slo

    @property
    def near(self) -> tuple[bool, bool, bool]:
        """Whether accuracy, latency and SLO are."""
        quick = abs(math.log(self.latency)) <= math.log(NEAR_LATENCY)
        return abs(self.accuracy) <= NEAR_ACCURACY, quick, abs(self.slo) <= NEAR_SLO


def main() -> None:
    args = common(argparse.ArgumentParser(description=__doc__)).parse_args()
    options = Common.of(args)
    report = Report("compare", options)
    two, four = options.out / "table2.csv", options.out / "table4.csv"
    pairs = {
        point: matched_pairs(paper.TABLE2, [r for r in rows if r.operating_point == point])
        for rows in [read_rows(two)]
        for point in ("calibrated", "matched")
    }
    pairs["table 4"] = table4_pairs(read_rows(four)) if four.exists() else []
    _write(report, pairs)
    report.finish({name: counts(found) for name, found in pairs.items() if found})


def matched_pairs(
    theirs: Mapping[tuple[str, float, str], paper.Figures], rows: Sequence[Row]
) -> list[Pair]:
    """Pairs in the paper's order; cells that we have not run are left out."""
    ours = {(r.dataset, r.rate_rpm, r.policy): r for r in rows}
    return [
        Pair((where, rate, policy), figures, ours[where, rate, OURS.get(policy, policy)])
        for (where, rate, policy), figures in theirs.items()
        if (where, rate, OURS.get(policy, policy)) in ours
    ]


def table4_pairs(rows: Sequence[Row]) -> list[Pair]:
    """The pool stands where Table 2 has the data set."""
    ours = {(r.operating_point, r.rate_rpm, r.policy): r for r in rows}
    return [
        Pair((pool, rate, policy), figures, ours[pool, rate, OURS.get(policy, policy)])
        for (pool, rate, policy), figures in paper.TABLE4.items()
        if (pool, rate, OURS.get(policy, policy)) in ours
    ]


def counts(pairs: Sequence[Pair]) -> dict[str, int]:
    """How many cells there are, and how many of them are near in each figure."""
    accuracy, latency, slo = np.array([p.near for p in pairs]).sum(axis=0).tolist()
    return {"cells": len(pairs), "accuracy": accuracy, "latency": latency, "slo": slo}


def _write(report: Report, pairs: Mapping[str, Sequence[Pair]]) -> None:
    head = ["table", "where", "rate_rpm", "policy", "ours", "accuracy", "paper_accuracy",
            "latency_s", "paper_latency_s", "slo", "paper_slo"]  # fmt: skip
    report.write(head, (_row(name, p) for name, found in pairs.items() for p in found))
    report.add(
        "Cells of the paper that have one of ours beside them. In bold what is not near: accuracy "
        f"off by more than {NEAR_ACCURACY:g} points, mean latency by more than a factor of "
        f"{NEAR_LATENCY:g}, SLO by more than {NEAR_SLO:g} points. InfraMind's cells stand beside "
        "`greedy`'s. `benchmarks/README.md` names likely reasons."
    )
    summary = [
        [name, policy, *map(str, counts(rows).values())]
        for name, found in pairs.items()
        for policy in dict.fromkeys(p.where[2] for p in found)
        for rows in [[p for p in found if p.where[2] == policy]]
    ]
    report.add(table(["table", "the paper's", "cells", "accuracy", "latency", "SLO"], summary))
    for name, found in pairs.items():
        if found:
            report.add(f"## {name}")
            report.add(table(_HEAD, [_line(p) for p in found]))


def _row(name: str, p: Pair) -> list[object]:
    ours, theirs = p.ours, p.theirs
    figures = [ours.accuracy, theirs.accuracy, ours.latency_mean_s, theirs.latency_s]
    return [name, *p.where, ours.policy, *figures, ours.slo, theirs.slo]


_HEAD = ["data set or pool", "req/min", "policy", "accuracy %", "paper", "off by", "mean s",
         "paper", "ratio", "SLO %", "paper", "off by"]  # fmt: skip


def _line(p: Pair) -> list[str]:
    where, rate, policy = p.where
    name = paper.NAMES[policy] if policy not in OURS else f"{paper.NAMES[policy]} / {OURS[policy]}"
    accuracy, latency, slo = (
        text if near else f"**{text}**"
        for text, near in zip(
            (f"{p.accuracy:+.1f}", f"{p.latency:.2f}", f"{p.slo:+.1f}"), p.near, strict=True
        )
    )
    return [
        *(where, f"{rate:g}", name),
        *(f"{p.ours.accuracy:.1f}", f"{p.theirs.accuracy:g}", accuracy),
        *(f"{p.ours.latency_mean_s:.0f}", f"{p.theirs.latency_s:g}", latency),
        *(f"{p.ours.slo:.1f}", f"{p.theirs.slo:g}", slo),
    ]


if __name__ == "__main__":
    main()
