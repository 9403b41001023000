"""``inframind logs``: what the call log holds, and taking things out of it."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from runtime.config import CallLogConfig
from runtime.errors import InfraMindError

logs_app = typer.Typer(help="The call log: list, delete, prune.", no_args_is_help=True)
console = Console(file=sys.stdout)

Folder = Annotated[
    Path | None,
    typer.Option(help="The log's folder; default: the config's, else the user's state folder."),
]
Config = Annotated[
    Path | None, typer.Option("--config", "-c", help="A Serve config file, for its `call_log`.")
]


@logs_app.command("list")
def list_log(
    folder: Folder = None,
    config: Config = None,
    queries: Annotated[int, typer.Option(help="How many of the newest queries.", min=0)] = 10,
) -> None:
    """Show how much there is, and the newest queries with their outcomes."""
    from runtime.log_tables import SCHEMAS, parts, read_table, with_outcomes

    where = log_folder(folder, config)
    try:
        tables = {name: read_table(where, name, _SHOWN[name]) for name in SCHEMAS}
        joined = with_outcomes(tables["queries"], read_table(where, "outcomes"))
    except InfraMindError as error:
        _fail(error.message)
    console.print(f"{where}", highlight=False, markup=False)
    total = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("table", "rows", "files", "MB"):
        total.add_column(title, justify="left" if title == "table" else "right")
    for name, table in tables.items():
        files = parts(where, name)
        size = sum(p.path.stat().st_size for p in files)
        total.add_row(name, f"{len(table)}", f"{len(files)}", f"{size / 1e6:.2f}")
    console.print(total)
    if queries and len(joined):
        newest = joined.sort_by([("arrival_at", "descending")]).slice(0, queries)
        console.print(_newest(newest.to_pylist()))


@logs_app.command()
def delete(
    query_id: Annotated[list[str], typer.Argument(help="Ids of queries.")],
    folder: Folder = None,
    config: Config = None,
) -> None:
    """Take all rows of these queries out of every file, and keep them out."""
    from actors.log_folder import LogFolder
    from runtime.call_log import public_id

    try:
        count = LogFolder(log_folder(folder, config)).delete([public_id(q) for q in query_id])
    except (OSError, InfraMindError) as error:
        _fail(str(error))
    console.print(f"{count} rows deleted", highlight=False)
    raise typer.Exit(0 if count else 1)


@logs_app.command()
def prune(
    folder: Folder = None,
    config: Config = None,
    keep_days: Annotated[
        float | None, typer.Option(help="Older files go; default: the config's.", min=0.001)
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option(help="The oldest go above this; default: the config's.", min=1)
    ] = None,
) -> None:
    """Take away what is too old or too much, as the runtime itself does every minute."""
    from actors.log_folder import LogFolder

    settings = _settings(config)
    given = {"keep_days": keep_days, "max_bytes": max_bytes}
    limits = settings.model_copy(update={k: v for k, v in given.items() if v is not None})
    try:
        gone = LogFolder(log_folder(folder, config)).prune(limits, time.time())
    except (OSError, InfraMindError) as error:
        _fail(str(error))
    console.print(f"{gone.num_files} files, {gone.num_bytes / 1e6:.2f} MB", highlight=False)


def log_folder(folder: Path | None, config: Path | None) -> Path:
    """The folder that is given, else the config's; exits where the config cannot be read."""
    from actors.log_folder import state_folder

    return folder if folder is not None else state_folder(_settings(config))


def _settings(config: Path | None) -> CallLogConfig:
    from actors.local_pool import read_serve_file

    if config is None:
        return CallLogConfig()
    try:
        return read_serve_file(config).config.call_log
    except InfraMindError as error:
        _fail(error.message)


_SHOWN = {
    "calls": ["query_id"],
    "outcomes": ["query_id"],
    "queries": ["query_id", "arrival_at", "status", "error", "topology", "latency_s", "num_calls"],
}


def _newest(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("query", "arrival", "status", "topology", "calls", "s", "outcome"):
        table.add_column(title, justify="right" if title in ("calls", "s") else "left")
    for row in rows:
        outcome = "unknown" if row["score"] is None else f"{row['score']:g}"
        table.add_row(
            row["query_id"],
            f"{datetime.fromtimestamp(row['arrival_at'].timestamp(), UTC):%Y-%m-%d %H:%M:%S}",
            row["status"] if row["error"] is None else f"{row['status']}: {row['error']}",
            row["topology"] or "-",
            f"{row['num_calls']}",
            f"{row['latency_s']:.2f}",
            outcome,
        )
    return table


def _fail(message: str) -> NoReturn:
    Console(stderr=True).print("[red]error:[/red]", escape(message), highlight=False)
    raise typer.Exit(1)
