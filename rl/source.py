"""Where queries come from while training: simulations, or a pool that serves.

The env runner asks ``due`` for decisions, answers them with ``decide`` and takes what ended. It
does not know whether time is virtual.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from runtime.policy import PlanView, StepView
from runtime.types import Answer, Decision, Plan, TaskKind

QueryKey = tuple[int, int, str]
"""Lane, sweep, query id."""


@dataclass(frozen=True, slots=True)
class Due:
    """A decision that is due: about which query, and how long after its arrival."""

    key: QueryKey
    view: PlanView | StepView
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """A query's outcome; ``solved`` says whether the answer is right, late or not."""

    key: QueryKey
    task: TaskKind
    dataset: str
    answer: Answer
    solved: bool


class QuerySource(Protocol):
    """Queries that want decisions."""

    def due(self) -> list[Due]:
        """The decisions that are due, at most one per lane; may wait for one. Empty: none will
        ever be due again."""
        ...

    def decide(self, due: Due, decision: Plan | Decision) -> None:
        """Answer one of them."""
        ...

    def finished(self) -> list[Finished]:
        """What ended since it was last asked."""
        ...
