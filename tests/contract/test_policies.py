"""Every policy through one table: what it may never do, whatever the load."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.config import AppConfig, parse_config
from runtime.decide import Decider
from runtime.errors import ConfigError, PlanError
from runtime.events import AskRoute, CallDone, Finish, Planned, Routed, RunCall
from runtime.load import LocalLoad
from runtime.policy import POLICIES, PlanView, Policy, StepView, make_policy
from runtime.telemetry import ReplicaReport, TelemetryFusion
from runtime.types import (
    Answer,
    CallResult,
    Decision,
    Plan,
    Query,
    Route,
    Stop,
    Strategy,
    TaskKind,
    Topology,
)
from runtime.workflow import WorkflowState

make_policy(parse_config({"version": 1, "models": [
    {"name": "m", "backend": "fake", "context_tokens": 4096,
     "speed": {"prefill_tokens_per_s": 1.0, "token_s": 1.0}}]}))  # fmt: skip
NAMES = sorted(POLICIES)
LOADS = ("unheard", "idle", "busy", "one_left")


def loaded(config: AppConfig, kind: str) -> LocalLoad:
    load = LocalLoad(config)
    if kind == "unheard":
        return load
    fused = TelemetryFusion(tuple(m.name for m in config.models), config.telemetry)
    for i, model in enumerate(config.models):
        if kind == "one_left" and i > 0:
            continue
        running, waiting = (4, 50) if kind == "busy" else (0, 0)
        fused.add_replica(
            ReplicaReport(model.name, "r", 4, running, waiting, 0.1, None, None, None, 0), 0.0
        )
    load.update(fused.snapshot(0.0), 0.0)
    return load


def play(config: AppConfig, policy: Policy, query: Query, load: LocalLoad, text: str) -> Answer:
    """One query from start to finish; every call answers ``text`` after a second."""
    decider, state, now = Decider(config, policy), WorkflowState(query, config, 0.0), 0.0
    pending: list[Any] = state.start(now)
    for _ in range(500):
        command = pending.pop(0)
        if isinstance(command, Finish):
            return command.answer
        if isinstance(command, AskRoute):
            event: Any = decider.route(state, command, load.view(now), now, None)
            if isinstance(event.decision, Route) and config.model(event.decision.model):
                assert event.decision.model not in command.excluded
        elif isinstance(command, RunCall):
            now += 1.0
            event = CallDone(
                command.call.call_id, CallResult(text, "stop", 5, 5, queue_s=0.0, service_s=1.0)
            )
        else:
            event = decider.plan(query, TaskKind.GENERAL, load.view(now), query.budget_s, None)
            assert isinstance(event, Planned)
        pending += state.handle(event, now)
    raise AssertionError("the query never ended")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("task", list(TaskKind))
@pytest.mark.parametrize("kind", LOADS)
def test_every_query_ends_whole(config: AppConfig, name: str, task: TaskKind, kind: str) -> None:
    policy = make_policy(config, name)
    for number in range(5):
        query = Query(f"q{number}", "What is 6 times 7?", budget_s=500.0, task=task)
        answer = play(config, policy, query, loaded(config, kind), "Answer: 42")
        assert answer.status == "ok"
        assert answer.policy == name
        if kind == "one_left":
            assert set(answer.models) == {"small"}


@pytest.mark.parametrize("name", NAMES)
def test_the_same_query_is_decided_the_same_way(config: AppConfig, name: str) -> None:
    query = Query("q7", "What is 6 times 7?", budget_s=100.0, task=TaskKind.MATH)
    first, second = (
        play(config, make_policy(config, name), query, loaded(config, "idle"), "Answer: 42")
        for _ in range(2)
    )
    assert first == second


@pytest.mark.parametrize("name", NAMES)
def test_a_pool_of_one_model_works(config: AppConfig, name: str) -> None:
    single = parse_config({"version": 1, "models": [config.models[0].model_dump()]})
    query = Query("q1", "What is 6 times 7?", budget_s=0.001, task=TaskKind.KNOWLEDGE)
    policy = make_policy(single, name)
    planned = Decider(single, policy).plan(
        query, TaskKind.GENERAL, LocalLoad(single).view(0.0), 0.001, None
    )
    assert planned.plan.num_agents >= 1


@pytest.mark.parametrize("name", NAMES)
def test_unknown_options_are_refused(config: AppConfig, name: str) -> None:
    bad = config.model_copy(
        update={"policy": config.policy.model_copy(update={"name": name, "options": {"x": 1}})}
    )
    with pytest.raises(ConfigError, match=r"policy\.options\.x"):
        make_policy(bad)


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("fixed", {"agents": 6}, "max_agents"),
        ("fixed", {"topology": "Ring"}, "Ring"),
        ("greedy", {"plans": [{"topology": "Ring", "agents": 1, "gain": 0.1}]}, "Ring"),
        ("greedy", {"price_idle": float("inf")}, "price_idle"),
        ("greedy", {"depths": []}, "depths"),
        ("moa", {"layers": 4}, "layers"),
        ("moa", {"aggregator": "stranger"}, "stranger"),
        ("self_consistency", {"k": 3}, "max_agents"),
        ("self_consistency", {"model": "stranger"}, "stranger"),
        ("single_best", {"best": {"math": {"model": "stranger"}}}, "stranger"),
        ("gptswarm", {"dataset": "aime"}, "aime"),
        ("gptswarm", {"artefact": "/nowhere.json"}, "nowhere"),
        ("masrouter", {"artefact": "/nowhere.safetensors"}, "nowhere"),
    ],
)
def test_options_that_can_never_work_are_refused_at_the_start(
    config: AppConfig, name: str, options: dict[str, Any], told: str
) -> None:
    limits = config.limits.model_copy(update={"max_agents": 2})
    settings = config.policy.model_copy(update={"name": name, "options": options})
    with pytest.raises(ConfigError, match=told):
        make_policy(config.model_copy(update={"policy": settings, "limits": limits}))


@pytest.mark.parametrize("name", NAMES)
def test_plans_keep_to_the_most_agents(config: AppConfig, name: str) -> None:
    few = config.model_copy(update={"limits": config.limits.model_copy(update={"max_agents": 1})})
    for task in TaskKind:
        query = Query("q1", "What is 6 times 7?", budget_s=500.0, task=task)
        policy = make_policy(few, name)
        assert play(few, policy, query, loaded(few, "idle"), "Answer: 42").status == "ok"


def test_a_prompt_that_fits_no_model_does_not_wait_for_one_that_is_away(config: AppConfig) -> None:
    query = Query("q1", "word " * 20_000, budget_s=500.0, task=TaskKind.MATH)
    answer = play(config, make_policy(config), query, loaded(config, "one_left"), "Answer: 42")
    assert answer.error_code == "context_length_exceeded"


def test_an_unknown_policy_is_refused_with_the_known_ones(config: AppConfig) -> None:
    with pytest.raises(ConfigError, match="greedy"):
        make_policy(config, "greedyy")


# --- what each policy is for -----------------------------------------------------------------


def route_of(
    config: AppConfig, name: str, load: LocalLoad, budget_s: float = 100.0, **options: Any
) -> Decision:
    settings = config.policy.model_copy(update={"name": name, "options": options})
    policy = make_policy(config.model_copy(update={"policy": settings}))
    query = Query("q1", "What is 6 times 7?", budget_s=budget_s, task=TaskKind.MATH)
    state = WorkflowState(query, config, 0.0)
    state.start(0.0)
    state.handle(Planned(Plan(Topology.IO, ("MathSolver",), TaskKind.MATH), name), 0.0)
    routed = Decider(config, policy).route(state, AskRoute(0), load.view(0.0), 0.0, None)
    assert isinstance(routed, Routed)
    return routed.decision


def crowd(config: AppConfig, **counts: int) -> LocalLoad:
    load = loaded(config, "idle")
    for model, count in counts.items():
        for i in range(count):
            load.sent(f"{model}{i}", model, 1.0)
    return load


def test_fixed_is_blind_to_load(config: AppConfig) -> None:
    route = route_of(config, "fixed", crowd(config, large=500), model="large")
    assert route == Route("large", Strategy.CONCISE)


def test_cheapest_takes_the_lowest_price(config: AppConfig) -> None:
    route = route_of(config, "cheapest", crowd(config, small=500))
    assert route == Route("small", Strategy.CONCISE)


def test_least_loaded_leaves_the_crowd(config: AppConfig) -> None:
    route = route_of(config, "least_loaded", crowd(config, small=3, large=2))
    assert route == Route("middle", Strategy.CONCISE)


def test_greedy_takes_the_best_when_idle(config: AppConfig) -> None:
    assert route_of(config, "greedy", crowd(config)) == Route("large", Strategy.DEEPTHINK)


def test_greedy_leaves_a_crowded_favourite(config: AppConfig) -> None:
    route = route_of(config, "greedy", crowd(config, large=200), budget_s=20.0)
    assert isinstance(route, Route)
    assert route.model != "large"


def test_greedy_goes_shallow_when_time_is_short(config: AppConfig) -> None:
    deep = route_of(config, "greedy", crowd(config), budget_s=100.0)
    short = route_of(config, "greedy", crowd(config), budget_s=3.0)
    assert isinstance(deep, Route)
    assert isinstance(short, Route)
    assert deep.strategy is Strategy.DEEPTHINK
    assert short.strategy is Strategy.FLASH


def test_greedy_takes_the_soonest_when_nothing_fits(config: AppConfig) -> None:
    route = route_of(config, "greedy", crowd(config), budget_s=0.01)
    assert route == Route("small", Strategy.FLASH)


def test_greedy_plans_less_under_load(config: AppConfig) -> None:
    policy = make_policy(config, "greedy")
    query = Query("q1", "What is 6 times 7?", budget_s=100.0, task=TaskKind.MATH)

    def calls(load: LocalLoad) -> int:
        planned = Decider(config, policy).plan(query, TaskKind.MATH, load.view(0.0), 100.0, None)
        return planned.plan.num_agents

    assert calls(crowd(config)) > calls(crowd(config, small=40, middle=40, large=40))


def test_greedy_may_be_kept_to_one_depth(config: AppConfig) -> None:
    """The ablation of the paper's table 3: one fixed depth."""
    route = route_of(config, "greedy", crowd(config), depths=["Flash"])
    assert route == Route("large", Strategy.FLASH)


