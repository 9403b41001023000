"""Multiple choice, up to ten options: the letter that the text states, or whose text it is."""

from __future__ import annotations

from runtime.answers import canonical
from runtime.datasets import Item
from runtime.grading.result import NOTHING, RIGHT, WRONG, Grade
from runtime.types import TaskKind


def grade_choice(item: Item, text: str) -> Grade:
    """Compare letters; without choices, the few words that are the answer."""
    found = canonical(text, TaskKind.KNOWLEDGE, item.choices)
    if found is None:
        return Grade(False, None, NOTHING)
    wanted = canonical(f"Answer: {item.answer}", TaskKind.KNOWLEDGE, item.choices)
    return Grade(found == wanted, found, RIGHT if found == wanted else WRONG)
