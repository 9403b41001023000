from __future__ import annotations

import pytest

from runtime import roles
from runtime.errors import ConfigError
from runtime.roles import DECIDER, Role, register_role, role, roles_for
from runtime.topology import DECIDER_ROLE
from runtime.types import TaskKind

TWO_CALLS = {
    (TaskKind.MATH, "ProgrammingExpert"),
    (TaskKind.MATH, "SoftwareDeveloper"),
    (TaskKind.CODE, "BugFixer"),
    (TaskKind.CODE, "PlanSolver"),
    (TaskKind.CODE, "ReflectProgrammer"),
    (TaskKind.CODE, "TestAnalyst"),
    (TaskKind.KNOWLEDGE, "Reflector"),
    (TaskKind.KNOWLEDGE, "WikiSearcher"),
}


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch):
    copy = {task: dict(known) for task, known in roles._roles.items()}
    monkeypatch.setattr(roles, "_roles", copy)


def test_the_paper_has_26_roles():
    counts = [len(roles_for(task)) for task in (TaskKind.MATH, TaskKind.CODE, TaskKind.KNOWLEDGE)]
    assert counts == [12, 7, 7]


@pytest.mark.parametrize(
    ("task", "name"),
    [
        (TaskKind.MATH, "MathSolver"),
        (TaskKind.CODE, "ProgrammingExpert"),
        (TaskKind.KNOWLEDGE, "KnowledgeExpert"),
        (TaskKind.GENERAL, "Assistant"),
    ],
)
def test_the_first_role_is_the_default(task, name):
    assert roles_for(task)[0].name == name


def test_roles_with_a_second_call():
    found = {(r.task, r.name) for task in TaskKind for r in roles_for(task) if r.follow_up}
    assert found == TWO_CALLS


def test_prompts_are_distinct_and_of_their_task():
    every = [r for task in TaskKind for r in roles_for(task)] + [DECIDER]
    assert len({r.prompt for r in every}) == len(every)
    assert all(r.task is task for task in TaskKind for r in roles_for(task))


def test_one_name_may_serve_two_tasks():
    math, code = (role(t, "ProgrammingExpert") for t in (TaskKind.MATH, TaskKind.CODE))
    assert math.prompt != code.prompt
    assert (math.follow_up is None, code.follow_up is None) == (False, True)


@pytest.mark.parametrize(
    ("name", "near"),
    [("mathsolver", "MathSolver"), ("Mathematican", "Mathematician"), ("???", "")],
)
def test_unknown_role_names_the_nearest(name, near):
    with pytest.raises(ConfigError, match=f"nearest known one is '{near}"):
        role(TaskKind.MATH, name)


def test_a_role_of_another_task_is_unknown():
    with pytest.raises(ConfigError):
        role(TaskKind.MATH, "Historian")


def test_registered_role_is_found_and_comes_last():
    new = Role("Poet", TaskKind.GENERAL, "You write verse.")
    register_role(new)
    assert role(TaskKind.GENERAL, "Poet") is new
    assert roles_for(TaskKind.GENERAL)[-1] is new


@pytest.mark.parametrize(
    ("name", "prompt"), [("Writer", "Again."), ("Decider", "Me too."), ("", "x"), ("New", " ")]
)
def test_bad_registrations_change_nothing(name, prompt):
    before = roles_for(TaskKind.GENERAL)
    with pytest.raises(ConfigError):
        register_role(Role(name, TaskKind.GENERAL, prompt))
    assert roles_for(TaskKind.GENERAL) == before


def test_the_decider_is_no_agent():
    assert DECIDER.name == DECIDER_ROLE
    assert all(r.name != DECIDER.name for task in TaskKind for r in roles_for(task))
