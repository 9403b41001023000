"""Numbers and expressions in answers: read them, and write them in one form.

``math_form`` is what the rest uses; the pieces below it read a number out of a text.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

MAX_ANSWER_CHARS = 300
_MAX_EXPONENT = 100
_MAX_DECIMALS = 30

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
_PLAIN_FROM = len(_LATEX) - 2
"""Only these patterns, and those of layout, can match a text without ``_MARKED`` characters."""
_MARKED = re.compile(r"[^ -~\s]|[\\$%~^{]")
_NUM = r"(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
_BODY = (
    rf"(?:(?:(?P<whole>\d+) +)?(?P<top>{_NUM}) ?/ ?(?P<bottom>{_NUM})|(?P<number>{_NUM})"
    r"(?:[eE](?P<exp>[-+]?\d+)| ?(?:\\times|\\cdot|[x*]) ?10 ?\^ ?\{? ?(?P<power>[-+]?\d+) ?\}?)?)"
)
_VALUE = re.compile(rf"(?P<sign>[-+]?) ?{_BODY}")
IN_LINE = re.compile(rf"(?P<sign>(?<![\w)\]}}.])[-+]|)(?<![\w.]){_BODY}(?!\d|(?:st|nd|rd|th)\b)")
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


def math_form(answer: str) -> str | None:
    """Normal form of a bare answer, such as a reference answer; ``None`` if empty or too long.

    A number becomes an exact decimal, or a reduced fraction where that has no end. Thousands
    separators, currency, percent and degree signs, units, and "x =" in front do not count, so 50%
    is 50. Anything else becomes its LaTeX without layout, words folded. The form of a form is
    itself.
    """
    return None if len(answer) > MAX_ANSWER_CHARS else _form_of(answer)


@lru_cache(maxsize=1024)
def _form_of(answer: str) -> str | None:
    form = answer
    for _ in range(8):
        if len(form) > MAX_ANSWER_CHARS:
            return None
        cleaned = clean(form)
        value = number_of(cleaned)
        new = _symbols(cleaned) if value is None else number_form(value)
        if new == form:
            return form or None
        form = new
    return None


def clean(text: str) -> str:
    """``text`` without layout, currency, percent and degree signs, and "x =" in front."""
    patterns = _LATEX
    if _MARKED.search(text) is None:
        text, patterns = " ".join(text.split()), _LATEX[_PLAIN_FROM:]
    for pattern, new in patterns:
        text = pattern.sub(new, text)
    return text.rstrip(" .,;:")


def plain_number(text: str) -> Fraction | None:
    """The number that ``text`` is once it is ``clean``; remembered, since agents agree."""
    return number_of(clean(text)) if len(text) > MAX_ANSWER_CHARS else _plain_number(text)


@lru_cache(maxsize=1024)
def _plain_number(text: str) -> Fraction | None:
    return number_of(clean(text))


def number_of(text: str) -> Fraction | None:
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
    value = fraction_of(match)
    if value is None or _NOT_A_UNIT.search(unit):
        return None
    return value * _SCALES.get((unit.split() or [""])[0].lower(), 1)


def fraction_of(match: re.Match[str]) -> Fraction | None:
    """The number that a match of ``IN_LINE`` stands for; ``None`` if absurd or over zero."""

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


def number_form(value: Fraction) -> str:
    """An exact decimal, or a reduced fraction where that has no end."""
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
