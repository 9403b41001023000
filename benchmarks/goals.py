"""What Table 2 was to show, beside what it does show, figure by figure.

Load-blind baselines of the paper collapse at 100 req/min and hold at 10; ``greedy`` keeps its SLO
at 100 and is more often right than what also keeps it. Nothing is tuned to reach a goal: where one
is missed, the table says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.contenders import PAPERS
from benchmarks.report import table
from benchmarks.rows import Row

COLLAPSE_SLO = {"moa": 20.0, "gptswarm": 20.0, "masrouter": 50.0}
"""Below what the paper's baselines fall at 100 req/min, on at least ``COLLAPSE_SETS`` data sets."""

COLLAPSE_SETS = 4
HELD_SLO = 95.0
GREEDY_SLO = 99.0
RIVALS = (*PAPERS, "least_loaded", "single_best")
RIVAL_SLO = 90.0
LOW_RPM, HIGH_RPM = 10.0, 100.0


@dataclass(frozen=True, slots=True)
class Goal:
    """``figures`` by data set, in percent or points; ``None`` where it does not apply."""

    said: str
    point: str
    reached: bool
    figures: dict[str, float | None]


def goals(rows: Sequence[Row]) -> list[Goal]:
    """All that ``rows`` can tell, in the order of the points in it."""
    found: list[Goal] = []
    for point in dict.fromkeys(r.operating_point for r in rows):
        here = [r for r in rows if r.operating_point == point]
        if point == "matched":
            found += _collapses(here, point)
        if point != "tuned":
            found += _greedy(here, point)
    return found


def _collapses(rows: Sequence[Row], point: str) -> list[Goal]:
    found = []
    for policy, most in COLLAPSE_SLO.items():
        if high := _slo(rows, policy, HIGH_RPM):
            said = f"{policy} under {most:g} % SLO at {HIGH_RPM:g}/min"
            reached = sum(slo < most for slo in high.values()) >= COLLAPSE_SETS
            found.append(Goal(said, point, reached, {**high}))
        if low := _slo(rows, policy, LOW_RPM):
            said = f"{policy} at least {HELD_SLO:g} % SLO at {LOW_RPM:g}/min"
            found.append(Goal(said, point, min(low.values()) >= HELD_SLO, {**low}))
    return found


def _greedy(rows: Sequence[Row], point: str) -> list[Goal]:
    slo, right = _slo(rows, "greedy", HIGH_RPM), _accuracy(rows, "greedy", HIGH_RPM)
    if not slo:
        return []
    said = f"greedy at least {GREEDY_SLO:g} % SLO at {HIGH_RPM:g}/min"
    found = [Goal(said, point, min(slo.values()) >= GREEDY_SLO, {**slo})]
    for rival in RIVALS:
        theirs, kept = _accuracy(rows, rival, HIGH_RPM), _slo(rows, rival, HIGH_RPM)
        gains = {
            d: right[d] - theirs[d] if kept[d] >= RIVAL_SLO else None for d in right if d in theirs
        }
        counted = [gain for gain in gains.values() if gain is not None]
        said = f"greedy's accuracy over {rival}'s at {HIGH_RPM:g}/min, in points"
        found.append(Goal(said, point, not counted or float(np.mean(counted)) > 0, gains))
    return found


def _by_dataset(
    rows: Sequence[Row], policy: str, rate: float, figure: Callable[[Row], float]
) -> dict[str, float]:
    return {r.dataset: figure(r) for r in rows if (r.policy, r.rate_rpm) == (policy, rate)}


def _slo(rows: Sequence[Row], policy: str, rate: float) -> dict[str, float]:
    return _by_dataset(rows, policy, rate, lambda r: r.slo)


def _accuracy(rows: Sequence[Row], policy: str, rate: float) -> dict[str, float]:
    return _by_dataset(rows, policy, rate, lambda r: r.accuracy)


def section(found: Sequence[Goal]) -> str:
    """A Markdown table; accuracy counts where the rival keeps its SLO."""
    datasets = list(dict.fromkeys(d for goal in found for d in goal.figures))
    lines = [
        [
            goal.point,
            goal.said,
            *(_figure(goal.figures.get(d)) for d in datasets),
            _figure(_mean(goal)),
            "yes" if goal.reached else "**no**",
        ]
        for goal in found
    ]
    return table(["point", "goal", *datasets, "mean", "reached"], lines)


def as_json(found: Sequence[Goal]) -> dict[str, object]:
    """How many are reached, and which are not."""
    missed = {f"{g.point}: {g.said}": _rounded(_mean(g)) for g in found if not g.reached}
    return {"goals": len(found), "reached": len(found) - len(missed), "missed": missed}


def _mean(goal: Goal) -> float | None:
    figures = [f for f in goal.figures.values() if f is not None]
    return float(np.mean(figures)) if figures else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
