"""Made-up answers for the fake engine: shaped like answers, so that the rest of a pool works.

Nothing here thinks. An arithmetic question with plain numbers is evaluated, a multiple choice is
drawn by a hash, code is a stub; everything says that it is fake. One token is 4 characters.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from fractions import Fraction

from runtime.types import Message

TOKEN_CHARS = 4
MESSAGE_OVERHEAD_TOKENS = 8

_QUOTED = re.compile(r"<answer>.*?</answer>", re.DOTALL)
_NUMBER = r"\d+(?:\.\d+)?"
_SUM = re.compile(rf"(?<![\w.])-?{_NUMBER}(?:(?:\s*[+*x×]\s*|\s+[-/÷−]\s+){_NUMBER})+(?!\w)")
_TERM = re.compile(rf"\s*([-+*/x×÷−]?)\s*({_NUMBER})")
_OPTION = re.compile(r"^\s*\(?([A-Z])[).:]\s+\S.*$", re.MULTILINE)
_DEF = re.compile(r"\bdef (\w+)\s*\(")
# No digits: nothing in a fake text but its `Answer:` line may be taken for an answer.
_OPENING = "[fake engine]"
_FILLER = " Filler of a fake engine."
_NO_ANSWER = "\nThe fake engine has no answer to this."


def count_prompt_tokens(messages: Sequence[Message]) -> int:
    """The fake tokenizer: white space shrunk, then 4 characters a token, 8 tokens a message."""
    texts = (" ".join(_spelled(m).split()) for m in messages)
    return sum(-(-len(text) // TOKEN_CHARS) + MESSAGE_OVERHEAD_TOKENS for text in texts)


def _spelled(message: Message) -> str:
    return message.content + "".join(f" {c.name} {c.arguments}" for c in message.tool_calls)


def answer_text(
    model: str, messages: Sequence[Message], answer_tokens: int, cap: int, seed: int | None = None
) -> str:
    """The whole answer of ``model``, a function of its arguments alone.

    It has about ``answer_tokens`` times a factor that grows with ``cap`` (1 at 768 tokens, within
    0.25..2) and varies by a quarter with the question and the ``seed``; it may exceed ``cap``,
    the caller cuts.
    """
    question = _question(messages)
    depth = min(2.0, max(0.25, cap / 768))
    jitter = (
        0.75 + 0.5 * _draw(model, question if seed is None else f"{seed} {question}", 1000) / 1000
    )
    return _shape(model, question, messages)(round(answer_tokens * depth * jitter) * TOKEN_CHARS)


def made_up_answer(model: str, messages: Sequence[Message]) -> str:
    """What the answer's last line would say, or that there is none."""
    text = _shape(model, _question(messages), messages)(0)
    return text.rpartition("Answer: ")[2] if "Answer: " in text else _NO_ANSWER.strip()


def _question(messages: Sequence[Message]) -> str:
    """The last user message without the answers of other agents that it quotes."""
    users = [m.content for m in messages if m.role == "user"]
    return _QUOTED.sub("", users[-1]) if users else ""


def _shape(model: str, question: str, messages: Sequence[Message]) -> Callable[[int], str]:
    """The function that writes the answer with about a given number of characters."""
    system = "".join(m.content for m in messages if m.role == "system")
    if (name := _DEF.search(question)) or "```python" in system:
        return lambda size: _code(name[1] if name else "solution", size)
    if len(options := [m[1] for m in _OPTION.finditer(question)]) >= 2:
        listed = "".join(m[0] for m in _OPTION.finditer(question))
        answer = options[_draw(model, listed, len(options))]
    elif (value := evaluate(question)) is not None:
        answer = value
    else:
        return lambda size: _padded(f"{_OPENING} A made-up text.", _NO_ANSWER, size)
    return lambda size: _padded(f"{_OPENING} A made-up derivation.", f"\nAnswer: {answer}", size)


def _padded(head: str, tail: str, size: int) -> str:
    room = size - len(head) - len(tail) + len(_FILLER) // 2
    return head + _FILLER * max(0, room // len(_FILLER)) + tail


def _code(name: str, size: int) -> str:
    body = _padded(f"{_OPENING} A stub.", "", size - 80)
    return f"{body}\n```python\n# {_OPENING}\ndef {name}(*args):\n    return None\n```"


def _draw(model: str, text: str, n: int) -> int:
    digest = hashlib.sha256(f"{model}\0{text}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % n


def evaluate(text: str) -> str | None:
    """The value of the first arithmetic expression in ``text``, such as ``17 + 25 * 2``.

    Products bind tighter than sums; no brackets. ``None`` when there is none, or it divides by 0.
    """
    found = _SUM.search(text)
    if found is None:
        return None
    total, product = Fraction(0), None
    for sign, number in _TERM.findall(found[0]):
        value = Fraction(number)
        if product is not None and sign in "*x×":
            product *= value
        elif product is not None and sign in "/÷":
            if not value:
                return None
            product /= value
        else:
            total += product or 0
            product = -value if sign in ("-", "−") else value
    return _decimal(total + (product or 0))


def _decimal(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.6g}"
