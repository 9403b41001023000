"""The log as Parquet: schemas, part files, and how they are read back.

A folder holds one subfolder a table: ``calls``, ``queries``, ``outcomes``. Each holds parts, files
that are never changed but only replaced whole. A part's name tells the time of its last row, who
wrote it, and which of its writer's batches are in it::

    1764563465123-4711x5f0c2a9e-7-9.parquet     batches 7 to 9 of one process

A part whose batches all are in another part of the same writer was merged into that one and is
about to go; readers skip it. Times in a table are UTC timestamps in microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from runtime.call_log import CallRow, LoadRow, OutcomeRow, QueryRow
from runtime.errors import ConfigError

SCHEMA_VERSION = 1
"""Rises when a column changes its meaning or goes. Files of a later version are refused."""

_VERSION_KEY = b"inframind.schema"
_TIME = pa.timestamp("us", tz="UTC")
_NAME = pa.dictionary(pa.int32(), pa.string())  # texts of which there are few

Row = CallRow | QueryRow | OutcomeRow

_LOAD = pa.struct(
    [
        pa.field("model", pa.string(), nullable=False),
        pa.field("in_system", pa.int32(), nullable=False),
        pa.field("slots", pa.int32(), nullable=False),
        pa.field("running", pa.int32()),
        pa.field("waiting", pa.int32()),
        pa.field("backlog", pa.int32()),
        pa.field("kv_usage", pa.float64()),
        pa.field("age_s", pa.float64()),
    ]
)


def _schema(required: dict[str, pa.DataType], optional: dict[str, pa.DataType]) -> pa.Schema:
    columns = [pa.field(name, kind, nullable=False) for name, kind in required.items()]
    columns += [pa.field(name, kind) for name, kind in optional.items()]
    return pa.schema(columns, metadata={_VERSION_KEY: str(SCHEMA_VERSION).encode()})


CALLS = _schema(
    {
        "query_id": pa.string(),
        "step_id": pa.int32(),
        "attempt": pa.int32(),
        "kind": _NAME,
        "role": _NAME,
        "task": _NAME,
        "topology": _NAME,
        "policy": _NAME,
        "model": _NAME,
        "status": _NAME,
        "num_shown": pa.int32(),
        "estimated_tokens": pa.int64(),
        "max_tokens": pa.int64(),
        "arrival_at": _TIME,
        "deadline_at": _TIME,
        "hard": pa.bool_(),
        "asked_at": _TIME,
        "ended_at": _TIME,
        "budget_left_s": pa.float64(),
        "queue_s": pa.float64(),
        "load": pa.list_(_LOAD),
        "simulated": pa.bool_(),
        "config": _NAME,
    },
    {
        "strategy": _NAME,
        "replica": _NAME,
        "finish_reason": _NAME,
        "agrees": pa.bool_(),
        "prompt_tokens": pa.int64(),
        "completion_tokens": pa.int64(),
        "granted_at": _TIME,
        "service_s": pa.float64(),
        "ttft_s": pa.float64(),
        "prompt": pa.string(),
        "text": pa.string(),
    },
)
QUERIES = _schema(
    {
        "query_id": pa.string(),
        "status": _NAME,
        "task": _NAME,
        "roles": pa.list_(pa.string()),
        "policy": _NAME,
        "hard": pa.bool_(),
        "arrival_at": _TIME,
        "ended_at": _TIME,
        "latency_s": pa.float64(),
        "budget_s": pa.float64(),
        "num_calls": pa.int32(),
        "prompt_tokens": pa.int64(),
        "completion_tokens": pa.int64(),
        "simulated": pa.bool_(),
        "config": _NAME,
    },
    {
        "owner": _NAME,
        "error": _NAME,
        "topology": _NAME,
        "direct_model": _NAME,
        "cost_usd": pa.float64(),
        "question": pa.string(),
        "text": pa.string(),
        "embedding": pa.list_(pa.float32()),
    },
)
OUTCOMES = _schema(
    {"query_id": pa.string(), "at": _TIME, "source": _NAME},
    {
        "correct": pa.bool_(),
        "score": pa.float64(),
        "dataset": _NAME,
        "item_id": pa.string(),
        "comment": pa.string(),
    },
)
SCHEMAS = {"calls": CALLS, "queries": QUERIES, "outcomes": OUTCOMES}
_LOAD_FIELDS = tuple(f.name for f in fields(LoadRow))


def table_of(name: str, rows: Sequence[Row]) -> pa.Table:
    """Rows as a table of that name."""
    schema = SCHEMAS[name]
    arrays = [pa.array([_value(r, f) for r in rows], type=f.type) for f in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _value(row: Row, column: pa.Field) -> Any:
    value = getattr(row, column.name)
    if column.type == _TIME and value is not None:
        return round(value * 1e6)
    if column.name == "load":
        return [{f: getattr(one, f) for f in _LOAD_FIELDS} for one in value]
    return str(value) if isinstance(value, str) else value  # enums are texts, too


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a table. Times are milliseconds since 1970."""

    path: Path
    last_ms: int
    writer: str
    first: int
    last: int

    @property
    def name(self) -> str:
        return part_name(self.last_ms, self.writer, self.first, self.last)

    def within(self, other: Part) -> bool:
        """Whether ``other`` is another part that holds all of this one's batches."""
        same = self.writer == other.writer and other.path != self.path
        wider = (other.last - other.first) > (self.last - self.first)
        return same and wider and other.first <= self.first and self.last <= other.last


