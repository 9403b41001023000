"""GPTSwarm: realising, freezing and learning graphs, and the plans and steps that come of them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from random import Random

import pytest

from runtime.config import AppConfig
from runtime.errors import ConfigError, PlanError
from runtime.policies.gptswarm import (
    SHIPPED,
    edge_space,
    freeze,
    read_artefact,
    realise,
    swarm_plan,
)
from runtime.policy import make_policy
from runtime.topology import SWARM, SWARM_DECIDE, build_steps
from runtime.types import AgentGraph, Plan, Step, StepKind, TaskKind

MODELS = ("a", "b", "c")


def chances(*edges: tuple[int, int], agents: int = 3) -> list[float]:
    """Probabilities over a half for ``edges`` (to ``agents`` is to the decision), else below."""
    return [0.9 if edge in edges else 0.1 for edge in edge_space(agents)]


def steps_of(graph: AgentGraph | None, task: TaskKind = TaskKind.MATH) -> tuple[Step, ...]:
    topology = SWARM_DECIDE if task is TaskKind.CODE else SWARM
    agents = 3
    plan = Plan(topology, ("r",) * agents, task, graph=graph)
    return build_steps(plan, (False,) * agents)


def test_every_pair_in_both_directions_and_every_agent_to_the_decision() -> None:
    assert len(edge_space(5)) == 25
    assert set(edge_space(2)) == {(0, 1), (1, 0), (0, 2), (1, 2)}


def test_an_edge_that_closes_a_cycle_is_skipped_and_not_asked_about() -> None:
    graph, asked = realise(3, lambda _: True)
    space = edge_space(3)
    assert graph.edges == ((0, 1), (0, 2), (1, 2))
    assert {space[i] for i in asked} == {(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)}
    assert graph.final == (0, 1, 2)


def test_no_choice_of_edges_makes_a_cycle() -> None:
    for taken in itertools.product((False, True), repeat=len(edge_space(3))):
        graph, _ = realise(3, lambda index, taken=taken: taken[index])
        reach = {i: {i} for i in range(3)}
        for _ in range(3):
            for source, to in graph.edges:
                reach[source] |= reach[to]
        assert all(source not in reach[to] for source, to in graph.edges)


def test_a_half_is_no_edge() -> None:
    assert freeze(MODELS, [0.5] * 9).graph == AgentGraph((), (0,))


def test_freezing_drops_what_does_not_reach_the_decision() -> None:
    swarm = freeze(MODELS, chances((0, 1), (2, 3), (0, 2)))
    assert swarm.models == ("a", "c")
    assert swarm.graph == AgentGraph(((0, 1),), (1,))


def test_without_an_edge_to_the_decision_the_likeliest_one_is_kept() -> None:
    row = chances((1, 0))
    row[-2] = 0.4
    swarm = freeze(MODELS, row)
    assert swarm.models == ("b",)
    assert swarm.graph.final == (0,)


# --- its steps -------------------------------------------------------------------------------


def test_agents_read_along_the_edges_and_only_final_ones_vote() -> None:
    steps = steps_of(AgentGraph(((2, 0), (2, 1)), (0, 1)))
    assert [(s.agent, s.depends_on, s.votes) for s in steps] == [
        (2, (), False),
        (0, (0,), True),
        (1, (0,), True),
    ]


def test_one_call_per_incoming_answer_multiplies_the_calls() -> None:
    graph = AgentGraph(((0, 1), (0, 2), (1, 2)), (0, 1, 2), split=True)
    steps = steps_of(graph)
    assert [(s.agent, s.depends_on) for s in steps] == [
        (0, ()),
        (1, (0,)),
        (2, (0,)),
        (5, (1,)),
    ]


def test_a_call_shows_all_incoming_answers_by_default() -> None:
    steps = steps_of(AgentGraph(((0, 1), (0, 2), (1, 2)), (2,)))
    assert steps[2].depends_on == (0, 1)


def test_code_is_decided_by_one_call_over_the_final_answers() -> None:
    steps = steps_of(AgentGraph(((0, 1),), (1, 2)), TaskKind.CODE)
    assert [s.kind for s in steps].count(StepKind.DECIDE) == 1
    assert {steps[i].agent for i in steps[-1].depends_on} == {1, 2}


def test_a_graph_of_nobody_is_everyone_forward() -> None:
    assert [s.depends_on for s in steps_of(None)] == [(), (0,), (0, 1)]


@pytest.mark.parametrize(
    "graph",
    [
        AgentGraph(((0, 1), (1, 0)), (0, 1, 2)),
        AgentGraph((), ()),
        AgentGraph(((0, 1),), (1,)),
        AgentGraph(((3, 1), (0, 1), (2, 1)), (1,)),
        AgentGraph((), (0, 1, 2, 3)),
    ],
)
def test_graphs_that_cannot_be_run_are_plan_errors(graph: AgentGraph) -> None:
    with pytest.raises(PlanError, match="graph"):
        steps_of(graph)


# --- the artefact ----------------------------------------------------------------------------


def write(path: Path, **changes: object) -> Path:
    content = {"format": 1, "models": MODELS, "edges": {"math": chances((0, 3), (1, 3))}}
    path.write_text(json.dumps({**content, **changes}))
    return path


@pytest.mark.parametrize(
    "changes", [{"format": 2}, {"edges": {"math": [0.5]}}, {"edges": {"math": [2.0] * 9}}]
)
def test_a_broken_artefact_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="artefact"):
        read_artefact(write(tmp_path / "x.json", **changes))


def test_a_missing_or_garbled_artefact_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_artefact(tmp_path / "none.json")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot read"):
        read_artefact(tmp_path / "x.json")


def with_options(config: AppConfig, **options: object) -> AppConfig:
    settings = config.policy.model_copy(update={"name": "gptswarm", "options": options})
    return config.model_copy(update={"policy": settings})


def test_an_artefact_of_another_pool_is_refused(config: AppConfig, tmp_path: Path) -> None:
    path = write(tmp_path / "x.json")
    with pytest.raises(ConfigError, match="for the pool"):
        make_policy(with_options(config, artefact=str(path)))


def test_the_data_set_picks_the_graph(config: AppConfig, tmp_path: Path) -> None:
    names = ["small", "middle", "large"]
    edges = {"math": chances((2, 3)), "gsm_hard": chances((0, 3))}
    path = write(tmp_path / "x.json", models=names, edges=edges)
    policies = [
        make_policy(with_options(config, artefact=str(path), dataset=dataset))
        for dataset in ("math", "gsm_hard")
    ]
    swarms = [policy._swarms[TaskKind.MATH].models for policy in policies]
    assert swarms == [("large",), ("small",)]
    with pytest.raises(ConfigError, match="no graph for 'aime'"):
        make_policy(with_options(config, artefact=str(path), dataset="aime"))


def test_the_shipped_graphs_are_of_the_five_data_sets() -> None:
    content = read_artefact(SHIPPED)
    assert set(content["edges"]) == {"math", "gsm_hard", "mbpp", "humaneval", "mmlu_pro"}
    for row in content["edges"].values():
        swarm = freeze(tuple(content["models"]), row)
        for task in (TaskKind.MATH, TaskKind.CODE):
            plan = swarm_plan(swarm, task)
            assert build_steps(plan, (False,) * plan.num_agents)


# --- learning --------------------------------------------------------------------------------


def test_the_expected_surrogate_gradient_is_that_of_the_expected_utility() -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    from rl.baselines.gptswarm import surrogate

    logits = torch.tensor([0.3, -0.4, 0.2, 0.7], requires_grad=True)

    def probability(taken: tuple[bool, ...]) -> torch.Tensor:
        _, asked = realise(2, lambda index: taken[index])
        signs = torch.tensor([1.0 if taken[i] else -1.0 for i in asked])
        return torch.nn.functional.logsigmoid(signs * logits[list(asked)]).sum()

    seen: dict[tuple[AgentGraph, tuple[int, ...]], tuple[torch.Tensor, float]] = {}
    for taken in itertools.product((False, True), repeat=4):
        graph, asked = realise(2, lambda index, taken=taken: taken[index])
        utility = len(graph.edges) * 0.4 + (0 in graph.final) * 0.5
        seen[graph, asked] = (probability(taken), utility)
    assert sum(p.exp().item() for p, _ in seen.values()) == pytest.approx(1.0)
    expected = sum(p.exp() * u for p, u in seen.values())
    (exact,) = torch.autograd.grad(expected, logits, retain_graph=True)
    estimate = torch.zeros(4)
    for log_p, utility in seen.values():
        (gradient,) = torch.autograd.grad(
            surrogate(log_p[None], [utility], 0.37), logits, retain_graph=True
        )
        estimate -= log_p.exp().detach() * gradient
    assert torch.allclose(estimate, exact, atol=1e-6)


def test_samples_have_the_frequency_that_their_log_probability_says() -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    from rl.baselines.gptswarm import sample_graph

    logits, rng = torch.tensor([0.5, 0.1, -0.3, 0.2]), Random(0)
    counts: dict[AgentGraph, int] = {}
    said: dict[AgentGraph, set[float]] = {}
    for _ in range(4000):
        graph, log_p = sample_graph(logits, rng)
        counts[graph] = counts.get(graph, 0) + 1
        said.setdefault(graph, set()).add(round(log_p.exp().item(), 6))
    for graph, probabilities in said.items():
        assert len(probabilities) == 1
        assert counts[graph] / 4000 == pytest.approx(probabilities.pop(), abs=0.02)


def test_learning_finds_the_one_agent_that_knows() -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    from rl.baselines.gptswarm import SwarmTraining, train_edges

    def utility(_: int, graph: AgentGraph) -> float:
        return float(graph.final == (1,))

    learned = train_edges(3, 10, utility, SwarmTraining())
    swarm = freeze(MODELS, learned.probabilities)
    assert [swarm.models[i] for i in swarm.graph.final] == ["b"]
    assert sum(learned.utilities[-20:]) / 20 > 0.8 > 0.4 > sum(learned.utilities[:20]) / 20
