"""Cells of a benchmark: one simulated run each, many at a time in processes of their own."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.contenders import Contender
from benchmarks.points import CALIBRATED, Point
from benchmarks.worlds import World, embeddings
from runtime.policy import make_policy
from runtime.sim.results import Results
from runtime.sim.settings import Embed, SimSettings
from runtime.sim.simulation import Simulation
from runtime.sim.workload import Arrival, poisson_workload

SLO_S = 300.0
"""The budget of the paper's Table 2."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cell:
    """A policy on a data set at a rate, at one operating point.

    ``hard`` deadlines end a query with what there is. ``split`` is the items' (test, or val to
    choose something). Everything drawn follows from ``seed``, whatever the policy: cells that
    differ in the policy alone see the same arrivals, items, budgets and luck.
    """

    dataset: str
    rate_rpm: float
    contender: Contender
    queries: int = 500
    point: Point = CALIBRATED
    seed: int = 0
    budgets_s: tuple[float, ...] = (SLO_S,)
    hard: bool = False
    split: str = "test"
    world: World = field(default_factory=World)

    def arrivals(self) -> list[Arrival]:
        """What is offered."""
        return poisson_workload(
            self.world.items(self.dataset, self.split),
            rate_per_min=self.rate_rpm,
            num_queries=self.queries,
            budgets_s=self.budgets_s,
            seed=self.seed,
        )


def simulate(cell: Cell) -> Results:
    """Run a cell to its last answer."""
    config = cell.point.config(cell.contender, cell.dataset, cell.hard)
    policy = make_policy(config)
    simulation = Simulation(
        config,
        cell.world.quality(cell.seed),
        cell.arrivals(),
        policy,
        models=cell.point.engines(config, cell.seed),
        settings=SimSettings(),
        embed=_embed() if policy.needs_embedding else None,
    )
    return simulation.run()


def _embed() -> Embed:
    vectors = embeddings()
    return lambda item: vectors.get(item.item_id)


def run_cells(
    cells: Sequence[Cell],
    measure: Callable[[Cell, Results], T],
    *,
    jobs: int = 2,
    title: str = "cells",
    console: Console | None = None,
) -> tuple[list[T], float]:
    """``measure`` of every cell, in the order of ``cells``, and processor seconds in all.

    ``measure`` must be a function of a module: with ``jobs`` above 1 it goes to processes that are
    started anew (spawn).
    """
    found: dict[int, T] = {}
    cpu_s = 0.0
    with _progress(console or Console(stderr=True)) as progress:
        task = progress.add_task(title, total=len(cells))
        for index, value, took_s in _each(cells, measure, jobs):
            found[index] = value
            cpu_s += took_s
            progress.advance(task)
    return [found[i] for i in range(len(cells))], cpu_s


def _each(
    cells: Sequence[Cell], measure: Callable[[Cell, Results], T], jobs: int
) -> Iterator[tuple[int, T, float]]:
    if jobs == 1:
        for index, cell in enumerate(cells):
            yield _one(index, cell, measure)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = [pool.submit(_one, i, cell, measure) for i, cell in enumerate(cells)]
        for future in as_completed(futures):
            yield future.result()


def _one(index: int, cell: Cell, measure: Callable[[Cell, Results], T]) -> tuple[int, T, float]:
    start_s = time.process_time()
    value = measure(cell, simulate(cell))
    return index, value, time.process_time() - start_s


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
