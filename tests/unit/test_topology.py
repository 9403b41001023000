"""Topologies as graphs of steps."""

from __future__ import annotations

import pytest

from runtime.errors import PlanError
from runtime.topology import (
    MOA,
    MOA_3,
    SWARM_DECIDE,
    TOPOLOGIES,
    VOTE,
    build_steps,
    path_lengths,
    topologies_for,
)
from runtime.types import Plan, Step, StepKind, TaskKind, Topology


def steps_of(topology: str, agents: int, follow_ups: tuple[bool, ...] = ()) -> tuple[Step, ...]:
    roles = tuple(f"r{i}" for i in range(agents))
    return build_steps(Plan(topology, roles, TaskKind.MATH), follow_ups or (False,) * agents)


@pytest.mark.parametrize(
    ("topology", "agents", "calls"),
    [
        (Topology.IO, 1, 1),
        (Topology.IO, 4, 5),
        (Topology.COT, 3, 4),
        (Topology.CHAIN, 1, 1),
        (Topology.CHAIN, 3, 4),
        (Topology.FULL_CONNECTED, 6, 7),
        (Topology.REFLECTION, 1, 2),
        (Topology.REFLECTION, 2, 5),
        (Topology.DEBATE, 1, 1),
        (Topology.DEBATE, 3, 7),
        (Topology.ADAPTIVE, 1, 1),
        (Topology.ADAPTIVE, 6, 6),
    ],
)
def test_number_of_calls(topology: str, agents: int, calls: int) -> None:
    assert len(steps_of(topology, agents)) == calls


@pytest.mark.parametrize("topology", list(TOPOLOGIES))
@pytest.mark.parametrize("agents", range(1, 7))
def test_every_step_follows_what_it_depends_on(topology: str, agents: int) -> None:
    steps = steps_of(topology, agents, (True,) * agents)
    for index, step in enumerate(steps):
        assert step.step_id == index
        assert all(i < index for i in (*step.depends_on, *step.after))
        assert step.own is None or step.own in step.depends_on
    decisions = [s for s in steps if s.kind is StepKind.DECIDE]
    decided = not TOPOLOGIES[topology].votes and topology not in (MOA, MOA_3)
    assert len(decisions) == (agents > 1 and decided)


def test_chain_sees_its_predecessor_only_and_full_connected_all() -> None:
    assert steps_of(Topology.CHAIN, 3)[2].depends_on == (1,)
    assert steps_of(Topology.FULL_CONNECTED, 3)[2].depends_on == (0, 1)


def test_debate_has_a_barrier_and_shows_all_of_round_one() -> None:
    second = steps_of(Topology.DEBATE, 3)[3:6]
    assert [s.depends_on for s in second] == [(0, 1, 2)] * 3
    assert [s.own for s in second] == [0, 1, 2]
    assert {s.round for s in second} == {2}


def test_reflection_revises_without_a_barrier() -> None:
    steps = steps_of(Topology.REFLECTION, 2)
    assert [(s.kind, s.depends_on) for s in steps[:4]] == [
        (StepKind.ANSWER, ()),
        (StepKind.REVISE, (0,)),
        (StepKind.ANSWER, ()),
        (StepKind.REVISE, (2,)),
    ]


def test_adaptive_starts_two_then_one_at_a_time_without_showing_answers() -> None:
    steps = steps_of(Topology.ADAPTIVE, 4)
    assert [s.after for s in steps] == [(), (), (0, 1), (0, 1, 2)]
    assert all(not s.depends_on for s in steps)


def test_a_role_with_a_second_call_is_followed_up_and_its_check_is_what_others_see() -> None:
    steps = steps_of(Topology.CHAIN, 2, (True, False))
    assert [s.kind for s in steps] == [
        StepKind.ANSWER,
        StepKind.FOLLOW_UP,
        StepKind.ANSWER,
        StepKind.DECIDE,
    ]
    assert steps[2].depends_on == (1,)
    assert steps[3].depends_on == (1, 2)


def test_path_lengths_count_what_must_follow() -> None:
    assert path_lengths(steps_of(Topology.DEBATE, 2)) == (2, 2, 1, 1, 0)
    assert path_lengths(steps_of(Topology.IO, 1)) == (0,)
    assert path_lengths(steps_of(Topology.CHAIN, 3)) == (3, 2, 1, 0)


def test_general_text_is_neither_voted_on_nor_debated() -> None:
    general = set(topologies_for(TaskKind.GENERAL))
    assert general == {"IO", "Chain", "Reflection", MOA, MOA_3, SWARM_DECIDE}
    assert not any(TOPOLOGIES[name].votes for name in general)


@pytest.mark.parametrize(("topology", "layers"), [(MOA, 2), (MOA_3, 3)])
@pytest.mark.parametrize("agents", [1, 5])
def test_each_layer_of_moa_reads_all_of_the_one_before(
    topology: str, layers: int, agents: int
) -> None:
    steps = steps_of(topology, agents)
    assert len(steps) == (layers - 1) * agents + 1
    first = tuple(range(agents))
    for step in steps[agents : 2 * agents]:
        assert (step.kind, step.depends_on) == (StepKind.SYNTHESIZE, first)
    assert (steps[-1].agent, steps[-1].round) == (-1, layers)
    assert path_lengths(steps)[0] == layers - 1


def test_votes_are_independent_answers() -> None:
    assert all(not step.depends_on and not step.after for step in steps_of(VOTE, 4))


@pytest.mark.parametrize(
    ("topology", "agents", "task", "message"),
    [
        ("Ring", 1, TaskKind.MATH, "unknown topology"),
        (Topology.DEBATE, 2, TaskKind.GENERAL, "does not serve"),
        (Topology.IO, 7, TaskKind.MATH, "1 to 6 agents"),
        (Topology.IO, 0, TaskKind.MATH, "1 to 6 agents"),
    ],
)
def test_bad_plans_are_refused(topology: str, agents: int, task: TaskKind, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        build_steps(Plan(topology, ("r",) * agents, task), (False,) * agents)
