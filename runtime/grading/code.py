"""Programs: right when the data set's tests pass on them, in the sandbox."""

from __future__ import annotations

import re
from collections.abc import Sequence
from textwrap import indent

from runtime.answers import code_blocks
from runtime.datasets import Item
from runtime.grading.result import NOTHING, RIGHT, Grade
from runtime.sandbox import Limits, Status, TestJob, Verdict, run_tests_many

LIMITS = Limits(wall_s=60.0, cpu_s=20)
"""The slowest reference solution takes 5 s by itself."""


def grade_code(
    pairs: Sequence[tuple[Item, str]], limits: Limits | None = None, workers: int | None = None
) -> list[Grade]:
    """Grade each text as an answer to its item.

    Raises:
        SandboxUnavailable: programs cannot be run here, so nothing was graded.
    """
    jobs = [job_of(item, text) for item, text in pairs]
    verdicts = run_tests_many([job for job in jobs if job], limits or LIMITS, workers)
    left = iter(verdicts)
    return [_grade(job, next(left)) if job else Grade(False, None, NOTHING) for job in jobs]


def job_of(item: Item, text: str) -> TestJob | None:
    """The program in ``text``, with the item's tests; ``None`` where there is none."""
    program = program_in(text, item.entry_point)
    if not program.strip():
        return None
    tests = called_tests(item.tests or "", item.entry_point)
    return TestJob(
        variants_of(item.question, program, item.entry_point), (tests,), item.entry_point
    )


def program_in(text: str, entry_point: str | None) -> str:
    """The last fenced block that defines ``entry_point``, else the last one, else ``text``."""
    blocks = code_blocks(text)
    defining = [block for block in blocks if _definition(entry_point).search(block)]
    return (defining or blocks or [text])[-1]


def variants_of(question: str, program: str, entry_point: str | None) -> tuple[str, ...]:
    """Whole programs that ``program`` may stand for; the first that compiles is meant.

    Where the question is the beginning of a program (HumanEval), ``program`` is either the whole
    function, which may need the question's imports and helpers, or what continues the question,
    which may have lost the indentation of its first line or of all.
    """
    start = _definition(entry_point).search(question)
    if start is None:
        return (program,)
    if _definition(entry_point).search(program):
        return (f"{question[: start.start()]}\n{program}", program)
    begun = question if question.endswith("\n") else f"{question}\n"
    return (begun + program, f"{begun}    {program}", begun + indent(program, "    "))


def called_tests(tests: str, entry_point: str | None) -> str:
    """``tests``, with a call of their ``check`` where they only define it."""
    defined = re.search(r"^def check\(", tests, re.MULTILINE)
    if defined is None or re.search(r"^check\(", tests, re.MULTILINE):
        return tests
    return f"{tests}\n\ncheck({entry_point})\n"


def _definition(entry_point: str | None) -> re.Pattern[str]:
    if entry_point is None:
        return re.compile(r"(?!)")  # nothing defines what has no name
    name = re.escape(entry_point)
    return re.compile(rf"^(?:(?:async +)?def +{name} *\(|{name} *=|class +{name}\b)", re.MULTILINE)


def _grade(job: TestJob, verdict: Verdict) -> Grade:
    right = verdict.status is Status.PASSED
    reason = RIGHT if right else f"{verdict.status}: {verdict.detail}".rstrip(": ")
    return Grade(right, job.variants[0], reason)
