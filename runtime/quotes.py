"""Text that a prompt quotes: what agents wrote, and what their programs did. It is data: nothing
in it may end the quotation, open a turn of the chat, or pass for an instruction."""

from __future__ import annotations

import re
from dataclasses import dataclass

from runtime.types import ProgramRun, Step

# What would end a quotation, or be read by a tokenizer as the mark of a turn.
_BREAKER = re.compile(
    r"<(?=/(?:answer|output)|\|\w+\|>|/?s>|(?:start|end)_of_turn>)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Quoted:
    """A quoted text, the line that says what it is, and the tag that it stands in."""

    label: str
    text: str
    tag: str = "answer"


def quote_answer(step: Step, earlier: Step, text: str, run: ProgramRun | None) -> Quoted:
    """The answer of ``earlier``, for the prompt of ``step``; of another's program also how many
    tests it passes."""
    if earlier.step_id == step.own:
        return Quoted("Your own earlier answer:", unquoting(text))
    label = f"Agent {earlier.agent + 1} ({earlier.role}) answered{_tested(run)}:"
    return Quoted(label, unquoting(text))


def quote_run(shown: str) -> Quoted:
    """What came of running the program of one's own earlier answer."""
    return Quoted("What came of running your program:", unquoting(shown), "output")


def unquoting(text: str) -> str:
    """``text`` without the means to end its quotation."""
    return _BREAKER.sub("< ", text)


def _tested(run: ProgramRun | None) -> str:
    if run is None or run.tests is None:
        return ""
    passed, num = run.tests.count("1"), len(run.tests)
    return f" (the program passes {passed} of the {num} tests in the question)"
