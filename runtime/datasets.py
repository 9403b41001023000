"""The five benchmarks in one schema, from a folder of JSONL; ``hub_datasets`` has the other way.

One object a line, with the keys of ``Item``; what does not apply is null. ``NAME.test.jsonl`` holds
the test items, ``NAME.train.jsonl`` those of training and validation, and ``splits.json``
(``{name: {"train": [ids], "val": [ids], "test": [ids]}}``) says which is which.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Literal

from runtime.errors import DatasetError
from runtime.types import TaskKind

Split = Literal["train", "val", "test"]

TASKS: Mapping[str, TaskKind] = {
    "math": TaskKind.MATH,
    "gsm_hard": TaskKind.MATH,
    "mbpp": TaskKind.CODE,
    "humaneval": TaskKind.CODE,
    "mmlu_pro": TaskKind.KNOWLEDGE,
}
"""The data sets of the paper (section 5.1) and what each asks for."""

SIZES: Mapping[str, Mapping[Split, int]] = {
    "math": {"train": 519, "val": 131, "test": 500},
    "mbpp": {"train": 374, "val": 94, "test": 500},
    "gsm_hard": {"train": 500, "val": 125, "test": 500},
    "humaneval": {"train": 33, "val": 10, "test": 131},
    "mmlu_pro": {"train": 500, "val": 70, "test": 500},
}
"""Table 6 of the paper. HumanEval has 164 items: its validation items are among the train ones."""

MAX_CHOICES = 10


@dataclass(frozen=True, slots=True)
class Item:
    """One question with what is needed to grade an answer to it.

    Of code, ``answer`` is a solution that passes (HumanEval's: the body that follows the question),
    ``tests`` a program that raises where a solution is wrong, and ``entry_point`` the function that
    it calls. Of knowledge, ``answer`` is the letter of one of ``choices``.
    """

    id: str
    dataset: str
    task: TaskKind
    question: str
    answer: str
    choices: tuple[str, ...] = ()
    tests: str | None = None
    entry_point: str | None = None
    subject: str | None = None
    level: str | None = None


_FIELDS = tuple(f.name for f in fields(Item))


def load_folder(folder: Path | str, dataset: str, split: Split) -> tuple[Item, ...]:
    """One split of one of the five data sets, in the order of ``splits.json``.

    Raises:
        DatasetError: a file is missing, a row is bad, or the size is not that of Table 6.
    """
    folder = Path(folder)
    _check_name(dataset)
    path = folder / f"{dataset}.{'test' if split == 'test' else 'train'}.jsonl"
    by_id = {item.id: item for item in load_file(path)}
    wanted = _split_ids(folder / "splits.json", dataset, split)
    missing = [item_id for item_id in wanted if item_id not in by_id]
    if missing:
        raise DatasetError(f"{path}: {len(missing)} items of {split} are not there: {missing[0]}")
    items = tuple(by_id[item_id] for item_id in wanted)
    check_size(items, dataset, split, str(folder))
    return items


def load_file(path: Path | str) -> tuple[Item, ...]:
    """All items of a JSONL file, of any data set; blank lines do not count.

    Raises:
        DatasetError: with the file, the line and the field.
    """
    path = Path(path)
    seen: dict[str, int] = {}
    items = []
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        item = item_of(_object(line, place), place)
        if item.id in seen:
            raise DatasetError(f"{place}, field id: {item.id!r} is also on line {seen[item.id]}")
        seen[item.id] = number
        items.append(item)
    return tuple(items)


def check_size(items: Iterable[Item], dataset: str, split: Split, place: str) -> None:
    """Raises ``DatasetError`` if these are not as many as Table 6 of the paper says."""
    found, wanted = sum(1 for _ in items), SIZES[dataset][split]
    if found != wanted:
        raise DatasetError(f"{place}: {dataset} {split} has {found} items, not {wanted}")


def item_of(row: Mapping[str, Any], place: str) -> Item:
    """The item that ``row`` is; ``place`` names it in errors.

    Raises:
        DatasetError: a field is missing, unknown, of the wrong type, or makes no sense.
    """
    for name in row:
        if name not in _FIELDS:
            raise DatasetError(f"{place}, field {name}: no such field")
    texts = {name: _text_field(row, name, place) for name in _FIELDS if name not in _NOT_TEXT}
    task = _task(row, texts["dataset"], place)
    item = Item(**texts, task=task, choices=_choices(row, place))  # type: ignore[arg-type]
    _check_task(item, place)
    return item


_NOT_TEXT = ("task", "choices")
_REQUIRED = ("id", "dataset", "question", "answer")


def _text_field(row: Mapping[str, Any], name: str, place: str) -> str | None:
    value = row.get(name)
    if value is None and name not in _REQUIRED:
        return None
    if not isinstance(value, str):
        raise DatasetError(f"{place}, field {name}: {_kind(value)} where a text is needed")
    if not value.strip():
        raise DatasetError(f"{place}, field {name}: empty")
    return value


def _task(row: Mapping[str, Any], dataset: str | None, place: str) -> TaskKind:
    task = row.get("task")
    if task not in set(TaskKind):
        raise DatasetError(f"{place}, field task: {task!r} is none of {', '.join(TaskKind)}")
    expected = TASKS.get(dataset or "")
    if expected not in (None, task):
        raise DatasetError(f"{place}, field task: {task!r}, but {dataset} is {expected}")
    return TaskKind(task)


def _choices(row: Mapping[str, Any], place: str) -> tuple[str, ...]:
    value = row.get("choices")
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(c, str) and c.strip() for c in value):
        raise DatasetError(f"{place}, field choices: not a list of texts")
    if not 2 <= len(value) <= MAX_CHOICES:
        raise DatasetError(f"{place}, field choices: {len(value)}, not 2 to {MAX_CHOICES}")
    return tuple(value)


def _check_task(item: Item, place: str) -> None:
    if item.task is TaskKind.CODE:
        for name in ("tests", "entry_point"):
            if getattr(item, name) is None:
                raise DatasetError(f"{place}, field {name}: code needs it")
        if not str(item.entry_point).isidentifier():
            raise DatasetError(f"{place}, field entry_point: {item.entry_point!r} is no name")
    letters = ascii_uppercase[: len(item.choices)]
    if item.choices and (len(item.answer) != 1 or item.answer not in letters):
        raise DatasetError(f"{place}, field answer: {item.answer!r} is none of {letters}")
    if item.dataset == "mmlu_pro" and not item.choices:
        raise DatasetError(f"{place}, field choices: {item.dataset} needs them")
    if item.dataset == "gsm_hard":
        _check_number(item.answer, place)


def _check_number(answer: str, place: str) -> None:
    try:
        float(answer)
    except ValueError:
        raise DatasetError(f"{place}, field answer: {answer!r} is no number") from None


def _split_ids(path: Path, dataset: str, split: Split) -> list[str]:
    splits = _object(_text(path), str(path))
    ids = splits.get(dataset, {}).get(split) if isinstance(splits.get(dataset), dict) else None
    if not isinstance(ids, list) or not all(isinstance(item_id, str) for item_id in ids):
        raise DatasetError(f"{path}, field {dataset}.{split}: not a list of ids")
    return ids


def _check_name(dataset: str) -> None:
    if dataset not in TASKS:
        raise DatasetError(f"no data set {dataset!r}; there are {', '.join(TASKS)}")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{path}: {error}") from None


def _object(text: str, place: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise DatasetError(f"{place}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise DatasetError(f"{place}: {_kind(value)} where an object is needed")
    return value


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
