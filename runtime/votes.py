"""Which answer is the query's: the last ones of the agents, how they agree, and the best."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from runtime.answers import plurality
from runtime.outcome import StepState
from runtime.policy import Agreement


def last_answers(
    steps: Iterable[StepState], counts: Callable[[StepState], bool]
) -> list[StepState]:
    """The most advanced answer of each agent that ``counts``; the decision, if there is one,
    alone."""
    latest: dict[int, StepState] = {}
    for state in steps:
        if state.status == "ok" and counts(state):
            latest[state.step.agent] = state
    return [latest[-1]] if -1 in latest else list(latest.values())


def agreement_of(answers: Sequence[StepState]) -> Agreement:
    """How the canonical answers agree."""
    votes = [s.canonical for s in answers if s.canonical is not None]
    leading = max((votes.count(v) for v in votes), default=0)
    return Agreement(len(answers), len(votes), leading)


def best_of(answers: Sequence[StepState], prior: Callable[[StepState], float]) -> StepState | None:
    """The plurality, ties to the stronger prior; else the most advanced; ``None`` of none."""
    if not answers:
        return None
    priors = [prior(s) for s in answers]
    index = plurality([(s.canonical, p) for s, p in zip(answers, priors, strict=True)])
    if index is not None:
        return answers[index]
    return max(zip(answers, priors, strict=True), key=lambda a: (a[0].step.round, a[1]))[0]
