"""Programs in answers: which of them are to be run, and on what. Nothing is run here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.errors import ConfigError
from runtime.prompts import CHECKS_OWN
from runtime.roles import role
from runtime.types import Plan, Step, StepKind, TaskKind


@dataclass(frozen=True, slots=True)
class Program:
    """The program in ``text``, to be run on the tests in ``question``; without a question as a
    script, for what it prints. ``limit_s`` is all the time that this may take."""

    text: str
    question: str | None
    limit_s: float


def program_of(
    plan: Plan, steps: Sequence[Step], step: Step, question: str, text: str, limit_s: float
) -> Program | None:
    """What of ``text``, the answer of ``step``, is to be run.

    An answer to a task on code always: its behaviour is what it is compared by. Another one where
    a later call of the same agent is shown what came of it.
    """
    if step.kind is StepKind.DIRECT:
        return None
    if plan.task is TaskKind.CODE:
        return Program(text, question, limit_s)
    checked = any(later.own == step.step_id and later.kind in CHECKS_OWN for later in steps)
    if checked and _has_tool(plan.task, step.role):
        return Program(text, None, limit_s)
    return None


def _has_tool(task: TaskKind, name: str) -> bool:
    try:
        return role(task, name).tool is not None
    except ConfigError:  # a step of no agent
        return False
