"""What a training leaves behind: Parquet parts for tables, event files for TensorBoard."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

Row = dict[str, float]

ROWS_PER_PART = 25
_GROUPS = ("batch", "multipliers", "progress", "validation")


def row_of(result: Mapping[str, Any]) -> Row:
    """The numbers of a result, named ``group/name``; missing ones are left out."""
    row = {"iteration": float(result["training_iteration"])}
    for group in _GROUPS:
        for name, value in result.get(group, {}).items():
            if isinstance(value, bool | int | float) and math.isfinite(value):
                row[f"{group}/{name}"] = float(value)
    for module in ("planner", "executor"):
        values = result.get("learners", {}).get(module, {})
        for name in ("reward", "gain", "entropy", "value_loss", "task_loss", "vae_loss"):
            if name in values:
                row[f"{module}/{name}"] = float(values[name])
    return row


class RunLog:
    """Writes to ``folder``: ``metrics/*.parquet`` and TensorBoard's files. A part is written every
    ``ROWS_PER_PART`` rows and appears whole."""

    def __init__(self, folder: Path) -> None:
        from tensorboardX import SummaryWriter

        self._folder = folder / "metrics"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._rows: list[Row] = []
        self._writer = SummaryWriter(str(folder / "tensorboard"), flush_secs=30)

    def add(self, row: Row) -> None:
        step = int(row["iteration"])
        for name, value in row.items():
            self._writer.add_scalar(name, value, step)
        self._rows.append(row)
        if len(self._rows) >= ROWS_PER_PART:
            self.flush()

    def flush(self) -> None:
        """Write what has been added."""
        if not self._rows:
            return
        names = list(dict.fromkeys(name for row in self._rows for name in row))
        columns = {n: pa.array([r.get(n) for r in self._rows], pa.float64()) for n in names}
        path = self._folder / f"{int(self._rows[-1]['iteration']):06d}.parquet"
        fresh = path.with_suffix(".fresh")
        pq.write_table(pa.table(columns), fresh)
        fresh.replace(path)
        self._rows = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.flush()
        self._writer.close()


def read_rows(folder: Path) -> list[Row]:
    """All rows of a run in order; an iteration that was done twice is there once, as done last."""
    rows: dict[int, Row] = {}
    for path in sorted((folder / "metrics").glob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            found = {name: value for name, value in row.items() if value is not None}
            rows[int(found["iteration"])] = found
    return [rows[number] for number in sorted(rows)]
