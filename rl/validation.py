"""How good a policy is on validation questions: correct and on time, the mean over cells.

A cell is an operating point, a rate and a budget, with equally many questions of each data set.
Every policy sees the same arrivals, budgets and luck.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from rl.config import PointConfig
from rl.pools import at_point
from rl.worlds import TrainingWorld
from runtime.config import AppConfig
from runtime.policy import Policy, make_policy
from runtime.sim.outcomes import SimItem
from runtime.sim.quality import QualityModel
from runtime.sim.results import Results
from runtime.sim.simulation import Simulation
from runtime.sim.workload import Arrival, poisson

PolicyOf = Callable[[AppConfig], Policy]


@dataclass(frozen=True, slots=True)
class Score:
    """Percent of all queries offered, means over cells; ``latency_s`` is the mean."""

    correct_on_time: float
    accuracy: float
    slo: float
    latency_s: float


class Validation:
    """Cells of a training config."""

    def __init__(self, world: TrainingWorld) -> None:
        self._world = world
        about = world.config.validation
        points = world.config.workload.points
        self._cells = list(itertools.product(points, about.rates_rpm, about.budgets_s))

    def score(self, policy_of: PolicyOf) -> Score:
        """Play every cell with the policy made for its pool."""
        runs = [self._run(policy_of, *cell, number) for number, cell in enumerate(self._cells)]
        found = [run.summary() for run in runs]

        def mean(values: list[float]) -> float:
            return sum(values) / len(values)

        return Score(
            correct_on_time=mean([s.correct_on_time for s in found]),
            accuracy=mean([s.accuracy for s in found]),
            slo=mean([s.slo for s in found]),
            latency_s=mean([s.latency_mean_s for s in found]),
        )

    def by_name(self, name: str) -> Score:
        """The score of a registered policy with its default options."""
        return self.score(lambda config: make_policy(config, name))

    def _run(
        self, policy_of: PolicyOf, point: PointConfig, rate: float, budget_s: float, number: int
    ) -> Results:
        config, engines = at_point(self._world.pool, point)
        vectors = self._world.vectors
        seed = self._world.config.validation.seed
        return Simulation(
            config,
            QualityModel(self._world.calibration, seed),
            self._arrivals(rate, budget_s, seed + number),
            policy_of(config),
            models=engines,
            embed=lambda item: vectors.get(item.item_id),  # type: ignore[arg-type,return-value]
        ).run()

    def _arrivals(self, rate: float, budget_s: float, seed: int) -> Iterator[Arrival]:
        about = self._world.config
        times = itertools.islice(poisson(rate, seed), about.validation.queries)
        for at_s, item in zip(times, self._items(seed), strict=False):
            yield Arrival(at_s, item, budget_s, budget_usd=about.workload.budget_usd)

    def _items(self, seed: int) -> Iterator[SimItem]:
        """One of each data set in turn, each data set in a shuffled order."""
        rng = Random(f"{seed}:validation")
        decks = [_cycled(items, rng) for items in self._world.validation.values()]
        while True:
            yield from (next(deck) for deck in decks)


def _cycled(items: tuple[SimItem, ...], rng: Random) -> Iterator[SimItem]:
    while True:
        yield from rng.sample(items, len(items))
