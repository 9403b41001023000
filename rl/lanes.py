"""Many independent simulations in lock-step, so that their decisions are made in batches.

A lane runs one sweep after another: an arrival rate, a budget tier and a world (luck, difficulties
that were only drawn, assumed parameters), drained before the next begins. Lanes go on from where
they were, whatever batch their queries fall into.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from rl.config import PointConfig, WorkloadConfig
from rl.pools import Engines, at_point
from rl.source import Due, Finished
from rl.spaces import Array
from runtime.config import AppConfig
from runtime.sim.items import Calibration
from runtime.sim.outcomes import OutcomeModel, SimItem
from runtime.sim.parameters import draw_parameters
from runtime.sim.quality import QualityModel
from runtime.sim.simulation import Simulation
from runtime.sim.workload import Arrival, poisson
from runtime.types import Answer, Decision, Plan


@dataclass(frozen=True, slots=True)
class Sweep:
    """One run of a lane, to its last answer."""

    config: AppConfig
    engines: Engines
    outcomes: OutcomeModel
    arrivals: Iterator[Arrival]


class SimLanes:
    """Implements ``rl.source.QuerySource`` over sweeps of ``next_sweep``, which gives ``None`` when
    there are no more; ``vectors`` are the questions' embeddings by item id."""

    def __init__(
        self,
        lanes: int,
        next_sweep: Callable[[], Sweep | None],
        vectors: Mapping[str, Array],
    ) -> None:
        self._next_sweep = next_sweep
        self._vectors = vectors
        self._finished: list[Finished] = []
        self._lanes = [_Lane(self, number) for number in range(lanes)]

    def due(self) -> list[Due]:
        """One per lane that still has sweeps."""
        found = (lane.due() for lane in self._lanes)
        return [due for due in found if due is not None]

    def decide(self, due: Due, decision: Plan | Decision) -> None:
        self._lanes[due.key[0]].simulation.decide(decision)

    def finished(self) -> list[Finished]:
        done, self._finished = self._finished, []
        return done

    def start(self, lane: _Lane) -> Simulation | None:
        """The simulation of a lane's next sweep."""
        sweep = self._next_sweep()
        if sweep is None:
            return None
        return Simulation(
            sweep.config,
            sweep.outcomes,
            lane.noted(sweep.arrivals),
            models=sweep.engines,
            embed=lambda item: self._vectors.get(item.item_id),  # type: ignore[arg-type,return-value]
            on_answer=lane.take,
        )

    def note(self, finished: Finished) -> None:
        """A query of a lane has ended."""
        self._finished.append(finished)


class _Lane:
    def __init__(self, lanes: SimLanes, number: int) -> None:
        self._lanes, self._number = lanes, number
        self._sweep = 0
        self._items: dict[int, tuple[float, SimItem]] = {}
        self.simulation: Simulation = None  # type: ignore[assignment]
        self._over = False

    def noted(self, arrivals: Iterator[Arrival]) -> Iterator[Arrival]:
        """The same arrivals; remembers which item came when."""
        for number, arrival in enumerate(arrivals):
            self._items[number] = arrival.at_s, arrival.item
            yield arrival

    def due(self) -> Due | None:
        while not self._over:
            view = None if self.simulation is None else self.simulation.advance()
            if view is not None:
                query_id = view.query.query_id
                number = int(query_id.removeprefix("q"))
                elapsed_s = self.simulation.now - self._items[number][0]
                return Due((self._number, self._sweep, query_id), view, elapsed_s)
            self._sweep += 1
            self._items.clear()
            started = self._lanes.start(self)
            self._over = started is None
            if started is not None:
                self.simulation = started
        return None

    def take(self, number: int, answer: Answer, solved: bool) -> None:
        _, item = self._items.pop(number)
        key = self._number, self._sweep, answer.query_id
        self._lanes.note(Finished(key, item.task, item.dataset, answer, solved))


class TrainingSweeps:
    """Draws sweeps over the training questions: each question once before any again, those of
    ``exclude`` never.

    ``epoch`` is how often all of them have been asked by now.
    """

    def __init__(
        self,
        base: AppConfig,
        calibration: Calibration,
        workload: WorkloadConfig,
        seed: str,
        split: str = "train",
        exclude: Collection[str] = (),
    ) -> None:
        self._rng = Random(seed)
        self._calibration = calibration
        self._workload = workload
        self._points = [(p, *at_point(base, p)) for p in workload.points]
        self._items = {
            name: [i for i in calibration.select(name, split) if i.item_id not in exclude]
            for name in workload.datasets
        }
        self._streams = {name: self._shuffled(items) for name, items in self._items.items()}
        self._sizes = {name: len(items) for name, items in self._items.items()}
        self.num_drawn = 0

    @property
    def num_items(self) -> int:
        return sum(self._sizes.values())

    @property
    def epoch(self) -> float:
        return self.num_drawn / self.num_items

    def __call__(self) -> Sweep:
        """The next sweep."""
        rng, workload = self._rng, self._workload
        weights = [p.weight for p, _, _ in self._points]
        point, config, engines = rng.choices(self._points, weights)[0]
        return Sweep(config, engines, self._world(), self._arrivals(point, workload))

    def _world(self) -> QualityModel:
        calibration = self._calibration
        if self._workload.draw_parameters:
            drawn = draw_parameters(calibration.parameters, self._rng)
            calibration = Calibration(drawn, calibration.items)
        return QualityModel(calibration, self._rng.getrandbits(63)).redraw(self._rng)

    def _arrivals(self, point: PointConfig, workload: WorkloadConfig) -> Iterator[Arrival]:
        rng = self._rng
        rate = rng.choice(point.rates_rpm or workload.rates_rpm)
        tiers = workload.tiers_s
        if rng.random() >= workload.mixed_budgets:
            tiers = (rng.choice(tiers),)
        names = list(self._sizes)
        if rng.random() < workload.single_dataset:
            names = rng.choices(names, list(self._sizes.values()))
        times = itertools.islice(poisson(rate, rng.getrandbits(48)), workload.sweep_queries)
        return self._offer(times, names, tiers)

    def _offer(
        self, times: Iterator[float], names: Sequence[str], tiers: Sequence[float]
    ) -> Iterator[Arrival]:
        rng, sizes = self._rng, [self._sizes[name] for name in names]
        for at_s in times:
            item = next(self._streams[rng.choices(names, sizes)[0]])
            self.num_drawn += 1
            budget_usd = self._workload.budget_usd
            yield Arrival(at_s, item, rng.choice(tiers), budget_usd=budget_usd)

    def _shuffled(self, items: Sequence[SimItem]) -> Iterator[SimItem]:
        while True:
            yield from self._rng.sample(items, len(items))
