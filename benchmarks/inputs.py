"""What benchmarks share: questions that were never asked before."""

from __future__ import annotations

import itertools

_numbers = itertools.count()


def question() -> str:
    """Some sixty words of arithmetic."""
    number = next(_numbers)
    return f"Shop {number} sells pens at {number % 17} dollars each. How much do 8 pens cost? " * 3
