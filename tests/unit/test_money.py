"""Prices, the money of a query, the mask, the cap on tokens, and the pool's hour."""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors import wire
from actors.api import budget_usd
from runtime.config import AppConfig, parse_config
from runtime.decide import Decider
from runtime.errors import BadBudget, ConfigError
from runtime.events import (
    AskRoute,
    CallDone,
    CallFailed,
    FailureKind,
    Finish,
    Planned,
    Routed,
    RunCall,
)
from runtime.load import LocalLoad
from runtime.model_config import PriceConfig
from runtime.money import HOUR_S, HourLedger, Purse, Tariff, tariff, to_usd
from runtime.policy import make_policy
from runtime.telemetry import PoolTelemetry, TelemetryFusion
from runtime.types import (
    Answer,
    Broke,
    Call,
    CallResult,
    Plan,
    Query,
    Route,
    Sampling,
    Strategy,
    TaskKind,
    Wait,
)
from runtime.workflow import WorkflowState
from tests.conftest import app_args, model_args

PRICE = {"input": 1.0, "output": 10.0}  # dollars per million tokens


def config(**changes: Any) -> AppConfig:
    """A free model, a dear one, and one of unknown price."""
    models = [
        model_args("free", price={"input": 0, "output": 0}),
        model_args("dear", price=PRICE),
        model_args("unpriced"),
    ]
    return parse_config(app_args(*models, policy={"name": "fixed"}, **changes))


def dear_only(**changes: Any) -> AppConfig:
    return parse_config(
        app_args(model_args("dear", price=PRICE), policy={"name": "fixed"}, **changes)
    )


class Asked:
    """A query that a ``Decider`` routes, by hand."""

    def __init__(self, config: AppConfig, usd: float | None, topology: str, agents: int) -> None:
        self.config = config
        self.decider = Decider(config, make_policy(config))
        self.load = LocalLoad(config)
        query = Query(
            "q1", "What is 6 times 7?", 60.0, TaskKind.MATH, budget_usd=usd,
            sampling=Sampling(max_tokens=None),
        )  # fmt: skip
        self.state = WorkflowState(query, config, 0.0)
        self.now = 0.0
        self.state.start(0.0)
        plan = Plan(topology, ("MathSolver",) * agents, TaskKind.MATH)
        self.commands = self.state.handle(Planned(plan, "test"), 0.0)
        self.calls: list[Call] = []

    def routed(self, step_id: int) -> Routed:
        ask = AskRoute(step_id)
        return self.decider.route(self.state, ask, self.load.view(self.now), self.now, None)

    def take(self, event: Any) -> list[Any]:
        self.now += 1.0
        self.commands = self.state.handle(event, self.now)
        self.calls += [c.call for c in self.commands if isinstance(c, RunCall)]
        return self.commands

    def route(self, step_id: int, model: str, strategy: Strategy = Strategy.FLASH) -> Call:
        self.take(Routed(step_id, Route(model, strategy)))
        return self.calls[-1]

    def done(self, call: Call, prompt: int | None = 100, completion: int | None = 50) -> list[Any]:
        result = CallResult("Answer: 42", "stop", prompt, completion, 0.0, 1.0)
        return self.take(CallDone(call.call_id, result))

    @property
    def answer(self) -> Answer:
        assert isinstance(self.commands[-1], Finish)
        return self.commands[-1].answer


# --- exact sums --------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=50))
def test_costs_add_up_exactly(calls):
    tariff = Tariff(290_000, 110_000)  # 0.29 and 0.11 dollars per million
    total = sum(tariff.cost_pusd(*call) for call in calls)
    exact = sum(Fraction(29, 10**8) * p + Fraction(11, 10**8) * c for p, c in calls)
    assert Fraction(total, 10**12) == exact
    assert to_usd(total) == float(exact)


