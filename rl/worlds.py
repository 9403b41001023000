"""What training and validation share: the pool, its layout and encoder, questions and vectors."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from rl.config import TrainConfig
from rl.pools import training_pool
from rl.spaces import Array, Encoder, layout_for
from rl.vectors import load_vectors, role_vectors
from runtime.errors import ConfigError
from runtime.sim.items import Calibration, load_folder, shipped
from runtime.sim.outcomes import SimItem

HELD_OUT: Mapping[str, int] = {"mmlu_pro": 70}
"""Train questions kept for validation: the measured ones of MMLU-Pro are all in train and test."""


class TrainingWorld:
    """Everything that follows from a config and does not change while it trains.

    Raises:
        ConfigError: a file is missing, or a question has no embedding.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.pool = training_pool(config.pool)
        about = config.layout
        self.layout = layout_for(
            self.pool,
            adaptive=about.adaptive,
            age_and_mask=about.age_and_mask,
            progress=about.progress,
            topologies=about.topologies,
        )
        self.vectors: dict[str, Array] = load_vectors(config.embeddings)
        self.roles = role_vectors(self.layout, self.vectors)
        self.encoder = Encoder(self.layout, self.pool, self.roles)
        folder = config.calibration
        self.calibration: Calibration = load_folder(folder) if folder else shipped()
        self.validation = {name: self._validation(name) for name in config.workload.datasets}
        self.held_out = frozenset(i.item_id for items in self.validation.values() for i in items)
        self._check()

    def _validation(self, dataset: str) -> tuple[SimItem, ...]:
        if (number := HELD_OUT.get(dataset)) is None:
            return self.calibration.select(dataset, "val")
        measured = self.calibration.select(dataset, "train", measured_only=True)
        return tuple(Random(f"held out/{dataset}").sample(measured, number))

    def _check(self) -> None:
        for name in self.config.workload.datasets:
            for item in (*self.calibration.select(name, "train"), *self.validation[name]):
                if item.item_id not in self.vectors:
                    raise ConfigError(f"no embedding of {item.item_id}; see benchmarks.embed")

    @property
    def num_train(self) -> int:
        """Train questions, those held out left out: an epoch."""
        calibration, held_out = self.calibration, self.held_out
        names = self.config.workload.datasets
        items = [i for name in names for i in calibration.select(name, "train")]
        return sum(item.item_id not in held_out for item in items)
