"""Answers drawn from the quality model for whole sets of items, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runtime.sim.items import Calibration
from runtime.sim.outcomes import Seen, SimItem
from runtime.sim.quality import QualityModel
from runtime.sim.symbols import decode
from runtime.types import Call, Sampling, Step, StepKind, Strategy

FIRST = Step(0, StepKind.ANSWER, "any", 0, 1)
POOL = (
    "deepseek-r1-distill-qwen-32b",
    "mistral-small-24b",
    "qwen2.5-coder-14b",
    "llama-3.1-8b",
    "llama-3.2-3b",
)


def a_call(
    model: str,
    strategy: Strategy = Strategy.CONCISE,
    query: str = "q",
    step: int = 0,
    attempt: int = 1,
) -> Call:
    """A call as the workflow would make it."""
    call_id = f"{query}.{step}.{attempt}"
    no_messages = ()
    return Call(
        call_id, query, step, model, strategy, no_messages, 2048, 0, None, 0.0, Sampling(), False
    )


def symbol(
    model: QualityModel,
    item: SimItem,
    name: str,
    step: Step = FIRST,
    seen: Sequence[Seen] = (),
    query: str = "q",
) -> int | None:
    """The symbol that one call answers with."""
    call = a_call(name, query=query, step=step.step_id)
    return decode(item, model.draw(item, call, step, seen).text)


@dataclass(frozen=True)
class Drawn:
    """Axes: seed, model, item, repeat."""

    symbols: np.ndarray
    tokens: np.ndarray

    @property
    def right(self) -> np.ndarray:
        return self.symbols == 0


def draw_all(
    calibration: Calibration,
    dataset: str,
    seeds: int,
    repeats: int = 1,
    strategy: Strategy = Strategy.CONCISE,
    models: Sequence[str] = POOL,
) -> Drawn:
    """First answers of every model to every test item."""
    items = calibration.select(dataset)
    shape = (seeds, len(models), len(items), repeats)
    symbols, tokens = np.zeros(shape, int), np.zeros(shape, int)
    for s in range(seeds):
        quality = QualityModel(calibration, s)
        for m, name in enumerate(models):
            calls = [a_call(name, strategy, f"q{r}") for r in range(repeats)]
            for i, item in enumerate(items):
                for r, call in enumerate(calls):
                    outcome = quality.draw(item, call, FIRST, ())
                    symbols[s, m, i, r] = decode(item, outcome.text)
                    tokens[s, m, i, r] = outcome.completion_tokens
    return Drawn(symbols, tokens)