def test_a_tariff_is_per_token_and_no_price_is_unknown():
    models = config().models
    assert [tariff(m) for m in models] == [Tariff(0, 0), Tariff(10**6, 10**7), None]
    assert PriceConfig(input=0.02, output=0.05).output == 0.05
    assert Tariff(10**6, 10**7).cost_pusd(3, 2) == 23 * 10**6


@settings(deadline=None)
@given(st.integers(0, 10**9), st.integers(0, 10**4), st.integers(0, 10**4), st.integers(0, 10**4))
def test_the_tokens_that_money_pays_for_are_as_many_as_fit(left, prompt, input_pusd, output_pusd):
    prices = Tariff(input_pusd, output_pusd)
    tokens = prices.tokens_for(left, prompt)
    if tokens < 0:
        assert prices.cost_pusd(prompt, 0) > left
    else:
        assert prices.cost_pusd(prompt, tokens) <= left or prices.free
        assert output_pusd == 0 or prices.cost_pusd(prompt, tokens + 1) > left


def test_calls_on_their_way_hold_the_most_that_they_can_cost():
    purse = Purse(1e-9)  # a thousand pico-dollars
    purse.hold("a", 600)
    assert (purse.left_pusd, purse.most_left_pusd) == (400, 1000)
    purse.spend("a", 250)
    purse.hold("b", 500)
    purse.lose("b")
    assert (purse.left_pusd, purse.most_left_pusd) == (250, 250)
    assert Purse(None).left_pusd is None


# --- in a query --------------------------------------------------------------------------------


def test_the_trace_and_the_usage_have_the_cost():
    query = Asked(config(), None, "Chain", 2)
    query.done(query.route(0, "dear"), 1000, 100)
    query.done(query.route(1, "free"), 500, 50)
    query.done(query.route(2, "unpriced"), 100, 10)
    answer = query.answer
    assert [step.cost_usd for step in answer.steps] == [0.002, 0.0, None]
    assert answer.usage.cost_usd == 0.002
    assert wire.summary(answer)["cost_usd"] == 0.002
    assert wire.answer_headers(answer)["x-inframind-cost-usd"] == "0.002"
    assert wire.native_answer(answer)["usage"]["cost_usd"] == 0.002


def test_what_no_price_is_known_of_has_no_cost():
    query = Asked(config(), None, "IO", 1)
    query.done(query.route(0, "unpriced"))
    assert query.answer.usage.cost_usd is None
    assert "cost_usd" not in wire.summary(query.answer)
    assert "x-inframind-cost-usd" not in wire.answer_headers(query.answer)


def test_what_the_engine_did_not_count_is_estimated_from_above():
    query = Asked(config(), None, "IO", 1)
    call = query.route(0, "dear")
    query.done(call, None, None)
    cost = query.answer.usage.cost_usd
    least = Tariff(10**6, 10**7).cost_pusd(call.prompt_tokens, 2)
    assert cost is not None
    assert cost >= to_usd(least)


def test_a_model_that_the_money_does_not_pay_for_is_masked():
    query = Asked(config(), 1e-4, "IO", 1)
    view = query.decider.step_view(query.state, AskRoute(0), query.load.view(0.0), 0.0, None)
    assert [model.name for model in view.candidates] == ["free", "unpriced"]
    assert view.money_left_usd == 1e-4
    rich = Asked(config(), 1.0, "IO", 1)
    view = rich.decider.step_view(rich.state, AskRoute(0), rich.load.view(0.0), 0.0, None)
    assert [model.name for model in view.candidates] == ["free", "dear", "unpriced"]


def test_no_money_is_a_clear_error():
    query = Asked(dear_only(), 1e-6, "IO", 1)
    routed = query.routed(0)
    assert isinstance(routed.decision, Broke)
    query.take(routed)
    answer = query.answer
    assert (answer.status, answer.error_code) == ("error", "money_exhausted")
    assert "1e-06 US dollars" in (answer.error_message or "")
    status, body, _ = wire.failure_response(answer)
    assert (status, body["error"]["code"]) == (402, "money_exhausted")