def test_greedy_without_its_price_stays_deep_where_it_would_save(config: AppConfig) -> None:
    busy = crowd(config, small=3, middle=3, large=3)
    dear = route_of(config, "greedy", busy, price_loaded=50.0)
    free = route_of(config, "greedy", busy, price_idle=0.0, price_loaded=0.0)
    assert isinstance(dear, Route)
    assert dear.strategy is Strategy.FLASH
    assert free == Route("large", Strategy.DEEPTHINK)


def test_quality_only_is_greedy_that_does_not_see_the_queue(config: AppConfig) -> None:
    busy = crowd(config, large=200)
    blind = route_of(config, "quality_only", busy, budget_s=20.0)
    assert blind == route_of(config, "greedy", crowd(config), budget_s=20.0)
    assert blind != route_of(config, "greedy", busy, budget_s=20.0)


def test_single_best_takes_the_pair_of_its_task_whatever_the_load(config: AppConfig) -> None:
    best = {"math": {"model": "middle", "strategy": "Flash"}}
    route = route_of(config, "single_best", crowd(config, middle=500), best=best)
    assert route == Route("middle", Strategy.FLASH)
    by_prior = route_of(config, "single_best", crowd(config, large=500))
    assert by_prior == Route("large", Strategy.DEEPTHINK)


