"""Tables for the terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text


def answers_table(answers: list[dict[str, Any]]) -> Table:
    """One block per query: the question and its outcome, then a line per step."""
    table = Table(show_lines=False, expand=True, pad_edge=False)
    for title, style in (
        ("query / step", "bold"),
        ("model", "cyan"),
        ("depth", "magenta"),
        ("tokens", ""),
        ("wait s", ""),
        ("time s", ""),
        ("outcome", ""),
    ):
        table.add_column(title, style=style, overflow="fold", ratio=4 if "query" in title else None)
    for answer in answers:
        _add_answer(table, answer)
    return table


def _add_answer(table: Table, answer: dict[str, Any]) -> None:
    kept = Text("kept", "green") if answer["kept_budget"] else Text(answer["status"], "red")
    spent = f"{answer['latency_s']:.1f} of {answer['budget_s']:g}"
    table.add_row(Text(answer.get("asked", answer["query_id"])), "", "", "", "", spent, kept)
    for step in answer["steps"]:
        outcome = step["status"] if step["error"] is None else f"{step['status']}: {step['error']}"
        if step["answer"] is not None and step["status"] == "ok":
            outcome += f" ({step['answer']})"
        table.add_row(
            f"  {step['step_id']} {step['role']} {step['kind']}",
            step["model"] or "-",
            step["strategy"] or "-",
            _number(step["completion_tokens"], "d"),
            _number(step["queue_s"], ".2f"),
            _number(step["service_s"], ".2f"),
            outcome,
        )
    shown = answer["text"] or (answer["error"] or {}).get("message", "")
    line = " ".join(shown.split())
    table.add_row(Text(f"  {answer['topology'] or '-'}: {line[:300]}", "dim"), *[""] * 6)
    table.add_section()


def pool_table(pool: dict[str, Any]) -> Table:
    """One line per model of ``GET /v1/pool``; ``?`` is what is not known."""
    table = Table(title=f"pool, snapshot {pool['version']}, policy {pool['policy']}")
    for title in (
        "model",
        "engine",
        "replicas",
        "slots",
        "running",
        "waiting",
        "backlog",
        "leased",
    ):
        table.add_column(title)
    for title in ("kv", "e2e s", "token ms", "age s"):
        table.add_column(title, justify="right")
    for model in pool["models"]:
        tpot = model.get("tpot_s")
        table.add_row(
            model["name"],
            model["backend"] + (" (simulated)" if model["simulated"] else ""),
            *(_number(model.get(k), "d") for k in ("replicas", "slots", "running", "waiting")),
            *(_number(model.get(k), "d") for k in ("backlog", "leased")),
            _number(model.get("kv_usage"), ".0%"),
            _number(model.get("e2e_s"), ".2f"),
            _number(tpot * 1000 if tpot is not None else None, ".1f"),
            _number(model.get("age_s"), ".2f"),
        )
    return table


def _number(value: Any, form: str) -> str:
    return "?" if value is None else format(value, form)
