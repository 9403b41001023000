"""Lagrange multipliers of the budget (paper equations 7 to 9). Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dual:
    """How a multiplier moves: ``lambda <- clip(lambda + rate * (cost - 1), 0, maximum)``."""

    rate: float
    maximum: float

    def step(self, multiplier: float, cost: float) -> float:
        """The multiplier after a batch of mean cost over budget ``cost`` (1 is the whole budget).

        Raises:
            ValueError: ``cost`` or ``multiplier`` is not finite; such a batch must be skipped.
        """
        if not (math.isfinite(cost) and math.isfinite(multiplier)):
            raise ValueError(f"cost {cost} and multiplier {multiplier} must be finite")
        return min(max(multiplier + self.rate * (cost - 1.0), 0.0), self.maximum)


@dataclass(frozen=True, slots=True)
class BatchCost:
    """Sums over the finished queries of a batch; costs are shares of the budget. ``money`` is over
    the ``num_priced`` queries that have a budget of money."""

    num_queries: float
    time: float
    num_priced: float = 0.0
    money: float = 0.0

    def mean_time(self) -> float | None:
        """C of equation 8; ``None`` where no query finished or a cost is not a number."""
        return _mean(self.time, self.num_queries)

    def mean_money(self) -> float | None:
        """C of equation 9; ``None`` where no query has a budget of money: then lambda stays."""
        return _mean(self.money, self.num_priced)


def update(
    multipliers: tuple[float, float], batch: BatchCost, dual: Dual
) -> tuple[tuple[float, float], bool]:
    """Multipliers of (time, money) after a batch, and whether the batch had to be skipped."""
    time, money = batch.mean_time(), batch.mean_money()
    broken = math.isnan(batch.money) or math.isinf(batch.money)
    if time is None or broken:
        return multipliers, True
    after = dual.step(multipliers[0], time)
    return (after, multipliers[1] if money is None else dual.step(multipliers[1], money)), False


def _mean(total: float, count: float) -> float | None:
    return total / count if count > 0 and math.isfinite(total) else None
