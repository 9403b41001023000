"""``inframind train``: the learned policy of a pool, trained on the simulator."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from runtime.errors import InfraMindError

console = Console(file=sys.stdout)

_LOGGED_EVERY_S = 30.0


def train(
    config: Annotated[Path, typer.Option("--config", "-c", help="A training config (rl/configs).")],
    out: Annotated[
        Path | None, typer.Option(help="The run's folder; default: runs/NAME-sSEED.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Instead of the config's.")] = None,
    resume: Annotated[bool, typer.Option(help="Go on where a run was stopped or killed.")] = False,
    tune: Annotated[bool, typer.Option(help="As a Ray Tune job.")] = False,
    iterations: Annotated[
        int | None, typer.Option(help="Stop after so many batches; --resume goes on.", min=1)
    ] = None,
) -> None:
    """Train planner and executor under a budget, simulated; keeps the best policy on validation."""
    try:
        from rl.config import read_config
        from rl.train import train as run
        from rl.train import tune as run_tune

        about = read_config(config)
        if seed is not None:
            about = about.model_copy(update={"seed": seed})
        folder = out or Path("runs") / f"{about.name}-s{about.seed}"
        if tune:
            run_tune(about, folder, resume=resume)
            return
        with _View(about.stop.max_epochs) as view:
            trained = run(
                about, folder, resume=resume, max_iterations=iterations, on_result=view.show
            )
    except InfraMindError as error:
        _fail(error.message)
    except ModuleNotFoundError as error:
        _fail(f"{error.name} is needed: pip install 'inframind[rl]'")
    except KeyboardInterrupt:
        _fail("stopped; go on with --resume")
    score = "none" if trained.best_score is None else f"{trained.best_score:.1f} %"
    console.print(
        f"{trained.iterations} batches, {trained.epochs:.1f} epochs; best on validation, correct "
        f"and on time (simulated): {score}\n{trained.best}",
        highlight=False,
        markup=False,
    )


class _View:
    """A progress bar over a table, live on a terminal; else a line now and then."""

    def __init__(self, epochs: int) -> None:
        self._progress = Progress(
            TextColumn("epoch {task.completed:.1f} of {task.total:.0f}"),
            BarColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task("train", total=epochs)
        self._live = Live(self._progress, console=console, refresh_per_second=4, transient=True)
        self._validation: dict[str, Any] = {}
        self._told_s = 0.0

    def __enter__(self) -> _View:
        if console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if console.is_terminal:
            self._live.stop()

    def show(self, result: dict[str, Any]) -> None:
        """A batch is done."""
        self._validation = result.get("validation", self._validation)
        if console.is_terminal:
            self._progress.update(self._task, completed=result["progress"]["epoch"])
            self._live.update(Group(self._progress, table_of(result, self._validation)))
        elif time.monotonic() - self._told_s > _LOGGED_EVERY_S or "validation" in result:
            self._told_s = time.monotonic()
            console.print(line_of(result, self._validation), markup=False, highlight=False)


def table_of(result: Mapping[str, Any], validation: Mapping[str, Any]) -> Table:
    """What the last batch and the last validation were like, all simulated."""
    batch, entropy = result["batch"], _entropy(result)
    table = Table(box=None, show_header=False)
    table.add_column(style="dim")
    table.add_column()
    rows = {
        "reward": f"{_learned(result, 'planner', 'reward'):.3f}",
        "solved, SLO": f"{batch['solved']:.1%}, {batch['on_time']:.1%}",
        "cost over budget, lambda": f"{batch['cost']:.2f}, {result['multipliers']['time']:.4f}",
        "entropy (planner, executor)": f"{entropy['planner']:.2f}, {entropy['executor']:.2f}",
        "models": _shares(batch, "model/"),
        "depths": _shares(batch, "depth/"),
        "topologies": _shares(batch, "topology/"),
        "agents, calls a query": f"{batch['agents']:.1f}, {batch['calls']:.1f}",
        "decisions/s": f"{batch['decisions_per_s']:.0f}",
    }
    if validation:
        rows["validation, correct and on time"] = _scores(validation)
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def line_of(result: Mapping[str, Any], validation: Mapping[str, Any]) -> str:
    """The same in one line."""
    batch = result["batch"]
    said = (
        f"epoch {result['progress']['epoch']:.1f}: solved {batch['solved']:.1%}, "
        f"SLO {batch['on_time']:.1%}, lambda {result['multipliers']['time']:.4f}, "
        f"entropy {_entropy(result)['executor']:.2f}, {batch['decisions_per_s']:.0f} decisions/s"
    )
    return f"{said}; validation {_scores(validation)}" if validation else said


def _entropy(result: Mapping[str, Any]) -> dict[str, float]:
    return {name: _learned(result, name, "entropy") for name in ("planner", "executor")}


def _learned(result: Mapping[str, Any], module: str, name: str) -> float:
    return float(result.get("learners", {}).get(module, {}).get(name, float("nan")))


def _shares(batch: Mapping[str, float], start: str) -> str:
    found = {n.removeprefix(start): v for n, v in batch.items() if n.startswith(start)}
    return ", ".join(f"{name} {value:.0%}" for name, value in found.items())


def _scores(validation: Mapping[str, Any]) -> str:
    others = [
        f"{name.removesuffix('_correct_on_time')} {value:.1f} %"
        for name, value in validation.items()
        if name.endswith("_correct_on_time")
    ]
    return f"{validation['correct_on_time']:.1f} % ({', '.join(others)})"


def _fail(message: str) -> NoReturn:
    Console(stderr=True).print("[red]error:[/red]", escape(message), highlight=False)
    raise typer.Exit(1)
