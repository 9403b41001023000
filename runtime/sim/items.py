"""The items of the five benchmarks as the simulator knows them: difficulty and size, no text.

The shipped table (``calibration/items.csv``) says for every item whether its difficulty was
measured. A folder with a full ``items.csv`` of one's own takes its place with ``load_folder``.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from string import ascii_lowercase

from runtime.errors import ConfigError
from runtime.sim.outcomes import SimItem
from runtime.sim.parameters import QualityParameters, Status, parse_quality
from runtime.sim.uniforms import normal
from runtime.types import TaskKind

TASKS: Mapping[str, TaskKind] = {
    "math": TaskKind.MATH,
    "gsm_hard": TaskKind.MATH,
    "mbpp": TaskKind.CODE,
    "humaneval": TaskKind.CODE,
    "mmlu_pro": TaskKind.KNOWLEDGE,
}
"""The data sets of the shipped table and what kind of task they are."""

NEAREST: Mapping[TaskKind, str] = {
    TaskKind.MATH: "math",
    TaskKind.CODE: "mbpp",
    TaskKind.KNOWLEDGE: "mmlu_pro",
    TaskKind.GENERAL: "mmlu_pro",
}
"""Whose parameters stand in for a data set that is not in the tables."""


@dataclass(frozen=True, slots=True)
class ItemParameters:
    """One item. ``status`` is that of ``difficulty`` (logits) and ``discrimination``.

    With ``prior_sd`` the difficulty was only drawn, from N(``prior_mean``, ``prior_sd``), and may
    be drawn again. ``responses`` is how many public outcomes it was measured from.
    ``choice_tokens`` counts all ``num_choices`` options together.
    """

    item_id: str
    dataset: str
    splits: tuple[str, ...]
    difficulty: float
    discrimination: float
    status: Status
    source: str
    prior_mean: float | None = None
    prior_sd: float | None = None
    responses: int | None = None
    question_tokens: int = 0
    num_choices: int = 0
    choice_tokens: int = 0

    @property
    def measured(self) -> bool:
        return self.status is Status.MEASURED

    def redrawn(self, key: str) -> float:
        """The difficulty, drawn anew by ``key`` where it is not measured."""
        if self.prior_mean is None or self.prior_sd is None:
            return self.difficulty
        return self.prior_mean + self.prior_sd * normal(f"difficulty/{key}/{self.item_id}")

    def sim_item(self) -> SimItem:
        """What the simulator asks about."""
        each = round(self.choice_tokens / max(1, self.num_choices))
        choices = tuple(_choice(i, each) for i in range(self.num_choices))
        task = TASKS.get(self.dataset, TaskKind.GENERAL)
        return SimItem(self.item_id, self.dataset, task, self.question_tokens, choices)


@lru_cache(maxsize=1024)
def _choice(index: int, tokens: int) -> str:
    """A stand-in for an option: ``tokens`` words of one token each, unlike the other options."""
    return " ".join([f"o{ascii_lowercase[index]}", *["xx"] * (tokens - 1)])


@dataclass(frozen=True, slots=True)
class Calibration:
    """Parameters and items: all that a quality model rests on."""

    parameters: QualityParameters
    items: Mapping[str, ItemParameters]

    def select(
        self, dataset: str, split: str = "test", *, measured_only: bool = False
    ) -> tuple[SimItem, ...]:
        """Items of a data set and split (train, val or test), in the table's order.

        ``measured_only`` leaves out difficulties that were only drawn: checkpoints are selected
        on measured ones. Raises ``ConfigError`` where there is no such data set or split.
        """
        found = [i for i in self.items.values() if i.dataset == dataset and split in i.splits]
        if not found:
            raise ConfigError(f"no items of data set {dataset!r}, split {split!r}")
        return tuple(i.sim_item() for i in found if i.measured or not measured_only)


@lru_cache(maxsize=1)
def shipped() -> Calibration:
    """What is shipped in the package; see ``calibration/README.md`` for its sources."""
    folder = files("runtime.sim") / "calibration"
    text = (folder / "items.csv").read_text(encoding="utf-8")
    quality = (folder / "quality.json").read_bytes()
    items = _read(csv.DictReader(text.splitlines()), _shipped_row, "items.csv")
    return Calibration(parse_quality(quality, "quality.json"), items)


def load_folder(folder: Path) -> Calibration:
    """The shipped parameters with the items, and where they are there the abilities, of a folder.

    ``items.csv`` needs the columns ``question_id, dataset, split, b_draw, a_sim, src`` and may
    have ``b_mean, b_sd, n_outcomes``; a ``src`` that begins with "2PL" marks a measured
    difficulty, one with "draw" in it a drawn one. ``ability.csv`` has ``dataset, model, theta``.
    Sizes of questions stay those that are shipped.

    Raises:
        ConfigError: a file is missing or a row cannot be read; the message names file and line.
    """
    base = shipped()
    try:
        with (folder / "items.csv").open(encoding="utf-8", newline="") as file:
            rows = _read(csv.DictReader(file), _folder_row, str(folder / "items.csv"))
        items = {i: _sized(row, base.items.get(i)) for i, row in rows.items()}
        return Calibration(_with_abilities(base.parameters, folder / "ability.csv"), items)
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from None


def _read(
    rows: Iterable[dict[str, str]], parse: Callable[[dict[str, str]], ItemParameters], name: str
) -> dict[str, ItemParameters]:
    return {item.item_id: item for item in _parsed(rows, parse, name)}


def _parsed(
    rows: Iterable[dict[str, str]], parse: Callable[[dict[str, str]], ItemParameters], name: str
) -> Iterator[ItemParameters]:
    for line, row in enumerate(rows, start=2):
        try:
            yield parse(row)
        except KeyError as error:
            raise ConfigError(f"{name}, line {line}: no column {error}") from None
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{name}, line {line}: {error}") from None


def _shipped_row(row: dict[str, str]) -> ItemParameters:
    return ItemParameters(
        item_id=row["item_id"],
        dataset=row["item_id"].partition("/")[0],
        splits=tuple(row["split"].split("+")),
        difficulty=float(row["difficulty"]),
        discrimination=float(row["discrimination"]),
        status=Status(row["status"]),
        source=row["source"],
        prior_mean=_maybe(row["prior_mean"]),
        prior_sd=_maybe(row["prior_sd"]),
        responses=int(row["responses"]) if row["responses"] else None,
        question_tokens=int(row["question_tokens"]),
        num_choices=int(row["choices"]),
        choice_tokens=int(row["choice_tokens"]),
    )


def _folder_row(row: dict[str, str]) -> ItemParameters:
    source = row["src"]
    drawn = "draw" in source
    outcomes = _maybe(row.get("n_outcomes"))
    return ItemParameters(
        item_id=row["question_id"],
        dataset=row["dataset"],
        splits=tuple(row["split"].split("+")),
        difficulty=float(row["b_draw"]),
        discrimination=float(row["a_sim"]),
        status=Status.MEASURED if source.startswith("2PL") else Status.ASSUMED,
        source=source,
        prior_mean=(_maybe(row.get("b_mean")) or 0.0) if drawn else None,
        prior_sd=_maybe(row.get("b_sd")) if drawn else None,
        responses=None if outcomes is None else int(outcomes),
    )


def _maybe(text: str | None) -> float | None:
    return float(text) if text else None


def _sized(item: ItemParameters, known: ItemParameters | None) -> ItemParameters:
    if known is None:
        return item
    return replace(
        item,
        question_tokens=known.question_tokens,
        num_choices=known.num_choices,
        choice_tokens=known.choice_tokens,
    )


_POOL_NAMES = {
    "R1-Distill-Qwen-32B": "deepseek-r1-distill-qwen-32b",
    "Mistral-Small-24B": "mistral-small-24b",
    "Qwen2.5-Coder-14B": "qwen2.5-coder-14b",
    "Llama-3.1-8B": "llama-3.1-8b",
    "Llama-3.2-3B": "llama-3.2-3b",
}


def _with_abilities(parameters: QualityParameters, path: Path) -> QualityParameters:
    """Abilities belong to the scale of the difficulties that they were placed on."""
    if not path.exists():
        return parameters
    with path.open(encoding="utf-8", newline="") as file:
        thetas = {
            (_POOL_NAMES.get(row["model"], row["model"]), row["dataset"]): float(row["theta"])
            for row in csv.DictReader(file)
        }
    models = []
    for model in parameters.models:
        skills = dict(model.skills)
        for dataset, skill in model.skills.items():
            theta = thetas.get((model.name, dataset))
            if theta is not None:
                skills[dataset] = replace(skill, ability=skill.ability.moved(theta))
        models.append(replace(model, skills=skills))
    return parameters.with_models(*models)
