r"""Canonical answers: what a text says is the answer, in a form in which equal answers are equal.

Used to see whether agents agree (``Adaptive``, the plurality) and to grade. A text states its
answer in one of these ways, and the last one in it counts: a line ``Answer: ...`` (or GSM8K's
``#### ...``), a complete ``\boxed{...}``, or a sentence "the answer is ..." in its first or last
line. What only looks like an answer in the middle of the reasoning is never taken.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from string import ascii_uppercase
from typing import Literal

from runtime.numerals import (
    IN_LINE,
    MAX_ANSWER_CHARS,
    clean,
    fraction_of,
    math_form,
    number_form,
    plain_number,
)
from runtime.types import TaskKind

MAX_SHORT_WORDS = 12

# --- where a text states its answer ---------------------------------------------------------

_MARKUP = "*_` \t\r"
_BOX = re.compile(r"\\f?boxed\s*\{")
_LINE = re.compile(
    r"^[ \t>#*_`-]*(?:the[ ]+)?(?:final[ ]+|correct[ ]+|my[ ]+)*answer(?:[ ]+is)?[*_` ]*:(.*)$"
    r"|^[ \t]*####[ \t](.*)$",
    re.IGNORECASE | re.MULTILINE,
)
_SENTENCE = re.compile(
    r"(?:^[\s>#*_`-]*|[.!?:]\s+|\b(?:so|thus|hence|therefore),?\s+)(?:the\s+|my\s+)?"
    r"(?:final\s+|correct\s+|best\s+)*answer[*_`]*(?:\s+(?:is|must be|would be)\b|(?=\s*:))",
    re.IGNORECASE,
)
_PLACEHOLDER = re.compile(r"<[A-Za-z][A-Za-z ]*>")
_FENCE = re.compile(r"^([ \t]*)(`{3,})([^`\r\n]*)\r?$")

# --- letters and words ----------------------------------------------------------------------

_LETTER = re.compile(
    r"(?:(?i:option|choice|letter)\s+)?[\[({*_`\"']*([A-Za-z])([\])}*_`\"']*)(.*)", re.DOTALL
)
_AFTER_LETTER = re.compile(r"[.,;)](?:\s|$)|:|\s+[-–—(]")
_SECOND_LETTER = re.compile(r"[\s.)*]*(?:,|/|&|and\b|or\b)\s*\(?[A-Z]\b")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_KEPT_MARKS = re.compile(r"(?<!\w)-(?=\d)|(?<=\d)[./](?=\d)|[#%&]|(\W|_)")


def canonical(text: str, task: TaskKind, choices: Sequence[str] = ()) -> str | None:
    """The answer that ``text`` states, or ``None`` where it states none.

    Math: a number in normal form (``math_form``), else its text; without a stated
    answer, the last number of the last line. Knowledge: the letter of a choice; without choices a
    letter where one stands alone, else the few words after ``Answer:``, folded. Code and general:
    always ``None``, since programs agree by what they do and free text not at all.
    """
    match task:
        case TaskKind.MATH:
            return _math(text)
        case TaskKind.KNOWLEDGE:
            return _knowledge(text, choices)
        case _:
            return None


def plurality(answers: Sequence[tuple[str | None, float]]) -> int | None:
    """Index of the answer that wins the vote; the items are (canonical answer, prior).

    Most votes win; ties go to the class with the greatest single prior, then to the earliest.
    Of the winning class the member with the greatest prior is returned, the earliest of equals.
    ``None`` answers do not vote; ``None`` is returned when nobody votes.
    """
    classes: dict[str, list[int]] = {}
    for index, (answer, _) in enumerate(answers):
        if answer is not None:
            classes.setdefault(answer, []).append(index)
    if not classes:
        return None

    def best(members: list[int]) -> int:
        return max(members, key=lambda i: answers[i][1])

    # Both `max` keep the first of equals, and classes stand in order of their earliest member.
    return best(max(classes.values(), key=lambda m: (len(m), answers[best(m)][1])))


def boxed(text: str) -> str | None:
    r"""The content of the last complete ``\boxed{...}``, as it is written; ``None`` of none."""
    found = [_boxed(text, match.end()) for match in _BOX.finditer(text)]
    return next((content for content in reversed(found) if content), None)


def extract_code(text: str) -> str:
    """The last of ``code_blocks``, else ``text``."""
    blocks = code_blocks(text)
    return blocks[-1] if blocks else text


def code_blocks(text: str) -> list[str]:
    """The contents of the complete fenced blocks; without any, of an unclosed last one.

    A content is exact, without the fences and the line end before the closing one; only the
    indentation of an indented fence is taken off its lines.
    """
    found: list[str] = []
    opened: re.Match[str] | None = None
    lines: list[str] = []
    for line in text.split("\n"):
        fence = _FENCE.match(line)
        if opened is None:
            opened, lines = fence, []
        elif fence and not fence[3].strip() and len(fence[2]) >= len(opened[2]):
            found.append("\n".join(lines))
            opened = None
        else:
            indent = len(line) - len(line.lstrip(" \t"))
            lines.append(line[min(indent, len(opened[1])) :])
    if not found and opened is not None:
        # A closing fence is sometimes put behind the last line of code.
        found.append("\n".join(lines).removesuffix(opened[2]))
    return found


@lru_cache(maxsize=256)  # a query's answers are read again when they are compared and graded
def _math(text: str) -> str | None:
    for content, explicit in _stated(text):
        if explicit:
            return None if _PLACEHOLDER.fullmatch(content) else _math_content(content)
        if plain_number(_first_sentence(content)) is not None or re.search(r"[\\$]", content):
            return _math_content(content)
    last = _line(text, -1)
    if not any(map(str.isdigit, last)):
        return None
    found = list(IN_LINE.finditer(clean(last)))
    value = fraction_of(found[-1]) if found else None
    return None if value is None else number_form(value)


def _math_content(content: str) -> str | None:
    if plain_number(content) is None:
        content = _first_sentence(content)
    return math_form(content)


def _knowledge(text: str, choices: Sequence[str]) -> str | None:
    for raw, explicit in _stated(text):
        content = _plain(raw)
        if _PLACEHOLDER.fullmatch(content):
            return None
        found = _option(content, choices)
        if found is None and explicit and not choices:
            short = _short(content)
            found = short and (_option(short, ()) or short)
        if found is not None or explicit:
            return found
    last = _plain(_line(text, -1))
    if len(last) > 1 and choices and last == _plain(text.strip()):
        return _option(last, choices)
    return _option(last, choices) if _is_letter(last) else None


def _is_letter(content: str) -> bool:
    return re.fullmatch(r"[(\[]?[A-Za-z][)\]. ]*", content) is not None


def _option(content: str, choices: Sequence[str]) -> str | None:
    """The letter that ``content`` names, or whose whole text it is (which may begin "(a)")."""
    by_text = None if _is_letter(content) else _choice(content, choices)
    return by_text or _letter(content, choices)


def _letter(content: str, choices: Sequence[str]) -> str | None:
    match = _LETTER.match(content)
    if match is None or _SECOND_LETTER.match(match[3]):
        return None
    letter, close, rest = match.groups()
    alone = not rest.strip(" .,:;)*_`")
    marked = _AFTER_LETTER.match(rest) or ")" in close or "]" in close
    if not (alone or (letter.isupper() and marked)):
        return None
    known = ascii_uppercase[: len(choices)] if choices else ascii_uppercase
    return letter.upper() if letter.upper() in known else None


def _choice(content: str, choices: Sequence[str]) -> str | None:
    """The letter of the one choice whose whole text ``content`` is."""
    wanted = _folded(content)
    found = [
        letter
        for letter, choice in zip(ascii_uppercase, choices, strict=False)
        if _folded(_plain(choice)) == wanted
    ]
    return found[0] if wanted and len(found) == 1 else None


def _folded(text: str) -> str:
    text = " ".join(text.casefold().split()).strip("\"'. ")
    return re.sub(r"^(?:a|an|the) ", "", text)


def _short(content: str) -> str | None:
    """Folded words without articles and punctuation; ``None`` if there are too many."""
    form = content
    for _ in range(8):
        new = re.sub(r"(?<=\d),(?=\d{3})", "", form.casefold().replace("−", "-"))
        new = _KEPT_MARKS.sub(_blank_punctuation, new)
        new = " ".join(_ARTICLES.sub(" ", new).split())
        if new == form:
            words = len(form.split())
            return form if 0 < words <= MAX_SHORT_WORDS and len(form) <= MAX_ANSWER_CHARS else None
        form = new
    return None


def _blank_punctuation(match: re.Match[str]) -> str:
    mark = match[1]
    return " " if mark and unicodedata.category(mark).startswith("P") else match[0]


def _plain(content: str) -> str:
    content = re.sub(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}", r"\1", content)
    return " ".join(content.replace("$", "").split()).strip(_MARKUP)


def _stated(text: str) -> Iterator[tuple[str, bool]]:
    """Stated answers, the last first; ``True`` with a line or box, ``False`` with a sentence."""
    boxes = _BOX.finditer(text) if "\\" in text else ()
    found = [(m.start(), m, True) for m in (*_answer_lines(text), *boxes)]
    for start, line in ((0, _line(text, 0)), (text.rstrip().rfind("\n") + 1, _line(text, -1))):
        if not line.isascii() or "answer" in line.lower():
            found += [(start, m, False) for m in list(_SENTENCE.finditer(line))[-1:]]
    found.sort(key=lambda item: item[0], reverse=True)
    for _, match, explicit in found:
        if match.re is _BOX:
            content = _boxed(text, match.end())
        elif match.re is _LINE:
            content = (match[1] or match[2] or "").strip(_MARKUP)
            content = content or _line(text[match.end() :], 0)
        else:
            content = match.string[match.end() :].strip(_MARKUP + ":")
        yield content.strip(_MARKUP), explicit


def _answer_lines(text: str) -> Iterator[re.Match[str]]:
    """The matches of ``_LINE``, one per line at most. Long texts hold few lines with its words."""
    if not text.isascii():  # there are other ways to write their letters
        yield from _LINE.finditer(text)
        return
    low = text.lower()
    for word in ("answer", "####"):
        at = low.find(word)
        while at >= 0:
            if match := _LINE.match(text, low.rfind("\n", 0, at) + 1):
                yield match
            end = low.find("\n", at)
            at = low.find(word, end) if end >= 0 else -1


def _boxed(text: str, start: int) -> str:
    """What stands up to the closing brace; empty when the text ends before it."""
    depth = 1
    for brace in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[start : brace.start()]
    return ""


def _first_sentence(content: str) -> str:
    return re.split(r"\.\s", content, maxsplit=1)[0].strip(_MARKUP)


def _line(text: str, index: Literal[0, -1]) -> str:
    """The first or last line of those that are not blank, stripped; empty if there is none."""
    # Long answers are not split as a whole: a line that others know as several ends in "\n", too.
    text = text.strip()
    piece = text.partition("\n")[0] if index == 0 else text.rpartition("\n")[2]
    lines = piece.splitlines()
    return lines[index].strip(_MARKUP) if lines else ""
