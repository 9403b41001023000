"""What a grader says of an answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grade:
    """``extracted`` is the answer that was found in the text, ``None`` if there was none."""

    correct: bool
    extracted: str | None
    reason: str


RIGHT = "right"
WRONG = "not the reference answer"
NOTHING = "no answer in the text"
