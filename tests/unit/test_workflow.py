"""``WorkflowState``: commands for events, and the one outcome."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runtime.config import AppConfig
from runtime.errors import PlanError
from runtime.events import (
    AskPlan,
    AskRoute,
    CallDone,
    CallDropped,
    CallFailed,
    CancelCall,
    Cancelled,
    DeadlinePassed,
    FailureKind,
    Finish,
    Planned,
    Routed,
    RunCall,
    TelemetryChanged,
)
from runtime.types import (
    Answer,
    Call,
    CallResult,
    DeadlineKind,
    Message,
    Plan,
    Query,
    Route,
    Sampling,
    Speed,
    StepKind,
    Stop,
    Strategy,
    TaskKind,
    Topology,
    Wait,
)
from runtime.workflow import WorkflowState

ROUTE = Route("small", Strategy.CONCISE)
SPEED = Speed(prefill_tokens_per_s=10_000, tpot_s=0.01)


def query(**changes: Any) -> Query:
    return replace(Query("q1", "What is 6 times 7?", budget_s=60.0, task=TaskKind.MATH), **changes)


def result(text: str) -> CallResult:
    return CallResult(text, "stop", 10, 5, queue_s=0.1, service_s=0.2)


class Driver:
    """Drives a state machine by hand and remembers what it said."""

    def __init__(self, config: AppConfig, query: Query, arrival_s: float = 100.0) -> None:
        self.state = WorkflowState(query, config, arrival_s)
        self.now = arrival_s
        self.said: list[Any] = []
        self.asks: dict[int, AskRoute] = {}
        self.calls: dict[int, Call] = {}
        self.cancelled: list[str] = []
        self._take(self.state.start(self.now))

    def _take(self, commands: list[Any]) -> list[Any]:
        self.said = commands
        for command in commands:
            if isinstance(command, AskRoute):
                self.asks[command.step_id] = command
            elif isinstance(command, RunCall):
                self.calls[command.call.step_id] = command.call
            elif isinstance(command, CancelCall):
                self.cancelled.append(command.call_id)
        return commands

    def plan(self, topology: str, agents: int = 1, task: TaskKind = TaskKind.MATH) -> list[Any]:
        roles = {TaskKind.GENERAL: "Assistant", TaskKind.CODE: "AlgorithmDesigner"}
        plan = Plan(topology, (roles.get(task, "MathSolver"),) * agents, task)
        return self.handle(Planned(plan, "test"))

    def handle(self, event: Any, after_s: float = 0.0) -> list[Any]:
        self.now += after_s
        return self._take(self.state.handle(event, self.now))

    def route(self, step_id: int, route: Any = ROUTE, after_s: float = 0.0) -> list[Any]:
        self.asks.pop(step_id)
        return self.handle(Routed(step_id, route, SPEED), after_s)

    def done(self, step_id: int, text: str, after_s: float = 0.0) -> list[Any]:
        return self.handle(CallDone(self.calls.pop(step_id).call_id, result(text)), after_s)

    def fail(self, step_id: int, kind: FailureKind = FailureKind.MODEL, **more: Any) -> list[Any]:
        call = self.calls.pop(step_id)
        return self.handle(CallFailed(call.call_id, kind, "it broke", **more))

    @property
    def answer(self) -> Answer:
        assert isinstance(self.said[-1], Finish), self.said
        return self.said[-1].answer


def start(config: AppConfig, topology: str, agents: int = 1, **changes: Any) -> Driver:
    driver = Driver(config, query(**changes))
    assert driver.said == [AskPlan()]
    driver.plan(topology, agents)
    return driver


def test_one_agent_end_to_end(config: AppConfig) -> None:
    driver = start(config, Topology.IO)
    assert driver.said == [AskRoute(0)]
    driver.route(0)
    call = driver.calls[0]
    assert (call.model, call.strategy, call.final) == ("small", Strategy.CONCISE, True)
    driver.done(0, "6 x 7 is 42. Answer: 42", after_s=3.0)
    answer = driver.answer
    assert (answer.status, answer.text, answer.canonical) == ("ok", "6 x 7 is 42. Answer: 42", "42")
    assert answer.latency_s == pytest.approx(3.0)
    assert answer.budget_left_s == pytest.approx(57.0)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (10, 5)
    assert answer.models == ("small",)
    assert answer.kept_budget


def test_independent_agents_run_at_once_and_the_decision_waits_for_all(config: AppConfig) -> None:
    driver = start(config, Topology.IO, 3)
    assert [c.step_id for c in driver.said] == [0, 1, 2]
    for step in range(3):
        driver.route(step)
    assert driver.done(0, "Answer: 42") == []
    assert driver.done(1, "Answer: 41") == []
    assert driver.done(2, "Answer: 42") == [AskRoute(3)]
    driver.route(3)
    prompt = driver.calls[3].messages[-1].content
    assert "Answer: 41" in prompt
    assert driver.state.steps[3].step.kind is StepKind.DECIDE
    driver.done(3, "Answer: 42")
    assert driver.answer.status == "ok"


def test_chain_shows_the_predecessor(config: AppConfig) -> None:
    driver = start(config, Topology.CHAIN, 2)
    assert [c.step_id for c in driver.said] == [0]
    driver.route(0)
    assert driver.done(0, "first says 42") == [AskRoute(1)]
    driver.route(1)
    assert "first says 42" in driver.calls[1].messages[-1].content


# --- failures --------------------------------------------------------------------------------


def test_a_failed_call_is_tried_on_another_model(config: AppConfig) -> None:
    driver = start(config, Topology.IO)
    driver.route(0)
    assert driver.fail(0) == [AskRoute(0, frozenset({"small"}))]
    driver.route(0, Route("large", Strategy.FLASH))
    driver.done(0, "Answer: 42")
    assert driver.answer.status == "ok"
    assert driver.answer.models == ("large",)
    assert driver.answer.steps[0].attempts == 2


def test_when_every_model_failed_the_query_ends_with_an_error(config: AppConfig) -> None:
    driver = start(config, Topology.IO)
    for model in ("small", "middle", "large"):
        driver.route(0, Route(model, Strategy.FLASH))
        driver.fail(0)
    assert driver.answer.status == "error"
    assert driver.answer.error_code == "no_model_answered"


def test_no_retry_after_the_first_byte(config: AppConfig) -> None:
    driver = start(config, Topology.IO)
    driver.route(0)
    driver.fail(0, streamed=True)
    assert driver.answer.status == "error"


def test_no_retry_past_the_budget(config: AppConfig) -> None:
    driver = start(config, Topology.IO, deadline_kind=DeadlineKind.SOFT)
    driver.route(0)
    driver.now += 61.0
    driver.fail(0)
    assert driver.answer.status == "error"


def test_a_request_that_is_at_fault_is_not_tried_again(config: AppConfig) -> None:
    driver = start(config, Topology.IO)
    driver.route(0)
    driver.fail(0, FailureKind.REQUEST)
    assert driver.answer.error_code == "invalid_request"


def test_a_full_backlog_is_an_overload_with_its_retry_time(config: AppConfig) -> None:
    driver = start(config, Topology.IO, direct_model=None)
    for model in ("small", "middle", "large"):
        driver.route(0, Route(model, Strategy.FLASH))
        driver.fail(0, FailureKind.REFUSED, retry_after_s=7.0)
    assert driver.answer.error_code == "overloaded"
    assert driver.answer.retry_after_s == 7.0


def test_one_failed_agent_does_not_end_the_others(config: AppConfig) -> None:
    driver = start(config, Topology.IO, 3)
    for step in range(3):
        driver.route(step)
    driver.fail(0, FailureKind.REQUEST)
    driver.done(1, "Answer: 42")
    assert driver.done(2, "Answer: 42") == [AskRoute(3)]


def test_a_failed_decision_leaves_the_plurality_as_degraded(config: AppConfig) -> None:
    driver = start(config, Topology.IO, 3)
    for step in range(3):
        driver.route(step)
    for step, text in enumerate(("Answer: 41", "Answer: 42", "Answer: 42")):
        driver.done(step, text)
    driver.route(3)
    driver.fail(3, FailureKind.REQUEST)
    assert (driver.answer.status, driver.answer.canonical) == ("degraded", "42")
    assert not driver.answer.kept_budget


# --- deadlines -------------------------------------------------------------------------------


def test_a_hard_deadline_takes_the_best_so_far_and_cancels_the_rest(config: AppConfig) -> None:
    driver = start(config, Topology.CHAIN, 2)
    driver.route(0)
    driver.done(0, "Answer: 42")
    driver.route(1)
    running = driver.calls[1].call_id
    driver.handle(DeadlinePassed(), after_s=60.0)
    assert driver.cancelled == [running]
    assert (driver.answer.status, driver.answer.text) == ("degraded", "Answer: 42")
    assert driver.answer.error_code == "deadline_exceeded"
    assert driver.handle(CallDone(running, result("too late"))) == []


def test_a_hard_deadline_without_an_answer_is_an_error(config: AppConfig) -> None:
    driver = start(config, Topology.IO)
    driver.route(0)
    driver.handle(DeadlinePassed(), after_s=60.0)
    assert driver.answer.status == "error"
    assert driver.answer.error_code == "deadline_exceeded"


def test_what_was_streamed_before_the_deadline_is_the_answer(config: AppConfig) -> None:
    driver = start(config, Topology.IO)
    driver.route(0)
    driver.handle(DeadlinePassed("the first half"), after_s=60.0)
    answer = driver.answer
    assert (answer.status, answer.text, answer.finish_reason) == (
        "degraded",
        "the first half",
        "length",
    )


def test_a_soft_deadline_runs_on_uncapped_and_is_late(config: AppConfig) -> None:
    driver = start(config, Topology.IO, deadline_kind=DeadlineKind.SOFT, budget_s=0.5)
    driver.route(0, after_s=0.4)
    assert driver.calls[0].max_tokens == config.model("small").max_output_tokens
    assert driver.handle(DeadlinePassed(), after_s=10.0) == []
    driver.done(0, "Answer: 42")
    assert driver.answer.status == "late"
    assert not driver.answer.kept_budget
    assert driver.answer.budget_left_s < 0


def test_a_hard_deadline_caps_the_tokens_at_what_the_budget_allows(config: AppConfig) -> None:
    driver = start(config, Topology.IO, budget_s=3.0)
    driver.route(0, after_s=1.0)
    call = driver.calls[0]
    assert call.max_tokens * SPEED.tpot_s <= 2.0
    assert call.max_tokens > 150
    later = driver.state.max_tokens_at(call.call_id, driver.now + 1.0)
    assert 0 < later * SPEED.tpot_s <= 1.0
    assert driver.state.max_tokens_at(call.call_id, driver.now + 2.5) == 0


def test_an_engine_is_told_to_end_within_the_steps_share(config: AppConfig) -> None:
    driver = start(config, Topology.CHAIN, 2, budget_s=9.0)
    driver.route(0)
    limit_s = driver.state.time_limit_at(driver.calls[0].call_id, driver.now)
    assert limit_s is not None
    assert 2.0 < limit_s < 9.0
    soft = start(config, Topology.IO, deadline_kind=DeadlineKind.SOFT)
    soft.route(0)
    assert soft.state.time_limit_at(soft.calls[0].call_id, soft.now) is None


def test_steps_that_must_follow_get_their_share_of_the_budget(config: AppConfig) -> None:
    driver = start(config, Topology.CHAIN, 2, budget_s=6.0)
    driver.route(0)
    assert driver.calls[0].max_tokens * SPEED.tpot_s <= 2.01


def test_a_call_dropped_in_the_queue_leaves_its_siblings_running(config: AppConfig) -> None:
    driver = start(config, Topology.IO, 2)
    driver.route(0)
    driver.route(1)
    assert driver.handle(CallDropped(driver.calls[0].call_id)) == []
    driver.done(1, "Answer: 42")
    assert driver.answer.status == "degraded"
    assert driver.answer.steps[0].status == "dropped"


# --- cancel, wait, limits --------------------------------------------------------------------


def test_a_client_that_goes_away_cancels_every_call_and_child(config: AppConfig) -> None:
    driver = start(config, Topology.DEBATE, 3)
    for step in range(3):
        driver.route(step)
    ids = {c.call_id for c in driver.calls.values()}
    driver.handle(Cancelled())
    assert set(driver.cancelled) == ids
    assert driver.answer.error_code == "cancelled"
    assert driver.handle(TelemetryChanged()) == []


def test_a_step_without_a_model_is_parked_until_the_telemetry_changes(config: AppConfig) -> None:
    driver = start(config, Topology.IO)
    assert driver.route(0, Wait()) == []
    assert driver.handle(TelemetryChanged()) == [AskRoute(0)]
    assert driver.handle(TelemetryChanged()) == []


def test_calls_per_query_are_capped(config: AppConfig) -> None:
    tight = config.model_copy(
        update={"limits": config.limits.model_copy(update={"max_calls_per_query": 4})}
    )
    driver = Driver(tight, query())
    driver.plan(Topology.DEBATE, 6)
    assert driver.answer.error_code == "limit_exceeded"


def test_retries_count_towards_the_cap(config: AppConfig) -> None:
    tight = config.model_copy(
        update={"limits": config.limits.model_copy(update={"max_calls_per_query": 2})}
    )
    driver = Driver(tight, query())
    driver.plan(Topology.REFLECTION)
    driver.route(0)
    driver.fail(0)
    driver.route(0, Route("large", Strategy.FLASH))
    driver.done(0, "Answer: 42")
    driver.route(1)
    assert driver.answer.status == "degraded"
    assert driver.answer.error_code == "limit_exceeded"


def test_tokens_per_query_are_capped(config: AppConfig) -> None:
    tight = config.model_copy(
        update={"limits": config.limits.model_copy(update={"max_tokens_per_query": 100})}
    )
    driver = Driver(tight, query())
    driver.plan(Topology.IO)
    driver.route(0)
    assert driver.answer.error_code == "limit_exceeded"


def test_calls_that_run_at_once_share_the_cap_on_tokens(config: AppConfig) -> None:
    tight = config.model_copy(
        update={"limits": config.limits.model_copy(update={"max_tokens_per_query": 1600})}
    )
    driver = Driver(tight, query())
    driver.plan(Topology.IO, 4)
    for step in range(4):
        if driver.state.answer is None:
            driver.route(step)
    assert 1 <= len(driver.cancelled) < 4
    assert driver.answer.error_code == "limit_exceeded"


def test_a_prompt_longer_than_every_context_is_a_clear_error(config: AppConfig) -> None:
    driver = start(config, Topology.IO, question="word " * 20_000)
    for model in ("small", "middle", "large"):
        driver.route(0, Route(model, Strategy.FLASH))
    assert driver.answer.error_code == "context_length_exceeded"
    assert driver.calls == {}


def test_an_engine_that_finds_the_prompt_too_long_is_not_asked_again(config: AppConfig) -> None:
    driver = start(config, Topology.IO)
    driver.route(0)
    assert driver.fail(0, FailureKind.CONTEXT) == [AskRoute(0, frozenset({"small"}))]


def test_debate_prompts_are_fitted_at_every_step(config: AppConfig) -> None:
    driver = start(config, Topology.DEBATE, 3)
    for step in range(3):
        driver.route(step)
    for step in range(3):
        driver.done(step, "reasoning " * 6000 + "Answer: 42")
    for step in (3, 4, 5):
        driver.route(step)
        call = driver.calls[step]
        assert call.prompt_tokens + call.max_tokens <= config.model("small").context_tokens
        assert "Answer: 42" in call.messages[-1].content


# --- adaptive and direct ---------------------------------------------------------------------


def test_adaptive_asks_with_stop_open_after_two_answers(config: AppConfig) -> None:
    driver = start(config, Topology.ADAPTIVE, 4)
    assert [(c.step_id, c.can_stop) for c in driver.said] == [(0, False), (1, False)]
    driver.route(0)
    driver.route(1, Route("large", Strategy.FLASH))
    driver.done(0, "Answer: 42")
    assert driver.done(1, "Answer: 42") == [AskRoute(2, can_stop=True)]
    assert driver.state.agreement.unanimous
    driver.route(2, Stop())
    assert (driver.answer.status, driver.answer.canonical) == ("ok", "42")
    assert [s.status for s in driver.answer.steps] == ["ok", "ok", "stopped"]


def test_a_requested_cap_holds_for_every_answer_that_may_win_the_vote(config: AppConfig) -> None:
    driver = start(config, Topology.ADAPTIVE, 3, sampling=Sampling(max_tokens=5))
    driver.route(0)
    assert driver.calls[0].max_tokens == 5


def test_a_requested_cap_is_the_final_steps_alone_where_one_decides(config: AppConfig) -> None:
    driver = start(config, Topology.REFLECTION, 1, sampling=Sampling(max_tokens=5))
    driver.route(0)
    assert driver.calls[0].max_tokens > 5
    driver.done(0, "Answer: 42")
    driver.route(1)
    assert driver.calls[1].max_tokens == 5


def test_a_decision_that_breaks_after_its_first_byte_is_an_error(config: AppConfig) -> None:
    driver = start(config, Topology.IO, 2)
    for step in (0, 1):
        driver.route(step)
        driver.done(step, "Answer: 42")
    driver.route(2)
    driver.fail(2, streamed=True)
    assert driver.answer.status == "error"


def test_an_unknown_role_is_a_bad_plan(config: AppConfig) -> None:
    driver = Driver(config, query())
    with pytest.raises(PlanError, match="MathSolver"):
        driver.handle(Planned(Plan(Topology.IO, ("MathSolvr",), TaskKind.MATH), "test"))


def test_an_answer_of_a_fake_engine_is_marked_simulated(config: AppConfig) -> None:
    driver = start(config, Topology.IO)
    driver.route(0)
    driver.done(0, "Answer: 42")
    assert driver.answer.simulated


def test_adaptive_ends_with_the_plurality_without_a_decision_call(config: AppConfig) -> None:
    driver = start(config, Topology.ADAPTIVE, 3)
    driver.route(0)
    driver.route(1)
    driver.done(0, "Answer: 41")
    driver.done(1, "Answer: 42")
    assert not driver.state.agreement.unanimous
    driver.route(2)
    driver.done(2, "Answer: 42")
    assert (driver.answer.status, driver.answer.canonical) == ("ok", "42")


def test_adaptive_ties_go_to_the_stronger_prior(config: AppConfig) -> None:
    driver = start(config, Topology.ADAPTIVE, 2)
    driver.route(0)
    driver.route(1, Route("large", Strategy.DEEPTHINK))
    driver.done(0, "Answer: 41")
    driver.done(1, "Answer: 42")
    assert driver.answer.canonical == "42"


def test_stop_is_closed_while_there_is_no_answer(config: AppConfig) -> None:
    driver = start(config, Topology.ADAPTIVE, 3)
    driver.route(0)
    driver.route(1)
    driver.fail(0, FailureKind.REQUEST)
    driver.fail(1, FailureKind.REQUEST)
    assert driver.said == [AskRoute(2, can_stop=False)]


def test_a_model_called_by_name_gets_the_messages_unchanged(config: AppConfig) -> None:
    history = (Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", "Hi!"))
    driver = Driver(config, query(direct_model="middle", context=history, task=None))
    assert driver.said == [AskRoute(0)]
    driver.route(0, Route("middle", Strategy.DEEPTHINK))
    assert driver.calls[0].messages == (*history, Message("user", "What is 6 times 7?"))
    driver.fail(0)
    assert driver.answer.error_code == "no_model_answered"


def test_moving_every_time_by_an_hour_changes_nothing(config: AppConfig) -> None:
    def run(arrival_s: float) -> Answer:
        driver = Driver(config, query(), arrival_s)
        driver.plan(Topology.REFLECTION)
        driver.route(0, after_s=1.0)
        driver.done(0, "Answer: 41", after_s=2.0)
        driver.route(1, after_s=1.0)
        driver.done(1, "Answer: 42", after_s=2.0)
        return driver.answer

    assert run(1024.0) == run(1024.0 + 4096.0)


# --- what the caller asked of the answer -----------------------------------------------------

AS_JSON = '{"type": "json_object"}'


def direct(config: AppConfig, n: int, **sampling: Any) -> Driver:
    driver = Driver(config, query(direct_model="middle", n=n, sampling=Sampling(**sampling)))
    for step in range(n):
        driver.route(step, Route("middle", Strategy.DEEPTHINK))
    return driver


def test_n_answers_of_a_model_are_n_calls_with_seeds_that_follow(config: AppConfig) -> None:
    driver = direct(config, 3, seed=7)
    assert [driver.calls[i].sampling.seed for i in range(3)] == [7, 8, 9]
    assert [(driver.calls[i].choice, driver.calls[i].final) for i in range(3)] == [
        (0, True), (1, True), (2, True)]  # fmt: skip
    for step in (2, 0, 1):
        driver.done(step, f"text {step}")
    answer = driver.answer
    assert (answer.status, answer.text) == ("ok", "text 0")
    assert [(c.index, c.text) for c in answer.choices] == [
        (0, "text 0"), (1, "text 1"), (2, "text 2")]  # fmt: skip
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (30, 15)


def test_of_n_answers_those_that_came_are_given(config: AppConfig) -> None:
    driver = direct(config, 2)
    driver.done(1, "whole")
    driver.fail(0)
    assert driver.answer.status == "degraded"
    assert [(c.index, c.text, c.finish_reason) for c in driver.answer.choices] == [
        (1, "whole", "stop")]  # fmt: skip
    late = direct(config, 2)
    late.done(1, "whole")
    late.handle(DeadlinePassed(streamed="par"), after_s=60.0)
    assert (late.answer.status, late.answer.choices[0].index) == ("degraded", 1)
    cut = direct(config, 2)
    cut.handle(DeadlinePassed(streamed="par"), after_s=60.0)
    assert [(c.text, c.finish_reason) for c in cut.answer.choices] == [("par", "length")]


def test_a_request_that_the_engine_refuses_is_the_callers_fault(config: AppConfig) -> None:
    driver = direct(config, 2)
    driver.fail(0, FailureKind.REQUEST)
    driver.fail(1, FailureKind.REQUEST)
    assert (driver.answer.status, driver.answer.error_code) == ("error", "invalid_request")
    assert (driver.answer.finish_reason, driver.answer.choices) == (None, ())


def test_format_and_stop_words_are_for_the_step_that_answers(config: AppConfig) -> None:
    asked = Sampling(response_format=AS_JSON, stop=("END",), temperature=0.5)
    driver = start(config, Topology.IO, 2, sampling=asked)
    for step in (0, 1):
        driver.route(step)
        sampling = driver.calls[step].sampling
        assert (sampling.response_format, sampling.stop, sampling.temperature) == (None, (), 0.5)
        assert "JSON" not in driver.calls[step].messages[0].content
        driver.done(step, "Answer: 42")
    driver.route(2)
    assert driver.calls[2].sampling == asked
    assert "JSON" in driver.calls[2].messages[0].content
    assert "Answer:" not in driver.calls[2].messages[0].content.split("JSON")[0][-200:]
    driver.done(2, '{"b": 1, "a": 2}')
    assert driver.answer.canonical == '{"a":2,"b":1}'


def test_without_its_format_no_text_is_an_answer(config: AppConfig) -> None:
    driver = start(config, Topology.IO, 2, sampling=Sampling(response_format=AS_JSON))
    for step in (0, 1):
        driver.route(step)
        driver.done(step, "Answer: 42")
    driver.route(2)
    driver.handle(DeadlinePassed(), after_s=60.0)
    assert (driver.answer.status, driver.answer.error_code) == ("error", "deadline_exceeded")


def test_voted_answers_carry_the_format_and_agree_as_json(config: AppConfig) -> None:
    driver = start(config, Topology.ADAPTIVE, 3, sampling=Sampling(response_format=AS_JSON))
    driver.route(0)
    driver.route(1)
    assert all(driver.calls[i].sampling.response_format == AS_JSON for i in (0, 1))
    driver.done(0, '{"a": 1, "b": 2}')
    driver.done(1, '{"b":2,"a":1}')
    assert driver.state.agreement.unanimous


def test_a_degraded_answer_ends_with_length(config: AppConfig) -> None:
    driver = start(config, Topology.REFLECTION)
    driver.route(0)
    driver.done(0, "Answer: 41")
    driver.route(1)
    driver.handle(DeadlinePassed(), after_s=60.0)
    assert (driver.answer.status, driver.answer.text) == ("degraded", "Answer: 41")
    assert (driver.answer.finish_reason, len(driver.answer.choices)) == ("length", 1)


def test_a_raw_prompt_goes_as_it_is(config: AppConfig) -> None:
    driver = Driver(config, query(direct_model="middle", raw_prompt=True, question="Once"))
    driver.route(0, Route("middle", Strategy.DEEPTHINK))
    assert (driver.calls[0].prompt, driver.calls[0].messages) == ("Once", ())
