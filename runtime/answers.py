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
from fractions import Fraction
from string import ascii_uppercase

from runtime.types import TaskKind

MAX_ANSWER_CHARS = 300
MAX_SHORT_WORDS = 12
_MAX_EXPONENT = 100
_MAX_DECIMALS = 30

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

# --- mathematics ----------------------------------------------------------------------------

_LATEX = [
    (re.compile(pattern), new)
    for pattern, new in (
        (r"\s+", " "),
        (r"[−–﹣－]", "-"),
        ("π", r"\\pi "),
        ("∞", r"\\infty "),
        ("×", r"\\times "),
        ("·", r"\\cdot "),
        (r"\\(?:left|right|big|Big|displaystyle)(?![A-Za-z])", ""),
        (r"\{,\}", ","),
        (r"(?<=\d),?\\[,!](?=\d{3})", ","),
        (r"(?<!\\)\\(?:[,;: ]|q?quad(?![A-Za-z]))|~", " "),
        (r"\\!|\\[()\[\]]|\\?\$|\^\s*\{?\s*\\circ\s*\}?|°|\\degree|\\?%", ""),
        (r"\\[dtc]frac", r"\\frac"),
        (r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}", r" \1 "),
        (
            r"(?<!\^)\\frac\s*(?:\{\s*([-+]?[\d.,]+)\s*\}|(\d))\s*(?:\{\s*([\d.,]+)\s*\}|(\d))",
            r" \1\2/\3\4",
        ),
        (r"\\sqrt\s*(\d)", r"\\sqrt{\1}"),
        (r"\s+", " "),
        (r"^ | $", ""),
        (r"^([-+]) ", r"\1"),
        # "x = 5" and "2 + 3 = 5" state what is on the right.
        (r"^(?:[A-Za-z](?:_\{?\w\}?)? ?|[-+*/^(){}.,\d ]+)= ?(?=[^=<>]+$)", ""),
    )
]
_NUM = r"(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
_BODY = (
    rf"(?:(?:(?P<whole>\d+) +)?(?P<top>{_NUM}) ?/ ?(?P<bottom>{_NUM})|(?P<number>{_NUM})"
    r"(?:[eE](?P<exp>[-+]?\d+)| ?(?:\\times|\\cdot|[x*]) ?10 ?\^ ?\{? ?(?P<power>[-+]?\d+) ?\}?)?)"
)
_VALUE = re.compile(rf"(?P<sign>[-+]?) ?{_BODY}")
_IN_LINE = re.compile(rf"(?P<sign>(?<![\w)\]}}.])[-+]|)(?<![\w.]){_BODY}(?!\d|(?:st|nd|rd|th)\b)")
_LEAD = re.compile(
    r"(?:(?:approximately|approx\.?|about|around|roughly|exactly|\\approx|≈|=|€|£|¥) ?)+",
    re.IGNORECASE,
)
_WORDS_BEFORE = re.compile(r"(?:(?:[A-Za-z][A-Za-z']+|[aA])[,:]? )+(?=[-+\d.€£¥])")
_UNIT = r"(?:[A-Za-z]{2,}|[mgshL])(?: ?\^ ?\{?\d\}?|[²³])?"
_UNITS = re.compile(
    r"(?:(?:cm|mm|km|kg|mg|m[lL]|ft|mph|km/h|lbs?|hrs?|mins?|kWh)(?:\^\{?\d\}?|[²³])?)?"
    rf"(?: {_UNIT}(?: ?/ ?{_UNIT})?)*(?: \([^()]*[A-Za-z]{{2}}[^()]*\))?"
)
_NOT_A_UNIT = re.compile(
    r"\b(?:and|or|to|not?|than|least|most|between|pi|sqrt|log|ln|sin|cos|tan|plus|minus|negative|"
    r"times|over|mod|base|dozen|half|squared|cubed|factorial|infinity|at|if|when|since|because|but)"
    r"\b",
    re.IGNORECASE,
)
_SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9}


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


def extract_code(text: str) -> str:
    """The content of the last complete fenced block, else of an unclosed last one, else ``text``.

    The content is exact, without the fences and the line end before the closing one; only the
    indentation of an indented fence is taken off its lines.
    """
    found: str | None = None
    opened: re.Match[str] | None = None
    lines: list[str] = []
    for line in text.split("\n"):
        fence = _FENCE.match(line)
        if opened is None:
            opened, lines = fence, []
        elif fence and not fence[3].strip() and len(fence[2]) >= len(opened[2]):
            found, opened = "\n".join(lines), None
        else:
            indent = len(line) - len(line.lstrip(" \t"))
            lines.append(line[min(indent, len(opened[1])) :])
    if found is None and opened is not None:
        # A closing fence is sometimes put behind the last line of code.
        found = "\n".join(lines).removesuffix(opened[2])
    return text if found is None else found


