"""The linear programs of ``benchmarks.bounds`` on cases that are solved by hand."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("scipy")
from benchmarks.bounds import Options, Pool, any_of, bounds, solve

STRONG, WEAK = 0, 1


def pool(rate: float, *capacity: float, horizon_s: float | None = None) -> Pool:
    return Pool(rate, np.array(capacity), horizon_s)


def two_models(items: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """A strong model (0.9 right, 2 s of engine 0) and a weak one (0.5, 1 s of engine 1)."""
    value = np.tile([0.9, 0.5], (items, 1))
    work = np.tile([[2.0, 0.0], [0.0, 1.0]], (items, 1, 1))
    return value, work


def test_an_idle_pool_gives_everybody_the_best() -> None:
    value, work = two_models()
    best = solve(value, work, np.ones(1), pool(0.1, 1, 1), 10.0)
    assert best.value == pytest.approx(0.9)
    assert best.shares[0] == pytest.approx([1.0, 0.0])
    assert best.prices == pytest.approx([0.0, 0.0])


def test_a_full_strong_engine_sends_the_rest_to_the_weak_one() -> None:
    """One query a second: half of them fill the strong engine."""
    value, work = two_models()
    best = solve(value, work, np.ones(1), pool(1.0, 1, 1), 10.0)
    assert best.value == pytest.approx(0.5 * 0.9 + 0.5 * 0.5)
    assert best.prices[STRONG] == pytest.approx((0.9 - 0.5) / 2)
    assert best.prices[WEAK] == pytest.approx(0.0)


def test_beyond_both_engines_queries_are_left_out() -> None:
    """Four a second: 1/8 on the strong engine, 1/4 on the weak one."""
    value, work = two_models()
    best = solve(value, work, np.ones(1), pool(4.0, 1, 1), 10.0)
    assert best.value == pytest.approx(0.9 / 8 + 0.5 / 4)
    assert best.shares.sum() == pytest.approx(3 / 8)


def test_a_short_run_may_finish_its_last_queries_after_the_last_arrival() -> None:
    value, work = two_models()
    best = solve(value, work, np.ones(1), pool(1.0, 1, 0, horizon_s=40.0), 20.0)
    assert best.value == pytest.approx(0.9 * 0.5 * 1.5)


def test_engines_may_share_a_further_resource() -> None:
    """Both engines on one GPU that does one second of work a second, for one query a second."""
    value, work = two_models()
    shared = np.concatenate([work, work.sum(axis=2, keepdims=True)], axis=2)
    best = solve(value, shared, np.ones(1), pool(1.0, 9, 9, 1), 10.0)
    assert best.value == pytest.approx(0.5)


def options(chance: list[list[float]], drawn: list[list[float]], *features: str) -> Options:
    _, work = two_models(len(chance))
    return Options(np.array(chance), np.array(drawn), work, work, features)


HALF_EACH = options([[0.9, 0.5], [0.9, 0.9]], [[1, 0], [0, 1]], "x", "x")


def test_knowing_the_items_spares_the_strong_engine_for_those_who_need_it() -> None:
    """At one a second the strong engine serves half: blindly any half, or the right one."""
    found = bounds(HALF_EACH, pool(1.0, 1, 1), 10.0)
    assert found.own.value == pytest.approx(0.5 * 0.9 + 0.5 * 0.7)
    assert found.item.value == pytest.approx(0.9)
    assert found.outcome.value == pytest.approx(1.0)


def test_knowing_the_outcomes_may_still_not_be_enough_capacity() -> None:
    found = bounds(HALF_EACH, pool(4.0, 1, 1), 10.0)
    assert found.outcome.value == pytest.approx(1 / 8 + 1 / 4)


def test_features_that_tell_the_items_apart_are_worth_the_item_bound() -> None:
    told = options([[0.9, 0.5], [0.9, 0.9]], [[1, 0], [0, 1]], "x", "y")
    found = bounds(told, pool(1.0, 1, 1), 10.0)
    assert found.own.value == pytest.approx(found.item.value)


@pytest.mark.parametrize("seed", range(4))
def test_more_information_and_more_capacity_never_hurt(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chance = rng.uniform(size=(40, 3))
    work = rng.uniform(0.1, 2.0, size=(40, 3, 2))
    features = [str(i % 4) for i in range(40)]
    many = Options(chance, (rng.uniform(size=(40, 3)) < chance) * 1.0, work, work, features)
    small, large = (bounds(many, pool(1.0, size, size), 10.0) for size in (0.2, 0.4))
    for found in (small, large):
        assert found.own.value <= found.item.value + 1e-9
    assert small.own.value <= large.own.value + 1e-9
    assert small.item.value < large.item.value
    assert small.outcome.value < large.outcome.value


@pytest.mark.parametrize("seed", range(4))
def test_no_simple_policy_beats_the_bound(seed: int) -> None:
    """First come, first served, each item to its best option while there is capacity for it."""
    rng = np.random.default_rng(seed)
    chance, work = rng.uniform(size=(200, 3)), rng.uniform(0.5, 2.0, size=(200, 3, 1))
    left, value = 200 * 0.7, 0.0
    for i in range(200):
        best = int(chance[i].argmax())
        if work[i, best, 0] <= left:
            left -= work[i, best, 0]
            value += chance[i, best] / 200
    even = np.full(200, 1 / 200)
    assert value <= solve(chance, work, even, pool(1.0, 0.7), 1.0).value + 1e-9


def test_any_of_several_draws() -> None:
    draws = np.array([[[0.0, 1.0]], [[1.0, 0.0]], [[0.0, 0.0]]])
    assert any_of(draws).tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"value": np.array([[1.2, 0.5]])}, "probabilities"),
        ({"work_s": np.ones((1, 2, 3))}, "work_s"),
        ({"work_s": np.full((1, 2, 2), np.inf)}, "finite"),
        ({"weight": np.array([0.5])}, "weight"),
        ({"pool": pool(0.0, 1, 1)}, "rate_per_s"),
    ],
)
def test_bad_arrays_are_refused(change: dict[str, object], told: str) -> None:
    value, work = two_models()
    good = {"value": value, "work_s": work, "weight": np.ones(1), "pool": pool(1.0, 1, 1)}
    with pytest.raises(ValueError, match=told):
        solve(**{**good, **change}, budget_s=1.0)