def test_predicted_latency_takes_the_fast_model_until_its_queue_is_longer(
    config: AppConfig,
) -> None:
    assert route_of(config, "predicted_latency", crowd(config)) == Route("small", Strategy.CONCISE)
    full = crowd(config, small=12)
    assert route_of(config, "predicted_latency", full) == Route("middle", Strategy.CONCISE)
    everywhere = crowd(config, small=40, middle=400, large=400)
    assert route_of(config, "predicted_latency", everywhere).model == "small"


def test_predicted_latency_leaves_a_model_whose_cache_is_full(config: AppConfig) -> None:
    """Two equal engines: the prompt is read more slowly where the KV cache is nearly full."""
    twins = config.model_copy(
        update={"models": tuple(m.model_copy(update={"speed": config.models[0].speed})
                                for m in config.models)}
    )  # fmt: skip
    fused = TelemetryFusion(tuple(m.name for m in twins.models), twins.telemetry)
    for name, kv in (("small", 0.9), ("middle", 0.99), ("large", 0.1)):
        fused.add_replica(ReplicaReport(name, "r", 4, 0, 0, kv, None, None, None, 0), 0.0)
    load = LocalLoad(twins)
    load.update(fused.snapshot(0.0), 0.0)
    assert route_of(twins, "predicted_latency", load) == Route("large", Strategy.CONCISE)


