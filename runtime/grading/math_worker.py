"""A process that compares mathematics with math-verify, one pair after another."""

from __future__ import annotations

import os
import re
import resource
import signal

from runtime.frames import read_frame, write_frame

_MEMORY_BYTES = 4 * 2**30
_LONGEST_S = 60
_LISTED = re.compile(r",?\s*\b(?:and|or)\b\s*")


def main() -> None:
    """Write "ready"; then answer each pair of normal forms by whether they are the same."""
    answers = os.dup(1)
    os.dup2(os.open("/dev/null", os.O_WRONLY), 1)  # what the libraries print is no answer
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    same("1", "2")  # loads the libraries
    write_frame(answers, "ready")
    while True:
        try:
            reference, answer = read_frame(0)
        except EOFError:
            return
        signal.alarm(_LONGEST_S)  # ends this process, should nobody be left to do it
        write_frame(answers, same(reference, answer))
        signal.alarm(0)


def same(reference: str, answer: str) -> bool:
    """Whether math-verify finds the two equal. Its own time limits are off: they are signals."""
    from math_verify import parse, verify  # type: ignore[import-untyped]

    try:
        gold, found = (parse(f"${_listed(t)}$", parsing_timeout=None) for t in (reference, answer))
        return bool(gold and found and verify(gold, found, timeout_seconds=None))
    except Exception:
        return False


def _listed(form: str) -> str:
    """ "5 or 6" is the list "5, 6"."""
    return _LISTED.sub(", ", form)
