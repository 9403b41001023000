"""Rows kept as typed columns: some 60 bytes a row, whatever the length of the run."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


class Names:
    """Numbers for names, in the order in which they were first seen."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._numbers: dict[str, int] = {name: i for i, name in enumerate(names)}

    def number(self, name: str) -> int:
        """The number of ``name``, a new one where it has none."""
        return self._numbers.setdefault(name, len(self._numbers))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._numbers)


class Columns:
    """A table that only grows. ``types`` maps each column to a type code of ``array``; a column in
    ``names`` holds numbers that stand for names."""

    def __init__(self, types: Mapping[str, str], names: Mapping[str, Names]) -> None:
        self._columns = {name: array(code) for name, code in types.items()}
        self._appends = [column.append for column in self._columns.values()]
        self.names = dict(names)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    @property
    def nbytes(self) -> int:
        return sum(len(c) * c.itemsize for c in self._columns.values())

    def append(self, *values: float) -> None:
        """One row, in the order of the columns."""
        for append, value in zip(self._appends, values, strict=True):
            append(value)  # type: ignore[arg-type]  # integers for the columns of integers

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """A copy of a column as numbers."""
        return np.array(self._columns[name])

    def named(self, name: str) -> npt.NDArray[np.object_]:
        """A copy of a column of names, as texts."""
        names = np.array([*self.names[name].names, ""], dtype=object)
        texts: npt.NDArray[np.object_] = names[self[name]]
        return texts

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every row as a dict, names as texts; for small tables and tests."""
        known = {name: names.names for name, names in self.names.items()}
        for values in zip(*self._columns.values(), strict=True):
            row = dict(zip(self._columns, values, strict=True))
            yield {k: known[k][int(v)] if k in known else v for k, v in row.items()}
