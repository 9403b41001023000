"""What benchmarks of running pools share: questions, data sets, and a state folder of their own."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from runtime.datasets import Item, load_folder
from runtime.hub_datasets import load_hub

_numbers = itertools.count()


def question() -> str:
    """Some sixty words of arithmetic, never asked before."""
    number = next(_numbers)
    return f"Shop {number} sells pens at {number % 17} dollars each. How much do 8 pens cost? " * 3


def items_to_test(folder: Path | None, names: Sequence[str]) -> list[tuple[Item, ...]]:
    """The test items of each data set: from ``folder`` (see ``runtime.datasets``), else the hub's.

    Raises:
        DatasetError: a file is missing or bad, or the hub cannot be reached.
    """
    if folder is None:
        return [load_hub(name, "test") for name in names]
    return [load_folder(folder, name, "test") for name in names]


@contextlib.contextmanager
def own_state() -> Iterator[Path]:
    """A temporary state folder (``INFRAMIND_STATE``) for the pools started inside: what a benchmark
    asks does not belong in the user's call log."""
    before = os.environ.get("INFRAMIND_STATE")
    with tempfile.TemporaryDirectory(prefix="inframind-state-", dir="/tmp") as temp:
        os.environ["INFRAMIND_STATE"] = temp
        try:
            yield Path(temp)
        finally:
            os.environ.pop("INFRAMIND_STATE")
            if before is not None:
                os.environ["INFRAMIND_STATE"] = before
