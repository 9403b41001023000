"""Runs the program in an answer, in the sandbox, and says in a few words what came of it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runtime.answers import code_blocks
from runtime.config import AppConfig
from runtime.errors import ConfigError, SandboxUnavailable
from runtime.grading.code import program_in, variants_of
from runtime.programs import Program
from runtime.sandbox import (
    Limits,
    Status,
    Stopper,
    Verdict,
    check_available,
    run_script,
    run_tests,
)
from runtime.types import ProgramRun
from runtime.visible_tests import asked_function, visible_tests

MAX_SHOWN_CHARS = 2_000
"""What a model is told of a run has at most so many characters."""

_MEMORY_BYTES = 2**29
_MAX_QUESTION_CHARS = 16_000
_MAX_TESTS_SHOWN = 5
_MAX_TEST_CHARS = 200
_CUT = "\n[...]\n"
_UNPRINTABLE = re.compile(r"[^\n\t\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def check_sandbox(config: AppConfig) -> None:
    """Raises ``ConfigError`` where the config asks for the sandbox and there is none here."""
    if not config.runs_code:
        return
    try:
        check_available()
    except SandboxUnavailable as error:
        raise ConfigError(
            f"code_execution is `sandbox`, but {error.message}; see README, Running generated "
            "code, for what it needs, or turn it off"
        ) from None


def run_program(program: Program, wall_s: float, stopper: Stopper) -> ProgramRun | None:
    """Run ``program`` for at most ``wall_s``; ``None`` where it shows nothing that can be run.

    Blocks; ``stopper`` ends it from another thread, and what is returned then means nothing.

    Raises:
        SandboxUnavailable: it was not run.
    """
    limits = Limits(wall_s=wall_s, memory_bytes=_MEMORY_BYTES)
    if program.question is None:
        return _script(program.text, limits, stopper)
    return _tests(program.text, program.question, limits, stopper)


def _tests(text: str, question: str, limits: Limits, stopper: Stopper) -> ProgramRun | None:
    # Looking for tests in a very long text would keep everybody waiting.
    tests = visible_tests(question) if len(question) <= _MAX_QUESTION_CHARS else ()
    if not tests:
        return None
    name = asked_function(question)
    variants = variants_of(question, program_in(text, name), name)
    verdict = run_tests(variants, tests, name, limits, stopper)
    mask = "".join("01"[passed] for passed in verdict.passed)
    return ProgramRun(verdict.status, mask, shortened(_told(tests, verdict)))


def _told(tests: Sequence[str], verdict: Verdict) -> str:
    failed = [t for t, passed in zip(tests, verdict.passed, strict=True) if not passed]
    if not failed:
        return f"All {len(tests)} tests in the question pass."
    lines = [f"{len(failed)} of {len(tests)} tests in the question fail:"]
    lines += [test.strip()[:_MAX_TEST_CHARS] for test in failed[:_MAX_TESTS_SHOWN]]
    if len(failed) > _MAX_TESTS_SHOWN:
        lines.append(f"and {len(failed) - _MAX_TESTS_SHOWN} more")
    if verdict.status is not Status.FAILED:
        lines.append(f"The run was ended for its {verdict.status}.")
    if verdict.detail:
        lines.append(f"First failure: {verdict.detail}")
    return "\n".join(lines)


def _script(text: str, limits: Limits, stopper: Stopper) -> ProgramRun | None:
    blocks = code_blocks(text)
    if not blocks:
        return None
    printing = [block for block in blocks if "print" in block]
    run = run_script((printing or blocks)[-1], limits, stopper)
    shown = run.output.strip() or "It printed nothing."
    if run.status in (Status.TIME_LIMIT, Status.MEMORY_LIMIT):
        shown = f"{shown}\nIt was ended for its {run.status}."
    return ProgramRun(run.status, None, shortened(shown))


def shortened(text: str) -> str:
    """At most ``MAX_SHOWN_CHARS`` of ``text``, its beginning and its end, all printable."""
    text = _UNPRINTABLE.sub("?", text)
    if len(text) <= MAX_SHOWN_CHARS:
        return text
    half = (MAX_SHOWN_CHARS - len(_CUT)) // 2
    return f"{text[:half]}{_CUT}{text[-half:]}"
