"""Text of a given length that says nothing, in the place of questions and of reasoning.

Prompts then grow in a simulation as they do live. Every line but the last is the same, so that
``count_tokens``, which remembers lines, costs next to nothing; it counts a token per word.
"""

from __future__ import annotations

_LINE = " ".join(["sim"] * 63) + "\n"
_LINE_TOKENS = 64
_LONGEST = 2048
_TEXT = _LINE * _LONGEST

_END = "\n\n"


def filler(tokens: int) -> str:
    """A text of about ``tokens`` tokens; it has no blank line and states no answer."""
    lines, words = divmod(max(1, tokens), _LINE_TOKENS)
    if lines >= _LONGEST:
        raise ValueError(f"no text is longer than {_LONGEST * _LINE_TOKENS} tokens")
    return _TEXT[: lines * len(_LINE) + max(0, 4 * words - 1)].rstrip("\n")


def padded(core: str, tokens: int) -> str:
    """``core`` after as much filler as makes ``tokens`` of it; ``core_of`` undoes it."""
    return f"{filler(tokens - len(core) // 2)}{_END}{core}"


def core_of(text: str) -> str:
    """What ``padded`` was given; a text without filler is its own core."""
    if not text.startswith("sim"):
        return text
    return text.partition(_END)[2]