def _math(text: str) -> str | None:
    for content, explicit in _stated(text):
        if explicit:
            return None if _PLACEHOLDER.fullmatch(content) else _math_content(content)
        if _value(_clean(_first_sentence(content))) is not None or re.search(r"[\\$]", content):
            return _math_content(content)
    found = list(_IN_LINE.finditer(_clean(_line(text, -1))))
    value = _fraction(found[-1]) if found else None
    return None if value is None else _number_form(value)


def _math_content(content: str) -> str | None:
    if _value(_clean(content)) is None:
        content = _first_sentence(content)
    return math_form(content)


def math_form(answer: str) -> str | None:
    """Normal form of a bare answer, such as a reference answer; ``None`` if empty or too long.

    A number becomes an exact decimal, or a reduced fraction where that has no end. Thousands
    separators, currency, percent and degree signs, units, and "x =" in front do not count, so 50%
    is 50. Anything else becomes its LaTeX without layout, words folded. The form of a form is
    itself.
    """
    form = answer
    for _ in range(8):
        if len(form) > MAX_ANSWER_CHARS:
            return None
        cleaned = _clean(form)
        value = _value(cleaned)
        new = _symbols(cleaned) if value is None else _number_form(value)
        if new == form:
            return form or None
        form = new
    return None


def _clean(text: str) -> str:
    for pattern, new in _LATEX:
        text = pattern.sub(new, text)
    return text.rstrip(" .,;:")


def _value(text: str) -> Fraction | None:
    """The number that ``text`` is, apart from words around it and a unit behind it."""
    words = _WORDS_BEFORE.match(text)
    if words and _NOT_A_UNIT.search(words[0]):
        return None
    text = text[words.end() :] if words else text
    lead = _LEAD.match(text)
    match = _VALUE.match(text, lead.end() if lead else 0)
    if match is None or not _UNITS.fullmatch(text, match.end()):
        return None
    unit = text[match.end() :].partition("(")[0]
    value = _fraction(match)
    if value is None or _NOT_A_UNIT.search(unit):
        return None
    return value * _SCALES.get((unit.split() or [""])[0].lower(), 1)


def _fraction(match: re.Match[str]) -> Fraction | None:
    def number(text: str) -> Fraction:
        return Fraction(text.replace(",", ""))

    if len(match[0]) > MAX_ANSWER_CHARS:
        return None
    if match["number"]:
        exponent = int(match["exp"] or match["power"] or 0)
        if abs(exponent) > _MAX_EXPONENT:
            return None
        value = number(match["number"]) * Fraction(10) ** exponent
    else:
        bottom = number(match["bottom"])
        if not bottom:
            return None
        value = number(match["whole"] or "0") + number(match["top"]) / bottom
    return -value if match["sign"] == "-" else value


def _number_form(value: Fraction) -> str:
    scaled, decimals = value, 0
    while scaled.denominator > 1 and decimals < _MAX_DECIMALS:
        scaled, decimals = scaled * 10, decimals + 1
    if scaled.denominator > 1 or not decimals:
        return str(value)
    digits = str(abs(scaled.numerator)).zfill(decimals + 1)
    return f"{'-' if value < 0 else ''}{digits[:-decimals]}.{digits[-decimals:]}"


def _symbols(text: str) -> str:
    if re.fullmatch(r"[A-Za-z]{2,}(?:[ '-][A-Za-z]+)*", text):
        return text.casefold()
    text = re.sub(r"\s+(?![A-Za-z0-9])|(?<![A-Za-z0-9])\s+|(?<=\d)\s+(?=[A-Za-z])", "", text)
    return text.replace(",", ", ").rstrip(" .,;:")


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
    return content.replace("$", "").strip(_MARKUP)


def _stated(text: str) -> Iterator[tuple[str, bool]]:
    """Stated answers, the last first; ``True`` with a line or box, ``False`` with a sentence."""
    found = [(m.start(), m, True) for m in (*_LINE.finditer(text), *_BOX.finditer(text))]
    for start, line in ((0, _line(text, 0)), (text.rstrip().rfind("\n") + 1, _line(text, -1))):
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


def _line(text: str, index: int) -> str:
    """A line of those that are not blank, stripped; empty if there is none."""
    lines = text.strip().splitlines()
    return lines[index].strip(_MARKUP) if lines else ""
