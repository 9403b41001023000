"""What MasRouter's cascade chooses among, as texts to embed: "name : description"."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.roles import roles_for
from runtime.types import TaskKind, Topology

TASKS: Mapping[TaskKind, str] = {
    TaskKind.MATH: "problems that ask for a number or an expression: word problems, algebra, "
    "geometry, counting, number theory, calculus",
    TaskKind.KNOWLEDGE: "questions that turn on what is known in a field such as law, history, "
    "biology, physics, business or psychology, mostly with options to choose from",
    TaskKind.CODE: "programming tasks: write or complete a function that meets a description and "
    "passes tests",
}

MODES: Mapping[Topology, str] = {
    Topology.IO: "every agent answers at once and on its own, without seeing another's work",
    Topology.COT: "every agent thinks step by step on its own and then answers",
    Topology.CHAIN: "agents answer one after another, each reading the answer before its own",
    Topology.FULL_CONNECTED: "agents answer one after another, each reading all earlier answers",
    Topology.DEBATE: "agents answer, read each other's answers, dissent and answer again",
    Topology.REFLECTION: "every agent answers, reviews its own answer and corrects it",
}

MODELS: Mapping[str, str] = {
    "deepseek-r1-distill-qwen-32b": "a 32-billion-parameter reasoning model that thinks at length "
    "before it answers; strongest at mathematics, slowest and most expensive",
    "mistral-small-24b": "a 24-billion-parameter general instruction model with broad knowledge "
    "and short answers, of medium cost",
    "qwen2.5-coder-14b": "a 14-billion-parameter model made for code, also good at mathematics, "
    "weaker in knowledge, of medium cost",
    "llama-3.1-8b": "an 8-billion-parameter general instruction model, fast and cheap, of middling "
    "skill",
    "llama-3.2-3b": "a 3-billion-parameter small general model, the fastest and cheapest, of "
    "modest skill",
}
"""The paper's pool, as ``serve_configs/b200.yaml`` names it, from the largest to the smallest."""


def item_texts() -> dict[str, str]:
    """Every item's text by its key: ``task:``, ``mode:`` and ``model:`` with the name, and
    ``role:TASK/NAME``."""
    texts = {f"task:{task}": f"{task} : {about}" for task, about in TASKS.items()}
    texts |= {f"mode:{mode}": f"{mode} : {about}" for mode, about in MODES.items()}
    texts |= {f"model:{name}": f"{name} : {about}" for name, about in MODELS.items()}
    for task in TaskKind:
        for role in roles_for(task):
            texts[f"role:{task}/{role.name}"] = f"{role.name} : {role.prompt}"
    return texts
