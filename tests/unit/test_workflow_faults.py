"""``WorkflowState`` when models die, hang or are left alone."""

from __future__ import annotations

import pytest

from runtime.allowance import LEAST_STALL_S
from runtime.breaker import BreakerState
from runtime.config import AppConfig
from runtime.decide import Decider
from runtime.events import AskRoute, CallFailed, DeadlinePassed, FailureKind, TelemetryChanged
from runtime.load import LocalLoad
from runtime.policy import make_policy
from runtime.types import DeadlineKind, Plan, Route, Strategy, TaskKind, Topology, Wait
from runtime.workflow import WorkflowState
from tests.unit.test_workflow import ROUTE, Driver, query, start

LOST = [FailureKind.LOST, FailureKind.HUNG, FailureKind.OPEN]


@pytest.mark.parametrize("kind", LOST)
def test_the_only_model_is_asked_again_when_its_replica_died(
    config: AppConfig, kind: FailureKind
) -> None:
    alone = config.model_copy(update={"models": config.models[:1]})
    driver = Driver(alone, query())
    driver.plan(Topology.IO)
    driver.route(0)
    assert driver.fail(0, kind) == [AskRoute(0)]
    assert driver.route(0, Wait()) == []
    assert driver.handle(TelemetryChanged(), after_s=20.0) == [AskRoute(0)]
    driver.route(0)
    driver.done(0, "Answer: 42")
    assert (driver.answer.status, driver.answer.steps[0].attempts) == ("ok", 2)


@pytest.mark.parametrize("kind", LOST)
def test_attempts_on_one_model_are_bounded(config: AppConfig, kind: FailureKind) -> None:
    driver = Driver(config, query(direct_model="small"))
    for _ in range(3):
        driver.route(0)
        driver.fail(0, kind)
    assert driver.answer.error_code in ("no_model_answered", "model_unavailable")
    assert driver.answer.steps[0].attempts == 3


def test_another_model_comes_before_the_same_one(config: AppConfig) -> None:
    driver = start(config, Topology.IO)
    driver.route(0)
    assert driver.fail(0, FailureKind.LOST) == [AskRoute(0, frozenset({"small"}))]


def test_an_engine_that_errs_is_not_asked_the_same_again(config: AppConfig) -> None:
    driver = Driver(config, query(direct_model="small"))
    driver.route(0)
    driver.fail(0, FailureKind.MODEL)
    assert driver.answer.error_code == "no_model_answered"


def test_a_model_called_by_name_that_only_fails_is_refused_at_once(config: AppConfig) -> None:
    driver = Driver(config, query(direct_model="small"))
    driver.route(0, Wait(retry_after_s=7.0))
    assert driver.answer.error_code == "model_unavailable"
    assert driver.answer.retry_after_s == 7.0


def test_a_model_called_by_name_that_is_being_started_is_waited_for(config: AppConfig) -> None:
    driver = Driver(config, query(direct_model="small"))
    assert driver.route(0, Wait()) == []


def test_where_every_model_fails_a_query_waits_to_its_hard_deadline(config: AppConfig) -> None:
    driver = start(config, Topology.IO)
    assert driver.route(0, Wait(retry_after_s=7.0)) == []
    driver.handle(DeadlinePassed(), after_s=60.0)
    assert driver.answer.error_code == "deadline_exceeded"
    assert "no model could take a step" in (driver.answer.error_message or "")


@pytest.mark.parametrize(("budget_s", "waits_s"), [(5.0, 60.0), (300.0, 300.0)])
def test_past_a_soft_deadline_the_wait_is_bounded(
    config: AppConfig, budget_s: float, waits_s: float
) -> None:
    driver = start(config, Topology.IO, deadline_kind=DeadlineKind.SOFT, budget_s=budget_s)
    assert driver.route(0, Wait(3.0)) == []
    driver.handle(TelemetryChanged(), after_s=waits_s - 1.0)
    assert driver.route(0, Wait(3.0)) == []
    driver.handle(TelemetryChanged(), after_s=2.0)
    driver.route(0, Wait(3.0))
    assert driver.answer.error_code == "model_unavailable"
    assert driver.answer.retry_after_s == 3.0


# --- how long an engine may be silent ---------------------------------------------------------


def stall_s(driver: Driver) -> float:
    return driver.state.stall_limit_at(driver.calls[0].call_id, driver.now)


