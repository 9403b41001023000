"""GSM-Hard: a number, with a tolerance."""

from __future__ import annotations

from fractions import Fraction

from runtime.answers import canonical
from runtime.datasets import Item
from runtime.grading.math import same_math
from runtime.grading.result import NOTHING, RIGHT, WRONG, Grade
from runtime.numerals import clean, number_of
from runtime.types import TaskKind

ABSOLUTE = Fraction(1, 1000)
"""As the authors of GSM-Hard compare (PAL, section 4); of what is smaller than 1, its share."""

RELATIVE = Fraction(1, 10**12)
"""For the noise of the floating point numbers that the large references are."""


def grade_number(item: Item, text: str) -> Grade:
    """Compare numbers; an expression that is none yet is compared as mathematics."""
    found = canonical(text, TaskKind.MATH)
    if found is None:
        return Grade(False, None, NOTHING)
    number = number_of(clean(found))
    wanted = Fraction(item.answer)
    right = same_math(item.answer, found) if number is None else close(number, wanted)
    return Grade(right, found, RIGHT if right else WRONG)


def close(number: Fraction, wanted: Fraction) -> bool:
    """Within ``ABSOLUTE`` (times ``wanted`` where that is below 1) or ``RELATIVE``."""
    size = abs(wanted)
    tolerance = max(ABSOLUTE * min(Fraction(1), size), RELATIVE * size)
    return bool(abs(number - wanted) <= tolerance)