def test_without_money_for_the_rest_the_best_so_far_is_sent_degraded():
    query = Asked(dear_only(), 0.004, "Reflection", 1)
    call = query.route(0, "dear")
    query.done(call, 150, 320)  # 3.35 of 4 thousandths of a dollar
    routed = query.routed(1)
    assert isinstance(routed.decision, Broke)
    query.take(routed)
    answer = query.answer
    assert (answer.status, answer.text) == ("degraded", "Answer: 42")
    assert answer.error_code == "money_exhausted"
    assert "pays for no model" in (answer.steps[1].error or "")


def test_a_step_waits_while_calls_on_their_way_may_leave_enough():
    query = Asked(dear_only(), 0.004, "IO", 2)
    first = query.route(0, "dear", Strategy.FLASH)
    assert isinstance(query.routed(1).decision, Wait)
    query.take(query.routed(1))
    query.done(first, 150, 10)
    assert isinstance(query.routed(1).decision, Route)


@settings(deadline=None)
@given(st.floats(1e-5, 5e-3), st.integers(0, 10**6))
def test_a_query_never_spends_more_than_its_budget(usd, seed):
    rng = Random(seed)
    query = Asked(dear_only(), usd, "Debate", 2)
    for _ in range(30):
        if isinstance(query.commands and query.commands[-1], Finish):
            break
        for step in query.state.steps:
            if step.status in ("asked", "parked"):
                step.status = "asked"
                query.take(query.routed(step.step.step_id))
        for call in [query.state.call(c.call_id) for c in query.calls]:
            if call is not None:
                # An engine counts no more than the estimate, and writes no more than it may.
                query.done(call, call.prompt_tokens, rng.randint(0, call.max_tokens))
    assert isinstance(query.commands[-1], Finish)
    assert (query.answer.usage.cost_usd or 0.0) <= usd


def test_the_cap_is_what_the_money_pays_for():
    query = Asked(dear_only(), 0.004, "IO", 1)
    call = query.route(0, "dear", Strategy.DEEPTHINK)
    assert call.max_tokens < 512  # what time and model would allow
    most = Tariff(10**6, 10**7).cost_pusd(call.prompt_tokens, call.max_tokens)
    assert 4 * 10**9 - 10**7 < most <= 4 * 10**9


@pytest.mark.parametrize(
    ("kind", "left"),
    [
        (FailureKind.LIMITED, "all"),
        (FailureKind.REFUSED, "all"),
        (FailureKind.TIME, "all"),
        (FailureKind.LOST, "less"),
        (FailureKind.HUNG, "less"),
    ],
)
def test_a_call_that_broke_off_may_have_been_billed(kind, left):
    query = Asked(config(), 1.0, "IO", 1)
    call = query.route(0, "dear")
    query.take(CallFailed(call.call_id, kind, "it broke"))
    if left == "all":
        assert query.state.purse.left_usd == 1.0
    else:
        most = Tariff(10**6, 10**7).cost_pusd(call.prompt_tokens, call.max_tokens)
        assert query.state.purse.left_pusd == 10**12 - most


# --- the pool's hour ---------------------------------------------------------------------------


def test_the_ledger_forgets_after_an_hour():
    ledger = HourLedger()
    ledger.add(1.0, 5.0)
    ledger.add(0.5, 6.0)
    ledger.add(2.0, 1000.0)
    assert ledger.spent_usd(1000.0) == 3.5
    assert ledger.spent_usd(HOUR_S + 11.0) == 2.0
    assert ledger.spent_usd(HOUR_S + 1011.0) == 0.0


def paid(load: LocalLoad, tokens: int, now: float) -> None:
    call = Call("q.0.1", "q", 0, "dear", Strategy.FLASH, (), 8, 8, None, 0.0, Sampling(), True)
    load.paid(call, CallDone("q.0.1", CallResult("", "stop", 0, tokens, 0.0, 1.0)), now)


