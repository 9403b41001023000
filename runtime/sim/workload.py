"""Who asks what and when. Open loop: arrivals never wait for answers.

Times, items and budgets are drawn from streams of their own, each seeded by ``seed``, so another
policy, another rate or other budgets leave the rest as it was.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

from runtime.sim.outcomes import Outcome, Seen, SimItem
from runtime.types import Call, Step, TaskKind

TIERS_S = (10.0, 30.0, 50.0, 100.0, 200.0, 300.0)
"""The paper's budgets (section 5.1)."""

Order = Literal["in_order", "shuffled", "replaced"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One query. With ``leaves_after_s`` its client goes away if it has no answer by then;
    ``budget_usd`` is its budget of money, by default the config's."""

    at_s: float
    item: SimItem
    budget_s: float
    leaves_after_s: float | None = None
    budget_usd: float | None = None


def poisson(rate_per_min: float, seed: int) -> Iterator[float]:
    """Arrival times of a Poisson process, without end; raises ``ValueError`` for a bad rate."""
    return bursts(rate_per_min, rate_per_min, period_s=math.inf, burst_s=math.inf, seed=seed)


def bursts(
    rate_per_min: float, burst_per_min: float, *, period_s: float, burst_s: float, seed: int
) -> Iterator[float]:
    """A Poisson process whose rate is ``burst_per_min`` in the last ``burst_s`` of every period.

    Raises:
        ValueError: a rate that is not above zero, or a burst longer than its period.
    """
    rates = (rate_per_min, burst_per_min)
    if not all(0 < rate < math.inf for rate in rates) or not 0 <= burst_s <= period_s:
        raise ValueError("rates must be above zero, and a burst no longer than its period")
    return _modulated(rate_per_min / 60, burst_per_min / 60, period_s, burst_s, _stream(seed, "at"))


def _modulated(
    calm: float, burst: float, period_s: float, burst_s: float, rng: Random
) -> Iterator[float]:
    """Thinning (Lewis and Shedler 1979): draw at the higher rate, keep the share that is due."""
    highest = max(calm, burst)
    now = 0.0
    while True:
        now += rng.expovariate(highest)
        if calm == burst:
            yield now
            continue
        bursting = now % period_s >= period_s - burst_s
        if rng.random() * highest < (burst if bursting else calm):
            yield now


def draw_items(items: Sequence[SimItem], order: Order, seed: int) -> Iterator[SimItem]:
    """Items without end: in their order, or in a new order each time through (``shuffled``: each
    once before any again), or each drawn from all (``replaced``)."""
    if not items:
        raise ValueError("there are no items")
    rng = _stream(seed, "items")
    while True:
        match order:
            case "in_order":
                yield from items
            case "shuffled":
                yield from rng.sample(items, len(items))
            case "replaced":
                yield rng.choice(items)


def draw_budgets(budgets_s: Sequence[float], seed: int) -> Iterator[float]:
    """Budgets without end, each drawn from ``budgets_s`` with equal chances."""
    if not budgets_s or not all(0 < b < math.inf for b in budgets_s):
        raise ValueError("budgets must be above zero and finite")
    rng = _stream(seed, "budgets")
    while True:
        yield budgets_s[0] if len(budgets_s) == 1 else rng.choice(budgets_s)


def offer(
    times_s: Iterable[float],
    items: Iterable[SimItem],
    budgets_s: Iterable[float],
    num_queries: int | None = None,
) -> Iterator[Arrival]:
    """The first ``num_queries`` arrivals; ``None``: as many as the shortest of the three has."""
    rows = zip(times_s, items, budgets_s, strict=False)
    return itertools.starmap(Arrival, itertools.islice(rows, num_queries))


def poisson_workload(
    items: Sequence[SimItem],
    *,
    rate_per_min: float,
    num_queries: int,
    budgets_s: Sequence[float] = TIERS_S,
    order: Order = "shuffled",
    seed: int = 0,
) -> list[Arrival]:
    """What the paper's tables offer: Poisson arrivals, items once each, budgets from the tiers."""
    times_s = poisson(rate_per_min, seed)
    return list(
        offer(times_s, draw_items(items, order, seed), draw_budgets(budgets_s, seed), num_queries)
    )


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace."""

    arrival_s: float
    input_tokens: int
    output_tokens: int


def read_trace(path: Path) -> list[TraceRow]:
    """The rows of a CSV file with the columns ``arrival_s,input_tokens,output_tokens``.

    Raises:
        ValueError: names file, line and column of a value that cannot be.
    """
    rows: list[TraceRow] = []
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        wanted = [f for f in TraceRow.__slots__ if f not in (reader.fieldnames or ())]
        if wanted:
            raise ValueError(f"{path}: line 1: no column {', '.join(wanted)}")
        last_s = 0.0
        for line in reader:
            where = f"{path}: line {reader.line_num}"
            last_s = _number(where, line, "arrival_s", last_s)
            tokens = (int(_number(where, line, f, 1)) for f in ("input_tokens", "output_tokens"))
            rows.append(TraceRow(last_s, *tokens))
    return rows


def _number(where: str, line: dict[str, str], column: str, least: float) -> float:
    try:
        value = float(line[column])
    except (TypeError, ValueError):
        raise ValueError(f"{where}: {column} is {line[column]!r}, not a number") from None
    if not least <= value < math.inf:
        raise ValueError(f"{where}: {column} is {line[column]}; it must be at least {least:g}")
    return value


def trace_workload(
    rows: Sequence[TraceRow], *, budgets_s: Sequence[float] = TIERS_S, seed: int = 0
) -> tuple[list[Arrival], TraceOutcomes]:
    """A trace as queries of kind ``general``, and the outcomes that give its output lengths.

    What was asked is not in a trace, so nothing in it is right or wrong.
    """
    items = [
        SimItem(f"trace-{i}", "trace", TaskKind.GENERAL, row.input_tokens)
        for i, row in enumerate(rows)
    ]
    outcomes = TraceOutcomes({i.item_id: r.output_tokens for i, r in zip(items, rows, strict=True)})
    times_s = [row.arrival_s for row in rows]
    return list(offer(times_s, items, draw_budgets(budgets_s, seed))), outcomes


@dataclass(frozen=True, slots=True)
class TraceOutcomes:
    """Every call of an item writes what the trace's request wrote; nothing is solved."""

    tokens: dict[str, int]

    def draw(self, item: SimItem, call: Call, step: Step, seen: Sequence[Seen]) -> Outcome:
        return Outcome("", self.tokens[item.item_id])

    def solved(self, item: SimItem, text: str) -> bool:
        return False


def _stream(seed: int, what: str) -> Random:
    return Random(f"{seed}:{what}")
