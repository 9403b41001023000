"""``inframind calibrate``: from a call log to the parameter file of the simulator."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from actors.cli_logs import log_folder
from actors.local_pool import read_serve_file
from runtime.errors import ConfigError, InfraMindError
from runtime.sim.parameters import EngineParameters, Parameter, PoolParameters, Skill, dump_pool

console = Console(file=sys.stdout)

_ENGINE = {
    "a_s": "iteration, s",
    "c_s": "per sequence, s",
    "d_s_per_1k": "per 1k KV tokens, s",
    "prefill_tokens_per_s": "prefill, tokens/s",
    "dispatch_s": "dispatch, s",
}


def calibrate(
    out: Annotated[Path, typer.Option(help="The file to write.")],
    log: Annotated[
        Path | None,
        typer.Option(help="The log's folder; default: the config's, else the user's state folder."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="A Serve config file: its models, and its priors."),
    ] = None,
    days: Annotated[
        float | None, typer.Option(help="Only calls that ended within so many days.", min=0)
    ] = None,
    simulated: Annotated[
        bool, typer.Option(help="Fit to the calls of fake engines, not of real ones.")
    ] = False,
) -> None:
    """Fit speed, lengths and abilities to a pool's own log, and write what the simulator loads."""
    try:
        from runtime.sim.calibrate import calibrate as fit
        from runtime.sim.calibrate import calls_of

        app = None if config is None else read_serve_file(config).config
        since = None if days is None else time.time() - days * 86_400
        calls = calls_of(log_folder(log, config), simulated=simulated, since_at=since)
        if not len(calls):
            raise ConfigError("the log has no such calls; see `inframind logs list`")
        fitted = fit(calls, app)
        out.write_text(dump_pool(fitted.pool), encoding="utf-8")
    except (InfraMindError, OSError) as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        _fail(f"{error.name} is needed: pip install 'inframind[calibrate]'")
    _show(fitted.pool)
    for note in fitted.notes:
        console.print(note, markup=False, highlight=False)
    console.print(f"{len(calls)} calls -> {out}", markup=False, highlight=False)


def _show(pool: PoolParameters) -> None:
    for name, engine in pool.engines.items():
        console.print(_engine_table(name, engine))
    for model in pool.models:
        for key, skill in model.skills.items():
            console.print(_skill_table(f"{model.name}, {key}", skill))


def _engine_table(name: str, engine: EngineParameters) -> Table:
    residuals = (
        f"{engine.num_calls} calls; error of a service time: median {engine.error_median:.1%}, "
        f"p90 {engine.error_p90:.1%}; of their sum {engine.bias:+.1%}"
    )
    table = _table(f"{name}: {residuals}")
    for field, title in _ENGINE.items():
        _row(table, title, getattr(engine, field))
    return table


def _skill_table(title: str, skill: Skill) -> Table:
    table = _table(title)
    _row(table, "ability, logits", skill.ability)
    for strategy, depth in skill.strategies.items():
        _row(table, f"{strategy}: offset, logits", depth.offset)
        _row(table, f"{strategy}: tokens, mean", depth.tokens_mean)
        _row(table, f"{strategy}: tokens, cv", depth.tokens_cv)
        _row(table, f"{strategy}: runaways", depth.runaway)
    return table


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, header_style="dim")
    table.add_column("parameter", no_wrap=True)
    table.add_column("value", justify="right")
    table.add_column("range")
    table.add_column("rests on")
    return table


def _row(table: Table, title: str, parameter: Parameter) -> None:
    known = parameter.low is not None and parameter.high is not None
    span = f"{parameter.low:.4g} to {parameter.high:.4g}" if known else ""
    table.add_row(title, f"{parameter.value:.4g}", span, f"{parameter.status}: {parameter.source}")


def _fail(message: str) -> NoReturn:
    Console(stderr=True).print("[red]error:[/red]", escape(message), highlight=False)
    raise typer.Exit(1)