def test_cascade_stops_when_two_cheap_models_agree(config: AppConfig) -> None:
    query = Query("q1", "What is 6 times 7?", budget_s=100.0, task=TaskKind.MATH)
    policy = make_policy(config, "cascade")
    answer = play(config, policy, query, loaded(config, "idle"), "Answer: 42")
    assert answer.models == ("small", "middle")


def test_cascade_asks_the_strongest_when_they_disagree(config: AppConfig) -> None:
    texts = iter(["Answer: 41", "Answer: 42", "Answer: 42"])
    decider = Decider(config, make_policy(config, "cascade"))
    query = Query("q1", "What is 6 times 7?", budget_s=100.0, task=TaskKind.MATH)
    load, state = loaded(config, "idle"), WorkflowState(query, config, 0.0)
    pending: list[Any] = state.start(0.0)
    while not isinstance(pending[0], Finish):
        command = pending.pop(0)
        if isinstance(command, AskRoute):
            event: Any = decider.route(state, command, load.view(0.0), 0.0, None)
        elif isinstance(command, RunCall):
            text = CallResult(next(texts), "stop", 5, 5, queue_s=0.0, service_s=1.0)
            event = CallDone(command.call.call_id, text)
        else:
            event = decider.plan(query, TaskKind.MATH, load.view(0.0), 100.0, None)
        pending += state.handle(event, 0.0)
    assert pending[0].answer.models == ("small", "middle", "large")
    assert pending[0].answer.canonical == "42"


# --- what a broken policy may not do ---------------------------------------------------------


class Broken:
    """A policy that answers whatever it was given."""

    name = "broken"
    needs_embedding = False

    def __init__(self, decision: Decision) -> None:
        self.decision = decision

    def plan(self, view: PlanView) -> Plan:
        return Plan(Topology.IO, ("MathSolver",), view.task)

    def route(self, view: StepView) -> Decision:
        return self.decision


@pytest.mark.parametrize("decision", [Stop(), Route("stranger", Strategy.FLASH)])
def test_a_route_that_cannot_be_carried_out_is_a_plan_error(
    config: AppConfig, decision: Decision
) -> None:
    query = Query("q1", "What is 6 times 7?", budget_s=100.0, task=TaskKind.MATH)
    with pytest.raises(PlanError):
        play(config, Broken(decision), query, loaded(config, "idle"), "Answer: 42")


def test_the_models_that_failed_a_step_are_masked(config: AppConfig) -> None:
    load = loaded(config, "idle")
    query = Query("q1", "What is 6 times 7?", budget_s=100.0, task=TaskKind.MATH)
    state = WorkflowState(query, config, 0.0)
    state.start(0.0)
    state.handle(Planned(Plan(Topology.IO, ("MathSolver",), TaskKind.MATH), "x"), 0.0)
    excluded = frozenset({"large", "middle"})
    for name in NAMES:
        decider = Decider(config, make_policy(config, name))
        routed = decider.route(state, AskRoute(0, excluded), load.view(0.0), 0.0, None)
        assert isinstance(routed.decision, Route)
        assert routed.decision.model == "small"
