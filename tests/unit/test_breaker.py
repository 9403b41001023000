"""``Breaker``: when it opens, what passes, and what it does not count."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.breaker import Breaker, BreakerState
from runtime.config import AppConfig, BreakerConfig
from runtime.events import CallDone, CallDropped, CallFailed, FailureKind
from runtime.load import LocalLoad
from runtime.types import CallResult

DONE = CallDone("c", CallResult("42", "stop", 1, 1, 0.0, 0.1))


def failed(kind: FailureKind = FailureKind.MODEL) -> CallFailed:
    return CallFailed("c", kind, "it broke")


class Driver:
    """One call after another, a second each."""

    def __init__(self, **config: Any) -> None:
        self.breaker = Breaker(BreakerConfig(**config))
        self.now = 0.0
        self._number = 0

    def call(self, event: Any) -> None:
        assert self.breaker.passes(self.now)
        self._number += 1
        self.breaker.began(str(self._number), self.now)
        self.now += 1.0
        self.breaker.ended(str(self._number), self.now - 1.0, event, self.now)

    def fail(self, times: int, kind: FailureKind = FailureKind.MODEL) -> None:
        for _ in range(times):
            self.call(failed(kind))

    @property
    def state(self) -> BreakerState:
        return self.breaker.state(self.now)


@pytest.mark.parametrize("kind", [FailureKind.MODEL, FailureKind.LOST, FailureKind.HUNG])
def test_it_opens_after_three_failures_in_a_row(kind: FailureKind) -> None:
    driver = Driver()
    driver.fail(2, kind)
    assert driver.state is BreakerState.CLOSED
    driver.fail(1, kind)
    assert driver.state is BreakerState.OPEN
    assert not driver.breaker.passes(driver.now)
    assert driver.breaker.retry_after_s(driver.now) == pytest.approx(10.0)


def test_a_success_in_between_keeps_it_closed() -> None:
    driver = Driver()
    for _ in range(5):
        driver.fail(2)
        driver.call(DONE)
    assert driver.state is BreakerState.CLOSED


@pytest.mark.parametrize("kind", [kind for kind in FailureKind if not kind.of_the_model])
def test_what_is_not_the_models_fault_never_opens_it(kind: FailureKind) -> None:
    driver = Driver()
    driver.fail(10, kind)
    driver.call(CallDropped("c"))
    driver.call(None)
    assert driver.state is BreakerState.CLOSED


def test_a_refusal_between_failures_does_not_hide_them() -> None:
    driver = Driver()
    for kind in (FailureKind.MODEL, FailureKind.REQUEST, FailureKind.MODEL, FailureKind.REFUSED):
        driver.fail(1, kind)
    driver.fail(1)
    assert driver.state is BreakerState.OPEN


def test_calls_that_break_together_are_one_failure() -> None:
    breaker = Breaker(BreakerConfig())
    for number in range(8):
        breaker.began(str(number), 0.0)
    for number in range(8):
        breaker.ended(str(number), 0.0, failed(FailureKind.LOST), 5.0)
    assert breaker.state(5.0) is BreakerState.CLOSED


def test_calls_that_hang_together_are_many() -> None:
    breaker = Breaker(BreakerConfig())
    for number in range(3):
        breaker.began(str(number), 0.0)
        breaker.ended(str(number), 0.0, failed(FailureKind.HUNG), 5.0)
    assert breaker.state(5.0) is BreakerState.OPEN


def test_half_open_lets_one_probe_pass_at_a_time() -> None:
    driver = Driver()
    driver.fail(3)
    driver.now += 10.0
    breaker = driver.breaker
    assert driver.state is BreakerState.HALF_OPEN
    assert breaker.passes(driver.now)
    breaker.began("probe", driver.now)
    assert not breaker.passes(driver.now)
    assert breaker.retry_after_s(driver.now) == 10.0
    breaker.ended("probe", driver.now, None, driver.now + 1.0)
    assert breaker.passes(driver.now + 1.0), "a probe that is withdrawn tells nothing"
    assert breaker.state(driver.now + 1.0) is BreakerState.HALF_OPEN


def test_calls_that_still_wait_when_it_opens_go_elsewhere_but_for_the_probe() -> None:
    driver = Driver()
    driver.breaker.began("waiting", driver.now)
    assert driver.breaker.admits("waiting")
    driver.fail(3)
    assert not driver.breaker.admits("waiting")
    driver.now += 10.0
    driver.breaker.began("probe", driver.now)
    assert driver.breaker.admits("probe")
    assert not driver.breaker.admits("waiting")


def test_a_probe_that_succeeds_closes_it() -> None:
    driver = Driver()
    driver.fail(3)
    driver.now += 10.0
    driver.call(DONE)
    assert driver.state is BreakerState.CLOSED
    driver.fail(2)
    assert driver.state is BreakerState.CLOSED, "the count starts anew"


def test_every_failed_probe_doubles_the_wait_up_to_its_bound() -> None:
    driver = Driver(open_s=10.0, max_open_s=30.0)
    driver.fail(3)
    waits = []
    for _ in range(4):
        left_s = driver.breaker.retry_after_s(driver.now)
        assert left_s is not None
        waits.append(left_s)
        driver.now += left_s
        driver.fail(1)
    assert waits == pytest.approx([10.0, 20.0, 30.0, 30.0])
    driver.now += 30.0
    driver.call(DONE)
    driver.fail(3)
    assert driver.breaker.retry_after_s(driver.now) == pytest.approx(10.0)


def test_a_bound_below_the_first_wait_does_not_shorten_it() -> None:
    driver = Driver(open_s=10.0, max_open_s=1.0)
    driver.fail(3)
    assert driver.breaker.retry_after_s(driver.now) == pytest.approx(10.0)


def test_late_news_from_before_does_not_close_or_prolong_it() -> None:
    driver = Driver()
    driver.breaker.began("slow", 0.0)
    driver.fail(3)
    driver.now += 10.0
    driver.breaker.began("probe", driver.now)
    driver.breaker.ended("slow", 0.0, DONE, driver.now)
    assert driver.state is BreakerState.HALF_OPEN
    driver.breaker.ended("probe", driver.now, DONE, driver.now + 1)
    assert driver.state is BreakerState.CLOSED


def test_a_model_is_out_of_every_view_while_its_breaker_is_open(config: AppConfig) -> None:
    load = LocalLoad(config)
    for second in range(3):
        load.sent(str(second), "small", second)
        load.ended(str(second), "small", second + 0.5, failed())
    views = load.view(3.0)
    assert [m.available for m in views.models] == [False, True, True]
    assert views["small"].retry_after_s == pytest.approx(9.5)
    assert views["middle"].retry_after_s is None
    assert load.breakers(3.0) == {"small": "open"}
    assert load.view(12.6)["small"].available
    load.sent("probe", "small", 12.6)
    assert not load.view(12.6)["small"].available
    load.ended("probe", "small", 13.0, DONE)
    load.ended("probe", "small", 13.0, failed())
    assert load.breakers(13.0) == {}
