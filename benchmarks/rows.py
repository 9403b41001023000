"""Rows of Table 2: the figures of a cell with bootstrap intervals, to CSV and back."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.cells import Cell
from runtime.sim.results import Results

RESAMPLES = 2000
LEVEL = 0.95

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Row:
    """The columns of ``table2.csv``: percent of all queries offered, and seconds."""

    pool: str
    operating_point: str
    dataset: str
    rate_rpm: float
    policy: str
    n_offered: int
    accuracy: float
    accuracy_lo: float
    accuracy_hi: float
    latency_mean_s: float
    latency_p50_s: float
    latency_p90_s: float
    slo: float
    correct_on_time: float
    cost_gpu_s: float
    calls_per_query: float
    seed: int


@dataclass(frozen=True, slots=True)
class Played:
    """A cell's row and what became of each query, in order of arrival: its item, whether it was
    right, and whether it was on time."""

    row: Row
    items: tuple[str, ...]
    solved: Values
    on_time: Values

    @property
    def correct_on_time(self) -> Values:
        return self.solved * self.on_time


def played(cell: Cell, results: Results) -> Played:
    """Measure a cell."""
    order = np.argsort(results.queries["query"])
    items = tuple(results.queries.named("item")[order].tolist())
    solved = results.queries["solved"][order].astype(float)
    on_time = results.on_time()[order].astype(float)
    summary = results.summary()
    low, high = interval(solved, items)
    row = Row(
        pool="simulated",
        operating_point=cell.point.name,
        dataset=cell.dataset,
        rate_rpm=cell.rate_rpm,
        policy=cell.contender.name,
        n_offered=summary.n_offered,
        accuracy=summary.accuracy,
        accuracy_lo=100 * low,
        accuracy_hi=100 * high,
        latency_mean_s=summary.latency_mean_s,
        latency_p50_s=summary.latency_p50_s,
        latency_p90_s=summary.latency_p90_s,
        slo=summary.slo,
        correct_on_time=summary.correct_on_time,
        cost_gpu_s=summary.cost_gpu_s,
        calls_per_query=summary.calls_per_query,
        seed=cell.seed,
    )
    return Played(row, items, solved, on_time)


def interval(values: Values, items: Sequence[str], seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap of the mean, 95 %, over items: answers to one item resemble each other.

    Of differences between two policies on the same queries, it is a paired interval.
    """
    _, number = np.unique(np.asarray(items), return_inverse=True)
    sums, counts = np.bincount(number, values), np.bincount(number)
    rng = np.random.default_rng(seed)
    chances = np.full(len(sums), 1.0 / len(sums))
    weights = rng.multinomial(len(sums), chances, size=RESAMPLES)
    means = (weights @ sums) / (weights @ counts)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """CSV with the columns of ``Row``; figures to four digits after the point."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(Row)])
        writer.writeheader()
        for row in rows:
            writer.writerow({k: _short(v) for k, v in asdict(row).items()})


def _short(value: object) -> object:
    if not isinstance(value, float):
        return value
    return "" if math.isnan(value) else round(value, 4)


def read_rows(path: Path) -> list[Row]:
    """What ``write_rows`` wrote; an empty figure is ``nan``."""
    kinds = {f.name: f.type for f in fields(Row)}
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Row(**{k: _parse(kinds[k], v) for k, v in line.items()})
            for line in csv.DictReader(file)
        ]


def _parse(kind: object, text: str) -> object:
    if kind == "int":
        return int(text)
    if kind == "float":
        return float(text) if text else math.nan
    return text
