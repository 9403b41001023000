"""MATH: equal as mathematics, by the library math-verify.

The library bounds its own time by signals, which only a main thread may use, so it runs in
processes of its own, one for each comparison at a time, which are killed when they take too long.
"""

from __future__ import annotations

import atexit
import os
import re
import threading

from runtime.answers import canonical
from runtime.child_process import Child
from runtime.datasets import Item
from runtime.grading.result import NOTHING, RIGHT, WRONG, Grade
from runtime.numerals import math_form
from runtime.types import TaskKind

TIMEOUT_S = 10.0
_START_S = 120.0
_WORKER = "runtime.grading.math_worker"
_WORDS = re.compile(r"[A-Za-z]{2,}(?:[ '-][A-Za-z]+)*")


def grade_math(item: Item, text: str) -> Grade:
    """Compare the stated answer with the reference: the same form, or the same mathematics."""
    found = canonical(text, TaskKind.MATH)
    if found is None:
        return Grade(False, None, NOTHING)
    right = same_math(item.answer, found)
    return Grade(right, found, RIGHT if right else WRONG)


def same_math(reference: str, answer: str) -> bool:
    """Whether two bare answers are the same; what cannot be decided in time is not.

    Raises:
        RuntimeError: math-verify cannot be used here.
    """
    one, other = math_form(reference), math_form(answer)
    if one is None or other is None or one == other:
        return one is not None and one == other
    # Of words, math-verify would make products of their letters.
    if _WORDS.fullmatch(one) or _WORDS.fullmatch(other):
        return False
    return _POOL.same(one, other)


class _Pool:
    """Processes that wait for a comparison; never more than callers at one time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Child] = []
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)

    def same(self, one: str, other: str) -> bool:
        with self._lock:
            child = self._idle.pop() if self._idle else None
        child = child or _start()
        answer = child.ask([one, other], timeout_s=TIMEOUT_S)
        if answer is None:
            return False
        with self._lock:
            self._idle.append(child)
        return answer is True

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for child in idle:
            child.close()

    def _forget(self) -> None:
        """In a forked process: these are the parent's."""
        self._lock = threading.Lock()
        self._idle = []


def _start() -> Child:
    child = Child(_WORKER, flags=("-P",))
    if child.ask(timeout_s=_START_S) != "ready":
        child.close()
        raise RuntimeError("math-verify does not start: is it installed?")
    return child


_POOL = _Pool()
