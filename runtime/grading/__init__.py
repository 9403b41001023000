"""Graders of answers: ``grade(item, text)``. What each compares is said in its own file."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.datasets import Item
from runtime.grading.choice import grade_choice
from runtime.grading.code import grade_code
from runtime.grading.math import grade_math
from runtime.grading.numeric import grade_number
from runtime.grading.result import Grade
from runtime.types import TaskKind

__all__ = ["Grade", "grade", "grade_many"]


def grade(item: Item, text: str) -> Grade:
    """Whether ``text``, the whole of what a model wrote, answers ``item``.

    Blocks; may be called from any thread.

    Raises:
        SandboxUnavailable: ``item`` asks for code, which cannot be run safely here.
        ValueError: ``item`` is of a kind that has no right answer.
    """
    return grade_many([(item, text)])[0]


def grade_many(pairs: Sequence[tuple[Item, str]], workers: int | None = None) -> list[Grade]:
    """``grade`` for many; programs run ``workers`` at a time, by default one per processor."""
    code = [pair for pair in pairs if pair[0].task is TaskKind.CODE]
    graded = iter(grade_code(code, workers=workers))
    return [
        next(graded) if item.task is TaskKind.CODE else _grade_text(item, text)
        for item, text in pairs
    ]


def _grade_text(item: Item, text: str) -> Grade:
    match item.task:
        case TaskKind.MATH if item.dataset == "gsm_hard":
            return grade_number(item, text)
        case TaskKind.MATH:
            return grade_math(item, text)
        case TaskKind.KNOWLEDGE:
            return grade_choice(item, text)
    raise ValueError(f"{item.id}: {item.task} has no right answer that could be compared")
