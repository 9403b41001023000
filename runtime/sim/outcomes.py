"""What the simulator asks of a model of answers: what a call writes, and whether that is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from runtime.types import Call, Step, Strategy, TaskKind


@dataclass(frozen=True, slots=True)
class SimItem:
    """One benchmark item without its text.

    ``question_tokens`` is the question alone; ``choices`` stand in for the options of a
    multiple-choice item: as many, and about as long.
    """

    item_id: str
    dataset: str
    task: TaskKind
    question_tokens: int
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """An earlier answer that a step was shown."""

    step: Step
    model: str
    strategy: Strategy
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a model would write if nothing cut it.

    ``text`` is the short core of the answer (at most some 40 characters), from which
    ``runtime.answers.canonical`` gives the symbol of the answer; it names no real content. A
    caller that cuts the answer before ``completion_tokens`` has no text: unfinished is wrong.
    """

    text: str
    completion_tokens: int


class OutcomeModel(Protocol):
    """Answers and grades.

    ``draw`` depends only on the model's seed, the item, the call (model, strategy, query, step,
    attempt) and what was seen, never on the order of calls: policies that make the same call see
    the same answer.
    """

    def draw(self, item: SimItem, call: Call, step: Step, seen: Sequence[Seen]) -> Outcome:
        """The answer of ``call``; ``seen`` are the earlier answers in its prompt."""
        ...

    def solved(self, item: SimItem, text: str) -> bool:
        """Whether ``text``, the final text of an ``Answer``, is right."""
        ...

    def behaviour(self, item: SimItem, text: str) -> str | None:
        """Which tests in the question the program in ``text`` passes, as ``ProgramRun.tests``.

        Asked where the config says ``code_execution: sandbox``.
        """
        ...
