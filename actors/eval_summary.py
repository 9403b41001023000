"""What the answers to a file of questions amount to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from actors.evaluation import Evaluated


@dataclass(frozen=True, slots=True)
class EvalSummary:
    """Shares in percent. ``accuracy`` is of those whose outcome is known (``n_asked`` less
    ``n_unknown``), with Wilson's 95 % interval; ``slo`` (whole and on time) and ``correct_on_time``
    are of all asked. Latencies, in seconds, are of the answers that came; ``nan`` where none did.
    """

    name: str
    n_asked: int
    n_unknown: int
    accuracy: float
    accuracy_lo: float
    accuracy_hi: float
    slo: float
    correct_on_time: float
    latency_mean_s: float
    latency_p50_s: float
    latency_p90_s: float


def summarise(rows: Sequence[Evaluated]) -> list[EvalSummary]:
    """One line per data set, and where there are several one for all."""
    names = list(dict.fromkeys(r.item.dataset for r in rows))
    lines = [_summary(name, [r for r in rows if r.item.dataset == name]) for name in names]
    return lines if len(lines) == 1 else [*lines, _summary("all", list(rows))]


def _summary(name: str, rows: Sequence[Evaluated]) -> EvalSummary:
    known = [r for r in rows if r.correct is not None]
    right = sum(r.correct is True for r in known)
    low, high = wilson(right, len(known))
    came = [r.latency_s for r in rows if r.status in ("ok", "late", "degraded")]
    p50_s, p90_s = np.quantile(came, [0.5, 0.9]) if came else (math.nan, math.nan)
    on_time = sum(r.on_time and r.correct is True for r in rows)
    return EvalSummary(
        name=name,
        n_asked=len(rows),
        n_unknown=len(rows) - len(known),
        accuracy=100 * right / len(known) if known else math.nan,
        accuracy_lo=100 * low,
        accuracy_hi=100 * high,
        slo=100 * sum(r.on_time for r in rows) / len(rows),
        correct_on_time=100 * on_time / len(rows),
        latency_mean_s=float(np.mean(came)) if came else math.nan,
        latency_p50_s=float(p50_s),
        latency_p90_s=float(p90_s),
    )


def wilson(right: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a share; of nothing it is everything."""
    if total == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share, spread = right / total, z * z / total
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / total + spread / (4 * total)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)
