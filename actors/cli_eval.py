"""``inframind eval``: questions of a file to a pool, graded, with the outcomes in its log."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from actors.client import DEFAULT_URL, ApiError, Client
from actors.eval_summary import EvalSummary, summarise
from actors.evaluation import EvalSettings, Evaluated, evaluate, load_questions
from runtime.errors import InfraMindError

console = Console(file=sys.stdout)


def evaluate_file(
    file: Annotated[
        Path,
        typer.Argument(help="JSONL: question, answer; id, dataset, task, choices, tests if any."),
    ],
    url: Annotated[str, typer.Option(help="Where the pool listens.", envvar="INFRAMIND_URL")] = (
        DEFAULT_URL
    ),
    judge: Annotated[
        str | None,
        typer.Option(help="A pool model that grades every answer, instead of the graders."),
    ] = None,
    budget: Annotated[
        float | None, typer.Option(help="Seconds for each; default: the pool's.", min=0.001)
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Another policy than the pool's.")] = None,
    concurrency: Annotated[int, typer.Option(help="Questions on their way at a time.", min=1)] = 4,
    rate: Annotated[
        float | None,
        typer.Option(help="Questions a minute, at Poisson times, instead of --concurrency."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the Poisson times.")] = 0,
    limit: Annotated[int | None, typer.Option(help="Only so many of the file.", min=1)] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write a line of JSON per question, with its answer.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Ask a pool the questions of a file, grade the answers, and tell its call log."""
    if rate is not None and not 0 < rate < float("inf"):
        _fail("--rate must be a finite number above zero")
    base = url.rstrip("/").removesuffix("/v1")
    settings = EvalSettings(base, budget, policy, concurrency, rate, seed, judge)
    try:
        items = load_questions(file)[:limit]
        pool = Client(base).pool()
        if judge is not None and judge not in {m["name"] for m in pool["models"]}:
            _fail(f"the pool has no model {judge!r}")
        rows = _run(settings, items)
        if out is not None:
            out.write_text("".join(map(_line, rows)), encoding="utf-8")
    except (InfraMindError, ApiError, OSError) as error:
        _fail(str(error))
    summary = summarise(rows)
    if as_json:
        console.print_json(json.dumps([asdict(s) for s in summary]))
        return
    if any(m["simulated"] for m in pool["models"]):
        console.print("[yellow]SIMULATED[/yellow]: fake engines took part; accuracy means nothing")
    console.print(_table(summary))
    told = sum(r.told for r in rows)
    console.print(f"{told} outcomes of {len(rows)} questions are in the pool's log")
    for reason, count in _unknown(rows).items():
        console.print(f"unknown, {count}: {reason}", markup=False, highlight=False)


def _run(settings: EvalSettings, items: tuple[Any, ...]) -> list[Evaluated]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    shown = Console(stderr=True)
    with Progress(*columns, TimeElapsedColumn(), console=shown, transient=True) as progress:
        bars = {s: progress.add_task(s, total=len(items)) for s in ("ask", "grade", "log")}
        return asyncio.run(evaluate(settings, items, lambda s, n: progress.advance(bars[s], n)))


def _table(summary: list[EvalSummary]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    titles = ("data set", "asked", "unknown", "right %", "95 %", "SLO %", "right, on time %")
    for title in (*titles, "mean s", "p50 s", "p90 s"):
        table.add_column(title, justify="left" if title == "data set" else "right")
    for s in summary:
        table.add_row(
            s.name,
            f"{s.n_asked}",
            f"{s.n_unknown}",
            f"{s.accuracy:.1f}",
            f"{s.accuracy_lo:.1f}-{s.accuracy_hi:.1f}",
            f"{s.slo:.1f}",
            f"{s.correct_on_time:.1f}",
            f"{s.latency_mean_s:.2f}",
            f"{s.latency_p50_s:.2f}",
            f"{s.latency_p90_s:.2f}",
        )
    return table


def _unknown(rows: list[Evaluated]) -> dict[str, int]:
    """Why outcomes are unknown, and how often."""
    reasons = [r.reason for r in rows if r.correct is None]
    return {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}


def _line(row: Evaluated) -> str:
    shown = asdict(row)
    item = shown.pop("item")
    line = {"item_id": item["id"], "dataset": item["dataset"], **shown}
    return json.dumps(line, ensure_ascii=False) + "\n"


def _fail(message: str) -> NoReturn:
    Console(stderr=True).print("[red]error:[/red]", escape(message), highlight=False)
    raise typer.Exit(1)
