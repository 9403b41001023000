"""How far a training is: what is counted, when the learning rate falls, when it is over. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rl.config import StopConfig


@dataclass(slots=True)
class Progress:
    """Kept in the learner's state, so it is saved and restored with the weights.

    ``queries`` is how many the learner was given, over ``epoch_queries`` an epoch. ``stale`` counts
    validations since the best one, ``slow`` those since the best or the last fall of the rate.
    """

    epoch_queries: int
    queries: int = 0
    batches: int = 0
    skipped: int = 0
    validations: int = 0
    best: float | None = None
    best_epoch: float = 0.0
    stale: int = 0
    slow: int = 0
    lr_scale: float = 1.0

    @property
    def epoch(self) -> float:
        return self.queries / self.epoch_queries

    def after_batch(self, queries: int) -> None:
        self.batches += 1
        self.queries += queries

    def validation_due(self, every_epochs: int) -> bool:
        """Whether more validations should have been by now; the first is at the start."""
        return self.validations <= math.floor(self.epoch / every_epochs)

    def after_validation(self, score: float, stop: StopConfig) -> bool:
        """Whether this is the best so far; lets the rate fall after ``lr_patience`` that are not
        (ReduceLROnPlateau)."""
        self.validations += 1
        if self.best is None or score > self.best:
            self.best, self.best_epoch = score, self.epoch
            self.stale = self.slow = 0
            return True
        self.stale += 1
        self.slow += 1
        if self.slow > stop.lr_patience:
            self.lr_scale *= stop.lr_factor
            self.slow = 0
        return False

    def over(self, stop: StopConfig) -> bool:
        """Whether to stop: all epochs done, or ``patience`` validations without a best."""
        return self.epoch >= stop.max_epochs or self.stale >= stop.patience

    def entropy(self, first: float, final: float | None, stop: StopConfig) -> float:
        """An entropy coefficient now: from ``first`` to ``final`` in a straight line."""
        if final is None:
            return first
        done = min(self.epoch / stop.max_epochs, 1.0)
        return first + done * (final - first)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def progress_from_json(about: Mapping[str, Any]) -> Progress:
    return Progress(**about)
