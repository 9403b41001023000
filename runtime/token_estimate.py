"""How many tokens a text has, without a tokenizer: an estimate from above."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import lru_cache

_WORDS = re.compile(r"[A-Z]?[a-z]+")
_CAPITALS = re.compile(r"[A-Z]{2,}(?![a-z])")
_SPACES = re.compile(r" {3,}")
_MERGED_SPACE = re.compile(r"(?<=\S) (?=[^\s\d])")


_LONG_LINE = 1000


@lru_cache(maxsize=64)
def count_tokens(text: str) -> int:
    """An estimate of the tokens of ``text``, meant to lie above that of usual BPE tokenizers.

    It starts from the UTF-8 bytes, which bound byte-level BPE, so digits, punctuation and line
    ends cost 1 each, CJK 3 and emoji 4. Less is charged for: words, a token per 3 letters or part
    of it; capitals, 2 tokens per 3; a run of 3 spaces or more, 2 and one per 16; and a single
    space before anything but a digit, nothing. Strings of random letters can cost more.
    """
    lines = text.split("\n")
    counts = (_known_line(ln) if len(ln) <= _LONG_LINE else _line_tokens(ln) for ln in lines)
    return len(lines) - 1 + sum(counts)


def _line_tokens(line: str) -> int:
    """The tokens of a text without a line end; nothing of the estimate crosses one."""
    size = len(line) if line.isascii() else len(line.encode("utf-8", "surrogatepass"))
    size -= _saved(_WORDS, line, lambda n: (n + 2) // 3)
    size -= _saved(_CAPITALS, line, lambda n: (2 * n + 2) // 3)
    size -= _saved(_SPACES, line, lambda n: 2 + n // 16)
    return size - len(_MERGED_SPACE.findall(line))


# Instructions, role prompts and quoted answers are made of lines that come again and again.
_known_line = lru_cache(maxsize=1024)(_line_tokens)


def _saved(pattern: re.Pattern[str], text: str, tokens: Callable[[int], int]) -> int:
    lengths = Counter(map(len, pattern.findall(text)))
    return sum((n - tokens(n)) * times for n, times in lengths.items())
