"""Multipliers: equations 7 to 9, bounds, and batches that must not count."""

import math

import pytest

from rl.lagrange import BatchCost, Dual, update

DUAL = Dual(rate=0.1, maximum=1.0)


@pytest.mark.parametrize(
    ("multiplier", "cost", "after"),
    [(0.2, 1.0, 0.2), (0.2, 2.0, 0.3), (0.2, 0.0, 0.1), (0.05, 0.0, 0.0), (0.95, 3.0, 1.0)],
)
def test_a_multiplier_follows_the_cost_within_its_bounds(multiplier, cost, after):
    assert DUAL.step(multiplier, cost) == pytest.approx(after)


def test_the_batch_mean_counts_not_the_sum():
    after, skipped = update((0.2, 0.0), BatchCost(num_queries=4, time=8.0), DUAL)
    assert not skipped
    assert after == (pytest.approx(0.3), 0.0)


@pytest.mark.parametrize(
    "batch",
    [
        BatchCost(0, 0.0),
        BatchCost(4, math.nan),
        BatchCost(4, math.inf),
        BatchCost(4, 1.0, num_priced=2, money=math.nan),
    ],
)
def test_an_empty_or_broken_batch_is_skipped(batch):
    assert update((0.2, 0.1), batch, DUAL) == ((0.2, 0.1), True)


def test_money_has_a_multiplier_of_its_own():
    after, _ = update((0.2, 0.1), BatchCost(4, 4.0, num_priced=2, money=4.0), DUAL)
    assert after == (pytest.approx(0.2), pytest.approx(0.2))


def test_a_cost_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="finite"):
        DUAL.step(0.2, math.nan)