_PART = re.compile(r"(\d{1,15})-([0-9a-z]{1,40})-(\d{1,12})-(\d{1,12})\.parquet")


def part_name(last_ms: int, writer: str, first: int, last: int) -> str:
    """The name of a part's file; ``writer`` is of small letters and digits."""
    return f"{last_ms}-{writer}-{first}-{last}.parquet"


def parts(folder: Path, table: str) -> list[Part]:
    """The parts of a table, oldest first, without those that were merged into another."""
    found = all_parts(folder, table)
    by_writer: dict[str, list[Part]] = {}
    for part in found:
        by_writer.setdefault(part.writer, []).append(part)
    return [p for p in found if not any(p.within(o) for o in by_writer[p.writer])]


def all_parts(folder: Path, table: str) -> list[Part]:
    """The same with those that were merged. Other files are no parts."""
    found = []
    for path in _listed(folder / table):
        if (match := _PART.fullmatch(path.name)) is not None:
            last_ms, writer, first, last = match.groups()
            found.append(Part(path, int(last_ms), writer, int(first), int(last)))
    return sorted(found, key=lambda p: (p.last_ms, p.writer, p.first))


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def read_part(path: Path, table: str, columns: Sequence[str] | None = None) -> pa.Table:
    """One part, all of it or some columns; a column that the file lacks is null.

    Raises:
        ConfigError: it is no file of ours, or one of a later version.
        FileNotFoundError: it is gone.
    """
    schema = SCHEMAS[table]
    wanted = schema if columns is None else pa.schema([schema.field(c) for c in columns])
    try:
        with pq.ParquetFile(path) as file:
            _check_version(path, file.schema_arrow)
            there = [c for c in wanted.names if c in file.schema_arrow.names]
            read = file.read(columns=there)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    arrays = [
        read[f.name].cast(f.type) if f.name in there else pa.nulls(len(read), f.type)
        for f in wanted
    ]
    return pa.Table.from_arrays(arrays, schema=wanted.with_metadata(schema.metadata))


def _check_version(path: Path, schema: pa.Schema) -> None:
    version = (schema.metadata or {}).get(_VERSION_KEY)
    if version is None:
        raise ConfigError(f"{path}: not a file of the call log")
    if not version.isdigit() or int(version) > SCHEMA_VERSION:
        text = version.decode(errors="replace")
        raise ConfigError(f"{path}: schema version {text}, only {SCHEMA_VERSION} can be read")


def read_table(folder: Path, table: str, columns: Sequence[str] | None = None) -> pa.Table:
    """A whole table of the log in ``folder``, oldest part first; without any part it is empty.

    Parts that go while it is read are as if they had gone before, unless they were merged: then
    what they went into is read.

    Raises:
        ConfigError: a file cannot be read, or there is no such folder.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such folder")
    read: dict[Path, pa.Table] = {}
    for _ in range(3):  # again where a part went meanwhile: it may have been merged
        wanted = parts(folder, table)
        lost = False
        for part in wanted:
            try:
                if part.path not in read:
                    read[part.path] = read_part(part.path, table, columns)
            except FileNotFoundError:
                lost = True
        if not lost:
            break
    tables = [read[p.path] for p in wanted if p.path in read]
    if not tables:
        return table_of(table, []).select(columns or SCHEMAS[table].names)
    return pa.concat_tables(tables).unify_dictionaries()


def write_part(path: Path, table: pa.Table) -> None:
    """Write a part beside its place and move it there, so that it is whole or not there.

    Raises:
        OSError: it cannot be written; nothing is left of it.
    """
    working = path.with_name(f".{path.name}.tmp")
    try:
        pq.write_table(table, working, compression="zstd")
        working.replace(path)
    finally:
        working.unlink(missing_ok=True)


def with_outcomes(rows: pa.Table, outcomes: pa.Table) -> pa.Table:
    """``rows`` with ``correct``, ``score``, ``dataset`` and ``item_id`` of each one's query, null
    where its outcome is unknown. ``score`` is 1 or 0 where only ``correct`` was told."""
    last: dict[str, int] = {}
    times = outcomes["at"].cast(pa.int64()).to_pylist()
    for i, query_id in enumerate(outcomes["query_id"].to_pylist()):
        if query_id not in last or times[i] >= times[last[query_id]]:
            last[query_id] = i
    found = pa.array([last.get(q) for q in rows["query_id"].to_pylist()], type=pa.int64())
    correct = outcomes["correct"].combine_chunks()
    score = pc.coalesce(outcomes["score"].combine_chunks(), correct.cast(pa.float64()))
    for name, column in (
        ("correct", correct),
        ("score", score),
        ("dataset", outcomes["dataset"].cast(pa.string()).combine_chunks()),
        ("item_id", outcomes["item_id"].combine_chunks()),
    ):
        rows = rows.append_column(name, column.take(found))
    return rows


def only(table: pa.Table, column: str, values: Iterable[str], *, keep: bool) -> pa.Table:
    """The rows whose ``column`` is among ``values``, or with ``keep=False`` the others."""
    mask = pc.is_in(table[column].cast(pa.string()), value_set=pa.array(list(values), pa.string()))
    return table.filter(mask if keep else pc.invert(mask))
