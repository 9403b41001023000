"""Answers as symbols: 0 is right, 1 and up are the wrong ones; and the texts that carry them.

``runtime.answers.canonical`` keeps the texts of two symbols apart for math (numbers) and knowledge
(letters among the item's choices, so there are never more wrong answers than there are). Programs
have no canonical form without execution: their symbol stands in the text alone.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from string import ascii_uppercase

from runtime.answers import canonical
from runtime.sim.outcomes import SimItem
from runtime.sim.uniforms import uniforms
from runtime.types import TaskKind

RIGHT = 0

_LETTERS = tuple(ascii_uppercase)
_MANY = 1_000_000
_NO_CHOICES = 10
_CARRIED = re.compile(r"(?:program|reply)_(\d+)")
_PREFIX = "Answer: "


def num_wrong(item: SimItem) -> int:
    """How many wrong answers there are; a very large number where anything may be written."""
    return _num_letters(item) - 1 if item.task is TaskKind.KNOWLEDGE else _MANY


def encode(item: SimItem, symbol: int) -> str:
    """The text of a symbol."""
    match item.task:
        case TaskKind.MATH:
            return f"{_PREFIX}{symbol + 1}"
        case TaskKind.KNOWLEDGE:
            letters = _num_letters(item)
            right = _right_letter(item.item_id, letters)
            return _PREFIX + _LETTERS[(right + symbol) % letters]
        case TaskKind.CODE:
            return f"```python\nprogram_{symbol}()\n```"
        case TaskKind.GENERAL:
            return f"reply_{symbol}"


def decode(item: SimItem, text: str) -> int | None:
    """The symbol in ``text``, which may have been padded; ``None`` where it answers nothing."""
    match item.task:
        case TaskKind.MATH:
            number = _stated(item, text)
            return int(number) - 1 if number is not None and number.isdecimal() else None
        case TaskKind.KNOWLEDGE:
            letter, letters = _stated(item, text), _num_letters(item)
            if letter is None or letter not in _LETTERS[:letters]:
                return None
            return (_LETTERS.index(letter) - _right_letter(item.item_id, letters)) % letters
        case _:
            found = _CARRIED.search(text)
            return None if found is None else int(found[1])


def _stated(item: SimItem, text: str) -> str | None:
    """What stands after ``Answer:``; texts of ``encode`` take the short way."""
    if text.startswith(_PREFIX) and "\n" not in text:
        return text[len(_PREFIX) :]
    return canonical(text, item.task, item.choices)


def attractor_weight(pairwise: float, wrongs: int) -> float:
    """Weight of wrong answer 1 such that two wrong answers are the same with ``pairwise``.

    Answer 1 is written with weight w and each of the other n - 1 with an even part of 1 - w, so
    that w**2 + (1 - w)**2 / (n - 1) = pairwise. Few wrong answers coincide more often anyway: they
    are then written evenly, which is the least that is possible.
    """
    if wrongs <= 1:
        return 1.0
    rest = 1.0 / (wrongs - 1)
    root = rest**2 - (1 + rest) * (rest - pairwise)
    return (rest + math.sqrt(root)) / (1 + rest) if root > 0 else 1.0 / wrongs


def wrong_symbol(weight: float, wrongs: int, uniform: float) -> int:
    """The wrong answer at ``uniform``: 1 with ``weight``, else one of the others, evenly."""
    if uniform < weight or wrongs <= 1:
        return 1
    return 2 + min(int((uniform - weight) / (1 - weight) * (wrongs - 1)), wrongs - 2)


def _num_letters(item: SimItem) -> int:
    return len(item.choices) or _NO_CHOICES


@lru_cache(maxsize=8192)
def _right_letter(item_id: str, letters: int) -> int:
    """Which letter is right: a place that says nothing of the real item."""
    return int(uniforms(f"letter/{item_id}")[0] * letters)
