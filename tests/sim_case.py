"""Small pools, outcomes and workloads for tests of the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

from runtime.config import AppConfig, parse_config
from runtime.policy import make_policy
from runtime.sim.outcomes import Outcome, Seen, SimItem
from runtime.sim.pool import SimModel
from runtime.sim.results import Results
from runtime.sim.settings import SimSettings
from runtime.sim.simulation import Simulation
from runtime.sim.workload import Arrival
from runtime.types import Call, Step, TaskKind

ITEM = SimItem("item", "set", TaskKind.MATH, 100)


class FixedOutcomes:
    """Every call writes ``tokens`` and answers 42; ``tokens`` may depend on the model."""

    def __init__(self, tokens: int | dict[str, int] = 100, text: str = "Answer: 42") -> None:
        self.tokens = tokens
        self.text = text
        self.seen: list[tuple[Step, list[Seen]]] = []

    def draw(self, item: SimItem, call: Call, step: Step, seen: Sequence[Seen]) -> Outcome:
        self.seen.append((step, list(seen)))
        tokens = self.tokens if isinstance(self.tokens, int) else self.tokens[call.model]
        return Outcome(self.text, tokens)

    def solved(self, item: SimItem, text: str) -> bool:
        return text == "Answer: 42"


class HashedOutcomes:
    """Lengths of 20 to 419 tokens and one of three answers, each by what the call is."""

    def draw(self, item: SimItem, call: Call, step: Step, seen: Sequence[Seen]) -> Outcome:
        number = crc32(f"{item.item_id} {call.call_id} {call.model}".encode())
        return Outcome(f"Answer: {number % 3}", 20 + number % 400)

    def solved(self, item: SimItem, text: str) -> bool:
        return text == "Answer: 0"


def model(name: str, **changes: Any) -> dict[str, Any]:
    """A model that gives a token every 10 ms."""
    return {
        "name": name,
        "backend": "fake",
        "context_tokens": 8192,
        "max_output_tokens": 2048,
        "max_num_seqs": 4,
        "speed": {"prefill_tokens_per_s": 1e5, "token_s": 0.01},
        **changes,
    }


def pool(*models: dict[str, Any], **changes: Any) -> AppConfig:
    """A config; by default one model and one agent, DeepThink."""
    options = {"strategy": "DeepThink"}
    args = {"models": list(models) or [model("only")], "version": 1, "at_deadline": "run_on"}
    return parse_config({**args, "policy": {"name": "fixed", "options": options}, **changes})


def engine(**changes: Any) -> SimModel:
    """An engine whose iterations take 10 ms, whoever runs."""
    args: dict[str, Any] = {
        "a_s": 0.01,
        "c_s": 0.0,
        "d_s_per_1k": 0.0,
        "prefill_tokens_per_s": 1e9,
    }
    return SimModel(**{**args, **changes})


def at(*pairs: tuple[float, float], item: SimItem = ITEM) -> list[Arrival]:
    """Arrivals from (time, budget)."""
    return [Arrival(at_s, item, budget_s) for at_s, budget_s in pairs]


def simulate(
    config: AppConfig,
    arrivals: Sequence[Arrival],
    outcomes: Any = None,
    models: dict[str, SimModel] | None = None,
    **settings: Any,
) -> Results:
    """A run of the config's policy."""
    simulation = Simulation(
        config,
        outcomes or FixedOutcomes(),
        arrivals,
        make_policy(config),
        models=models,
        settings=SimSettings(**settings),
    )
    return simulation.run()


def statuses(results: Results) -> dict[int, str]:
    """How each query ended, by its number."""
    return {row["query"]: row["status"] for row in results.queries.rows()}


def grants(results: Results) -> list[int]:
    """The queries of the calls that got their turn, in that order."""
    rows = [row for row in results.calls.rows() if row["granted_s"] == row["granted_s"]]
    return [row["query"] for row in sorted(rows, key=lambda row: row["granted_s"])]
