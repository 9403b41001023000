"""The ensembles, and what every load-blind baseline shares, through the real state machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from rl.baselines.rollout import IdlePool, Played, engine_s
from rl.baselines.select import best_aggregator, single_best
from runtime.config import AppConfig, parse_config
from runtime.errors import ConfigError
from runtime.load import LocalLoad
from runtime.policies.masrouter import SHIPPED, MasRouter
from runtime.policies.masrouter_net import load
from runtime.policies.single import Validated, choose_best
from runtime.policy import PlanView, make_policy
from runtime.sim.outcomes import Outcome, Seen, SimItem
from runtime.topology import MOA
from runtime.types import (
    Call,
    DeadlineKind,
    Plan,
    Query,
    Sampling,
    Step,
    StepKind,
    Strategy,
    TaskKind,
)
from tests.conftest import app_args, model_args

ITEM = SimItem("i", "math", TaskKind.MATH, 10)


class Script:
    """Answers by model, ``Answer: 42`` is right; keeps every call that it was asked about."""

    def __init__(self, tokens: int = 100, **answers: str) -> None:
        self.answers, self.tokens = answers, tokens
        self.calls: list[tuple[Call, Step, Sequence[Seen]]] = []

    def draw(self, item: SimItem, call: Call, step: Step, seen: Sequence[Seen]) -> Outcome:
        self.calls.append((call, step, seen))
        return Outcome(self.answers.get(call.model, "Answer: 42"), self.tokens)

    def solved(self, item: SimItem, text: str) -> bool:
        return "42" in text


def named(config: AppConfig, name: str, **options: Any) -> AppConfig:
    settings = config.policy.model_copy(update={"name": name, "options": options})
    return config.model_copy(update={"policy": settings})


def play(config: AppConfig, script: Script, task: TaskKind = TaskKind.MATH, **query: Any) -> Played:
    asked = Query("q1", "What is 6 times 7?", 500.0, task, deadline_kind=DeadlineKind.SOFT, **query)
    return IdlePool(config, script, make_policy(config)).play(asked, ITEM)


# --- Mixture-of-Agents -----------------------------------------------------------------------


@pytest.mark.parametrize(("layers", "calls"), [(2, 4), (3, 7)])
def test_moa_asks_every_model_in_every_layer_and_the_aggregator_once(
    config: AppConfig, layers: int, calls: int
) -> None:
    script = Script()
    played = play(named(config, "moa", layers=layers, aggregator="middle"), script)
    assert played.num_calls == len(script.calls) == calls
    by_model = Counter(call.model for call, *_ in script.calls)
    assert by_model == {"small": layers - 1, "middle": layers, "large": layers - 1}
    last, step, seen = script.calls[-1]
    assert (last.model, step.kind, len(seen)) == ("middle", StepKind.SYNTHESIZE, 3)


def test_moa_samples_at_its_temperature_and_cap_unless_the_caller_says_otherwise(
    config: AppConfig,
) -> None:
    wide = config.model_copy(
        update={"models": tuple(m.model_copy(update={"context_tokens": 16384,
                                                     "max_output_tokens": 4096})
                                for m in config.models)}
    )  # fmt: skip
    script = Script()
    play(named(wide, "moa"), script)
    assert {call.sampling.temperature for call, *_ in script.calls} == {0.7}
    assert {call.max_tokens for call, *_ in script.calls} == {2048}
    asked = Script()
    play(named(wide, "moa"), asked, sampling=Sampling(temperature=0.1, max_tokens=50))
    assert {call.sampling.temperature for call, *_ in asked.calls} == {0.1}
    assert [call.max_tokens for call, *_ in asked.calls] == [2048, 2048, 2048, 50]


def test_moa_tells_the_aggregator_to_synthesise_and_shows_every_reference(
    config: AppConfig,
) -> None:
    script = Script(small="Answer: 41", middle="Answer: 40")
    play(named(config, "moa"), script)
    system, user = script.calls[-1][0].messages
    assert "Make one answer out of them" in system.content
    assert all(f"Answer: {n}" in user.content for n in (40, 41, 42))
    assert "Make one answer" not in script.calls[0][0].messages[0].content


def test_moa_goes_on_without_a_reference_that_was_cut(config: AppConfig) -> None:
    """An answer beyond its cap is void; the synthesis still sees the step, and still runs."""
    script = Script(tokens=10_000)
    played = play(named(config, "moa"), script)
    assert played.num_calls == 4
    assert not played.solved


# --- self-consistency ------------------------------------------------------------------------


def test_self_consistency_takes_the_plurality_of_one_model(config: AppConfig) -> None:
    texts = iter(["Answer: 41", "Answer: 42", "Answer: 43", "Answer: 42"])

    class Noisy(Script):
        def draw(self, item: SimItem, call: Call, step: Step, seen: Sequence[Seen]) -> Outcome:
            super().draw(item, call, step, seen)
            return Outcome(next(texts), 10)

    script = Noisy()
    played = play(named(config, "self_consistency", k=4, model="small"), script)
    assert played.solved
    assert played.answer.canonical == "42"
    assert [call.model for call, *_ in script.calls] == ["small"] * 4
    assert all(not seen for *_, seen in script.calls)


def test_self_consistency_of_programs_lets_the_model_choose(config: AppConfig) -> None:
    script = Script()
    play(named(config, "self_consistency", k=3), script, TaskKind.CODE)
    assert [step.kind for _, step, _ in script.calls] == [StepKind.ANSWER] * 3 + [StepKind.DECIDE]
    assert {call.model for call, *_ in script.calls} == {"large"}


# --- GPTSwarm and MasRouter in a pool of their own ----------------------------------------------


def paper_pool(**changes: Any) -> AppConfig:
    sizes = {
        "deepseek-r1-distill-qwen-32b": 0.012,
        "mistral-small-24b": 0.008,
        "qwen2.5-coder-14b": 0.006,
        "llama-3.1-8b": 0.003,
        "llama-3.2-3b": 0.002,
    }
    models = [
        model_args(name, context_tokens=16384, max_output_tokens=2048,
                   speed={"prefill_tokens_per_s": 20000, "token_s": token_s})
        for name, token_s in sizes.items()
    ]  # fmt: skip
    return parse_config(app_args(*models, embedding={"backend": "minilm"}, **changes))


def test_gptswarm_votes_among_the_agents_of_its_graph() -> None:
    script = Script()
    played = play(named(paper_pool(), "gptswarm", dataset="math"), script)
    assert played.solved
    assert played.answer.topology == "Swarm"
    assert played.num_calls == len(played.answer.roles)
    assert any(seen for *_, seen in script.calls)


def test_gptswarm_decides_code_with_its_decider() -> None:
    script = Script()
    config = named(paper_pool(), "gptswarm", decider="llama-3.2-3b")
    play(config, script, TaskKind.CODE)
    last, step, _ = script.calls[-1]
    assert (last.model, step.kind) == ("llama-3.2-3b", StepKind.DECIDE)


def test_gptswarm_in_its_original_mode_makes_at_least_as_many_calls() -> None:
    counts = [
        play(named(paper_pool(), "gptswarm", dataset="math", split_calls=split), Script()).num_calls
        for split in (False, True)
    ]
    assert counts[0] < counts[1] <= 16


def plans(config: AppConfig, embeddings: np.ndarray, task: TaskKind) -> list[Plan]:
    policy = make_policy(config)
    pool = LocalLoad(config).view(0.0)
    return [
        policy.plan(PlanView(
            query=Query(f"q{i}", "?", 100.0), task=task, remaining_s=100.0, pool=pool,
            candidates=pool.models, prompt_tokens=100, embedding=row, rng=Random(i),
        ))
        for i, row in enumerate(embeddings)
    ]  # fmt: skip


def unit_rows(count: int) -> np.ndarray:
    rows = np.random.default_rng(0).normal(size=(count, 384)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_masrouter_concentrates_on_its_favourite_and_cannot_leave_the_others() -> None:
    """The observation of the paper's figure 1, for any queries: the shares are the router's own."""
    made = plans(named(paper_pool(), "masrouter"), unit_rows(400), TaskKind.MATH)
    counts = Counter(model for plan in made for model in plan.models)
    shares = sorted((n / counts.total() for n in counts.values()), reverse=True)
    assert len(shares) == 5
    assert 0.4 < shares[0] < 0.66
    assert shares[0] > 3 * shares[1]


def test_masrouter_gives_the_decision_to_the_model_chosen_most_often() -> None:
    config = named(paper_pool(), "masrouter")
    for number in range(20):
        script = Script()
        query = Query(f"q{number}", "?", 500.0, TaskKind.MATH, deadline_kind=DeadlineKind.SOFT)
        IdlePool(config, script, make_policy(config)).play(
            query, ITEM, embedding=unit_rows(20)[number].tolist()
        )
        by_agent = {step.agent: call.model for call, step, _ in script.calls if step.agent >= 0}
        last, step, _ = script.calls[-1]
        if step.kind is StepKind.DECIDE:
            votes = Counter(by_agent[i] for i in sorted(by_agent))
            assert votes[last.model] == max(votes.values())


def test_masrouter_guesses_the_task_only_from_embeddings_that_it_knows() -> None:
    rows = unit_rows(60)
    known = {p.task for p in plans(named(paper_pool(), "masrouter"), rows, TaskKind.CODE)}
    assert len(known) > 1
    lexical = paper_pool().model_copy(update={"embedding": parse_config(app_args()).embedding})
    hashed = plans(named(lexical, "masrouter"), rows, TaskKind.CODE)
    assert {p.task for p in hashed} == {TaskKind.CODE}
    general = plans(named(paper_pool(), "masrouter"), rows, TaskKind.GENERAL)
    assert {p.task for p in general} == {TaskKind.GENERAL}
    assert {p.topology for p in general} <= {"IO", "Chain", "Reflection"}


def test_masrouter_matches_another_pool_by_rank_of_cost(config: AppConfig) -> None:
    policy = make_policy(named(config, "masrouter"))
    assert isinstance(policy, MasRouter)
    assert load(SHIPPED).models[0] == "deepseek-r1-distill-qwen-32b"
    assert policy._models == ("large", "large", "middle", "small", "small")


# --- what is shared --------------------------------------------------------------------------


def test_a_committed_model_that_is_away_is_stood_in_for_by_the_strongest(
    config: AppConfig,
) -> None:
    small = config.models[0].model_copy(update={"context_tokens": 600})
    tight = config.model_copy(update={"models": (small, *config.models[1:])})
    script = Script()
    query = Query("q1", "word " * 900, 500.0, TaskKind.MATH, deadline_kind=DeadlineKind.SOFT)
    named_config = named(tight, "self_consistency", k=2, model="small")
    IdlePool(named_config, script, make_policy(named_config)).play(query, ITEM)
    assert {call.model for call, *_ in script.calls} == {"large"}


def test_the_best_pair_is_the_one_most_often_right_in_time_then_the_cheapest() -> None:
    results = [
        Validated("large", Strategy.DEEPTHINK, 0.6, 3.0),
        Validated("middle", Strategy.CONCISE, 0.7, 2.0),
        Validated("small", Strategy.CONCISE, 0.7, 1.0),
    ]
    assert choose_best(results).model == "small"
    with pytest.raises(ValueError, match="empty"):
        choose_best([])


class Skill(Script):
    """``middle`` answers right alone; a synthesis is right only where ``small`` writes it."""

    def draw(self, item: SimItem, call: Call, step: Step, seen: Sequence[Seen]) -> Outcome:
        able = "small" if step.kind is StepKind.SYNTHESIZE else "middle"
        deep = call.strategy is Strategy.DEEPTHINK
        return Outcome("Answer: 42" if call.model == able else "Answer: 1", 400 if deep else 100)


def test_validation_finds_the_pair_and_the_aggregator(config: AppConfig) -> None:
    pair = single_best(config, [Skill()], [ITEM], budget_s=100.0)
    assert (pair.model, pair.strategy) == ("middle", Strategy.FLASH)
    assert pair.correct_on_time == 1.0
    assert best_aggregator(config, [Skill()], [ITEM], budget_s=100.0).model == "small"
    late = single_best(config, [Skill()], [ITEM], budget_s=0.9)
    assert late.correct_on_time == 0.0


# --- the idle pool ---------------------------------------------------------------------------


def test_an_idle_pool_counts_the_time_of_the_critical_path_and_all_work(
    config: AppConfig,
) -> None:
    """10 ms + prompt per token at ``large``: the slowest reference, then the aggregator."""
    config = config.model_copy(update={"models": config.models[:2]})
    script = Script(tokens=100)
    played = play(named(config, "moa", aggregator="small"), script)
    calls = {(call.model, step.kind): call for call, step, _ in script.calls}
    slow = calls["middle", StepKind.ANSWER].prompt_tokens / 10_000 + 100 * 0.010
    last = calls["small", StepKind.SYNTHESIZE].prompt_tokens / 10_000 + 100 * 0.005
    assert played.latency_s == pytest.approx(slow + last)
    work = sum(engine_s(config.model("small"), c.prompt_tokens, 100)
               for (model, _), c in calls.items() if model == "small")  # fmt: skip
    assert played.work_s["small"] == pytest.approx(work)
    prompts = sum(c.prompt_tokens for (model, _), c in calls.items() if model == "middle")
    assert played.dollars == pytest.approx(0.1e-6 * (prompts + 100))


def test_an_answer_beyond_its_cap_is_void_and_takes_the_cap(config: AppConfig) -> None:
    script = Script(tokens=10_000)
    played = play(named(config, "fixed", model="small"), script)
    assert not played.solved
    assert played.answer.text == ""
    assert played.answer.usage.completion_tokens == script.calls[0][0].max_tokens


def test_a_given_plan_is_played_instead_of_the_policys(config: AppConfig) -> None:
    script = Script()
    pool = IdlePool(config, script, make_policy(named(config, "moa")))
    query = Query("q1", "?", 500.0, TaskKind.MATH, deadline_kind=DeadlineKind.SOFT)
    plan = Plan("IO", ("MathSolver",), TaskKind.MATH, ("middle",))
    assert pool.play(query, ITEM, plan).answer.models == ("middle",)
    with pytest.raises(ConfigError):
        make_policy(config, MOA)