def test_the_hour_counts_all_drivers_each_once():
    args = config(money={"per_hour_usd": 1.0})
    load = LocalLoad(args, "me")
    paid(load, 30_000, 0.0)
    load.update(PoolTelemetry(1, {}, {"me": 0.25, "other": 0.4}), 1.0)
    assert load.view(1.0).hour_left_usd == pytest.approx(0.3)
    assert LocalLoad(config()).view(0.0).hour_left_usd is None


def test_the_monitor_remembers_for_an_hour_what_a_driver_spent():
    fusion = TelemetryFusion(("dear",), config().telemetry)
    fusion.add_spent("gone", 0.7, 0.0)
    fusion.add_spent("poor", 0.0, 0.0)
    assert fusion.snapshot(3599.0).spent_hour_usd == {"gone": 0.7}
    assert fusion.snapshot(3601.0).spent_hour_usd == {}


def test_when_the_hour_is_spent_only_what_is_free_is_left():
    args = config(money={"per_hour_usd": 0.1})
    query = Asked(args, None, "IO", 1)
    paid(query.load, 10_000, 0.0)
    view = query.decider.step_view(query.state, AskRoute(0), query.load.view(0.0), 0.0, None)
    assert [model.name for model in view.candidates] == ["free", "unpriced"]
    poor = Asked(dear_only(money={"per_hour_usd": 0.1}), None, "IO", 1)
    paid(poor.load, 10_000, 0.0)
    poor.take(poor.routed(0))
    assert poor.answer.error_code == "money_exhausted"
    assert wire.failure_response(poor.answer)[2]["retry-after"] == "60"


# --- how it is asked for -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "body", "expected"),
    [
        (None, None, 0.01),
        ("0.002", None, 0.002),
        (None, 0.003, 0.003),
        ("0.002", 0.003, 0.002),
        ("0.004", 0.003, 0.003),
        (None, 0, 0.0),
        (None, 7, 0.05),
    ],
)
def test_the_smaller_of_header_and_body_counts(header, body, expected):
    args = config(money={"per_query_usd": 0.01, "max_per_query_usd": 0.05})
    headers = {} if header is None else {"x-inframind-budget-usd": header}
    assert budget_usd(headers, body, args) == expected


@pytest.mark.parametrize("bad", ["-1", "1e-3", "0,5", "$1", "", "nan", "inf", "1 usd", "1" * 20])
def test_a_header_that_is_no_plain_amount_is_refused(bad):
    with pytest.raises(BadBudget, match="x-inframind-budget-usd"):
        budget_usd({"x-inframind-budget-usd": bad}, None, config())


@pytest.mark.parametrize("bad", [-0.1, float("nan"), float("inf"), "1", True, [1], 10**400])
def test_a_field_that_is_no_plain_amount_is_refused(bad):
    with pytest.raises(BadBudget, match="budget_usd"):
        budget_usd({}, bad, config())


def test_without_any_bound_there_is_none_and_the_most_alone_is_one():
    assert budget_usd({}, None, config()) is None
    assert budget_usd({}, None, config(money={"max_per_query_usd": 2.0})) == 2.0


def test_a_default_above_the_most_is_refused():
    with pytest.raises(ConfigError, match="per_query_usd"):
        config(money={"per_query_usd": 2.0, "max_per_query_usd": 1.0})


def test_the_plan_sees_the_money():
    args = config(money={"per_hour_usd": 0.5})
    decider, load = Decider(args, make_policy(args)), LocalLoad(args)
    query = Query("q", "?", 60.0, TaskKind.MATH, budget_usd=0.2)
    view = decider.plan_view(query, TaskKind.MATH, load.view(0.0), 60.0, None)
    assert view.money_left_usd == 0.2