def test_half_of_a_hard_budget_is_left_for_another_model(config: AppConfig) -> None:
    driver = start(config, Topology.IO, budget_s=20.0)
    driver.route(0)
    assert stall_s(driver) == pytest.approx(10.0)


def test_a_short_budget_is_no_reason_to_give_up_at_once(config: AppConfig) -> None:
    driver = start(config, Topology.IO, budget_s=1.0)
    driver.route(0)
    assert stall_s(driver) == LEAST_STALL_S


def test_a_long_prompt_may_take_long_to_read(config: AppConfig) -> None:
    slow = config.models[0].model_copy(
        update={"speed": config.models[0].speed.model_copy(update={"prefill_tokens_per_s": 10.0})}
    )
    pool = config.model_copy(update={"models": (slow, *config.models[1:])})
    driver = Driver(pool, query(budget_s=20.0))
    driver.plan(Topology.IO)
    driver.asks.pop(0)
    from runtime.events import Routed

    driver.handle(Routed(0, ROUTE, None))
    assert stall_s(driver) == pytest.approx(driver.calls[0].prompt_tokens)


def test_without_a_hard_deadline_the_configs_bound_holds(config: AppConfig) -> None:
    driver = start(config, Topology.IO, deadline_kind=DeadlineKind.SOFT, budget_s=1.0)
    driver.route(0)
    assert stall_s(driver) == config.limits.stall_s


# --- policies never see a model that is left alone --------------------------------------------


def opened(config: AppConfig, *models: str) -> LocalLoad:
    load = LocalLoad(config)
    for model in models:
        for second in range(3):
            load.sent(f"{model}{second}", model, second)
            failed = CallFailed("c", FailureKind.MODEL, "it broke")
            load.ended(f"{model}{second}", model, second + 0.5, failed)
    return load


@pytest.mark.parametrize("policy", ["greedy", "cascade", "least_loaded", "cheapest", "random"])
def test_no_policy_chooses_a_model_whose_breaker_is_open(config: AppConfig, policy: str) -> None:
    pool = opened(config, "small", "large").view(3.0)
    decider = Decider(config, make_policy(config, policy))
    for number in range(20):
        asked = query(query_id=f"q{number}")
        state = WorkflowState(asked, config, 3.0)
        state.handle(decider.plan(asked, TaskKind.MATH, pool, 60.0, None), 3.0)
        decision = decider.route(state, AskRoute(0), pool, 3.0, None).decision
        assert isinstance(decision, Route)
        assert decision.model == "middle"


@pytest.mark.parametrize("direct", [None, "middle"])
def test_with_every_breaker_open_the_decision_is_to_wait(
    config: AppConfig, direct: str | None
) -> None:
    pool = opened(config, "small", "middle", "large").view(3.0)
    decider = Decider(config, make_policy(config))
    state = WorkflowState(query(direct_model=direct), config, 3.0)
    state.start(3.0)
    if direct is None:
        from runtime.events import Planned

        state.handle(Planned(Plan(Topology.IO, ("MathSolver",), TaskKind.MATH), "test"), 3.0)
    decision = decider.route(state, AskRoute(0), pool, 3.0, None).decision
    assert decision == Wait(pytest.approx(9.5))


def test_a_prompt_too_long_for_every_model_is_no_reason_to_wait(config: AppConfig) -> None:
    pool = opened(config, "small").view(3.0)
    decider = Decider(config, make_policy(config))
    driver = start(config, Topology.IO, question="word " * 20_000)
    decision = decider.route(driver.state, AskRoute(0), pool, 3.0, None).decision
    assert isinstance(decision, Route)
    assert decision.strategy is Strategy.FLASH


def test_a_breaker_that_is_not_closed_shows_in_the_snapshot(config: AppConfig) -> None:
    from runtime.telemetry import TelemetryFusion

    fused = TelemetryFusion(("small", "large"), config.telemetry)
    fused.add_breakers("w0", {"small": BreakerState.OPEN.value}, 0.0)
    fused.add_breakers("w1", {"small": "half_open"}, 0.0)
    assert fused.snapshot(0.1).models["small"].breakers == ("half_open", "open")
    assert fused.snapshot(0.1).models["large"].breakers == ()
    fused.add_breakers("w0", {}, 0.2)
    assert fused.snapshot(0.3).models["small"].breakers == ("half_open",)
    assert fused.snapshot(10.0).models["small"].breakers == ()
