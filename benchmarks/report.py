"""What every benchmark says and leaves behind: Markdown, a figure, one line of JSON.

A report begins with what is simulated and what that rests on, and ends with seed, versions and
wall time.
"""

from __future__ import annotations

import csv
import json
import platform
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from benchmarks.worlds import DATASETS, World
from runtime.sim.describe import as_text, describe

matplotlib.use("Agg")

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("inframind", "numpy", "scipy")


def common(parser: ArgumentParser) -> ArgumentParser:
    """Options that every benchmark has."""
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--calibration", type=Path, help="a folder with a full items.csv")
    parser.add_argument("--quick", action="store_true", help="a try, too short to mean anything")
    return parser


@dataclass(frozen=True, slots=True)
class Common:
    """What ``common`` has parsed."""

    jobs: int
    seed: int
    out: Path
    world: World
    quick: bool

    @classmethod
    def of(cls, args: Namespace) -> Common:
        return cls(args.jobs, args.seed, args.out, World(args.calibration), args.quick)


@dataclass
class Report:
    """One benchmark's Markdown file, CSV and figure, all called ``stem`` or as the benchmark."""

    name: str
    options: Common
    datasets: Collection[str] = DATASETS
    stem: str = ""
    cpu_s: float = 0.0
    parts: list[str] = field(default_factory=list)
    started_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.options.out.mkdir(parents=True, exist_ok=True)
        self.add(f"# {self.name}")
        self.add(basis(self.options.world, self.datasets))

    def path(self, suffix: str) -> Path:
        return self.options.out / f"{self.stem or self.name}.{suffix}"

    def write(self, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """The CSV file; figures with fractions are given to four digits after the point."""
        with self.path("csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(head)
            writer.writerows(
                [round(v, 4) if isinstance(v, float) else v for v in row] for row in rows
            )

    def add(self, text: str) -> None:
        """A paragraph or a table."""
        self.parts.append(text)

    def draw(self, figure: Figure) -> None:
        """Save the figure and show it below what was added so far."""
        figure.tight_layout()
        save(figure, self.path("png"), dpi=110)
        self.add(f"![{self.name}]({self.path('png').name})")

    def finish(self, figures: dict[str, Any]) -> None:
        """Write the file and print the last line, with ``figures`` in it."""
        wall_s = time.monotonic() - self.started_s
        versions = {p: version(p) for p in _PACKAGES} | {"python": platform.python_version()}
        about = {
            "seed": self.options.seed,
            "wall_s": round(wall_s, 1),
            "cpu_s": round(self.cpu_s, 1),
        }
        said = ", ".join(f"{k} {v}" for k, v in {**about, **versions}.items())
        self.add(f"`python -m benchmarks.{self.name}`: {said}, jobs {self.options.jobs}.")
        self.path("md").write_text("\n\n".join(self.parts) + "\n", encoding="utf-8")
        line = {"benchmark": self.name, "simulated": True, **figures, **about, "versions": versions}
        print(f"{self.path('md')} written")
        print(json.dumps(line))


def save(figure: Figure, path: Path, dpi: int) -> None:
    """Write a figure of simulated cells, marked as such."""
    figure.text(0.004, 0.004, "simulated", va="bottom", ha="left")
    figure.savefig(path, dpi=dpi, metadata={"Software": None})
    plt.close(figure)


def basis(world: World, datasets: Collection[str]) -> str:
    """The line above every table: what is simulated, and what that assumes."""
    counted = as_text(describe(world.calibration(), datasets)).partition("\n")[0]
    return (
        "**Simulated**, in virtual time: queries, queues, engines and answers. The state machines "
        "and policies are those of production. Engines have measured kernel speeds and an assumed "
        "host overhead, and share a GPU equally (assumed); answers come from an item-response "
        f"model ({counted}; `python -m benchmarks.assumptions` lists them)."
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join("---" for _ in head) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)
