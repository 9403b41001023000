"""Which answer is the query's: the last ones of the agents, how they agree, and the best."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from runtime.answers import plurality
from runtime.outcome import StepState
from runtime.policy import Agreement
from runtime.types import ProgramRun


def last_answers(
    steps: Iterable[StepState], counts: Callable[[StepState], bool]
) -> list[StepState]:
    """The most advanced answer of each agent that ``counts``, but no program that passes fewer
    tests than its earlier one; the decision, if there is one, alone. Steps that do not vote count
    only where no other has answered."""
    latest: dict[int, StepState] = {}
    for state in steps:
        if state.status == "ok" and counts(state):
            before = latest.get(state.step.agent)
            if before is None or _num_passed(before.run) <= _num_passed(state.run):
                latest[state.step.agent] = state
    if -1 in latest:
        return [latest[-1]]
    answers = list(latest.values())
    return [state for state in answers if state.step.votes] or answers


def behaviour(run: ProgramRun | None) -> str | None:
    """The canonical answer of a program: which of the question's tests it passes.

    ``None`` where it passes none, or none was run: that says nothing on the question, so it agrees
    with no other.
    """
    return run.tests if run is not None and _num_passed(run) else None


def agreement_of(answers: Sequence[StepState]) -> Agreement:
    """How the canonical answers agree."""
    votes = [s.canonical for s in answers if s.canonical is not None]
    leading = max((votes.count(v) for v in votes), default=0)
    failing = any(s.run is not None and "0" in (s.run.tests or "") for s in answers)
    return Agreement(len(answers), len(votes), leading, failing)


def best_of(answers: Sequence[StepState], prior: Callable[[StepState], float]) -> StepState | None:
    """The plurality, ties to the stronger prior; else the most advanced; ``None`` of none.

    Of programs only those count that pass the most of the question's tests, however few they are.
    """
    if not answers:
        return None
    most = max(_num_passed(s.run) for s in answers)
    answers = [s for s in answers if _num_passed(s.run) == most]
    priors = [prior(s) for s in answers]
    index = plurality([(s.canonical, p) for s, p in zip(answers, priors, strict=True)])
    if index is not None:
        return answers[index]
    return max(zip(answers, priors, strict=True), key=lambda a: (a[0].step.round, a[1]))[0]


def _num_passed(run: ProgramRun | None) -> int:
    return 0 if run is None or run.tests is None else run.tests.count("1")
