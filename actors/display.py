"""What the terminal shows of answers and of the pool; fits 80 columns."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from actors.endpoint_discovery import FoundModel
from runtime.config import AppConfig
from runtime.types import Strategy, TaskKind

MAX_TEXT = 240


def answer_block(answer: dict[str, Any], title: str, with_text: bool = True) -> RenderableType:
    """One query: its outcome, one line per step, and the answer's text."""
    kept = answer["kept_budget"]
    head = Text.assemble(
        (title, "bold"),
        f"  {answer['topology'] or '-'}, {answer['latency_s']:.1f} of {answer['budget_s']:g} s, ",
        ("SIMULATED, ", "yellow") if answer.get("simulated") else "",
        ("budget kept", "green") if kept else (f"budget not kept: {answer['status']}", "red"),
    )
    blocks: list[RenderableType] = [head]
    if answer["steps"]:
        blocks.append(Padding(_steps(answer["steps"]), (0, 0, 0, 2)))
    if with_text:
        blocks.append(Padding(Text(f"-> {shown_text(answer)}", "cyan"), (0, 0, 1, 2)))
    return Group(*blocks)


def shown_text(answer: dict[str, Any]) -> str:
    """The answer on one line, its end if it is long (the result stands there), or the error."""
    line = " ".join((answer["text"] or (answer["error"] or {}).get("message", "")).split())
    return line if len(line) <= MAX_TEXT else f"... {line[-MAX_TEXT:]}"


def _steps(steps: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("step", overflow="fold")
    table.add_column("model", overflow="fold", style="magenta")
    table.add_column("depth")
    for title in ("tokens", "wait s", "time s"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("outcome", overflow="fold")
    for step in steps:
        outcome = step["status"] if step["error"] is None else f"{step['status']}: {step['error']}"
        if step["answer"] is not None and step["status"] == "ok":
            outcome += f" ({step['answer'][:20]})"
        table.add_row(
            f"{step['step_id']} {step['role']}, {step['kind']}",
            step["model"] or "-",
            step["strategy"] or "-",
            _number(step["completion_tokens"], "d", "-"),
            _number(step["queue_s"], ".2f", "-"),
            _number(step["service_s"], ".2f", "-"),
            outcome,
        )
    return table


def pool_table(pool: dict[str, Any]) -> RenderableType:
    """One line per model of ``GET /v1/pool``; ``?`` is what is not known."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("model", overflow="fold", style="magenta")
    for title in ("repl", "slots", "run", "wait", "queue", "kv", "e2e s", "tok ms", "age s"):
        table.add_column(title, justify="right", no_wrap=True)
    for model in pool["models"]:
        tpot = model.get("tpot_s")
        host = model.get("endpoint")
        table.add_row(
            Text.assemble(
                model["name"],
                (f"\nat {host}", "dim") if host else "",
                ("\nleft alone: it only fails", "red") if model.get("breakers") else "",
            ),
            *(_number(model.get(key), "d") for key in ("replicas", "slots", "running", "waiting")),
            _number(model.get("backlog"), "d"),
            _kv_or_rate(model),
            _number(model.get("e2e_s"), ".2f"),
            _number(tpot * 1000 if tpot is not None else None, ".1f"),
            _number(model.get("age_s"), ".2f"),
        )
    title = f"policy {pool['policy']}, order {pool['order']}, snapshot {pool['version']}"
    if any(model["simulated"] for model in pool["models"]):
        title += ", SIMULATED (fake engines)"
    return Group(Text(title, "bold"), table)


def _kv_or_rate(model: dict[str, Any]) -> str:
    """KV use; of an API model its requests of the last minute over the limit."""
    rate = model.get("rate")
    if rate is None:
        return _number(model.get("kv_usage"), ".0%")
    return f"{rate['recent']}/{rate['limit']} rpm"


def _number(value: Any, form: str, unknown: str = "?") -> str:
    return unknown if value is None else format(value, form)


def found_lines(found: list[FoundModel], config: AppConfig) -> list[str]:
    """What was found at endpoints, one line each, and last what is assumed of all of it."""
    lines = []
    for model in found:
        tokens = config.model(model.name).context_tokens
        context = f"{tokens} tokens" + ("" if model.context_tokens else " (assumed)")
        metrics = "metrics read" if model.metrics_url else "no metrics: measured from here"
        lines.append(f"{model.name}: {model.served} at {model.url}, context {context}, {metrics}")
    speed = config.models[0].speed
    prior = config.quality.expected(TaskKind.GENERAL, found[0].name, Strategy.FLASH)
    lines.append(
        f"assumed: {speed.prefill_tokens_per_s:g} prompt tokens/s, {speed.token_s * 1000:g} ms a "
        f"token until measured; quality {prior:g} "
        f"for all; at most {config.models[0].max_num_seqs} calls at once each"
    )
    return lines
