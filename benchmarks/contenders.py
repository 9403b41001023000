"""The policies that the tables compare, by name; what validation chose for them is committed.

``chosen.json`` holds choices that were made by a command and not by hand: each section names it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from runtime.errors import ConfigError

CHOSEN = Path(__file__).parent / "chosen.json"

Order = Literal["edf", "edf_plain", "fcfs"]
Kind = Literal["paper", "baseline", "aware", "ablation"]


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy with its options and the order of its queues.

    ``kind``: a baseline of the paper, another load-blind or simple one, one that sees load and
    budget, or one of these with a part taken out.
    """

    name: str
    policy: str
    kind: Kind
    order: Order = "fcfs"
    options: Mapping[str, Any] = field(default_factory=dict)
    per_dataset: str = ""  # section of ``chosen.json`` with options by data set

    def options_for(self, dataset: str) -> dict[str, Any]:
        """Its options on a data set; raises ``ConfigError`` where nothing was chosen for it."""
        if not self.per_dataset:
            return dict(self.options)
        section = chosen(self.per_dataset)
        if dataset not in section:
            raise ConfigError(f"chosen.json: {self.per_dataset}: nothing for {dataset!r}")
        return {**section[dataset], **self.options}


CONTENDERS = (
    Contender("moa", "moa", "paper", per_dataset="moa"),
    Contender("gptswarm", "gptswarm", "paper", per_dataset="gptswarm"),
    Contender("masrouter", "masrouter", "paper"),
    Contender("self_consistency", "self_consistency", "baseline"),
    Contender("single_best", "single_best", "baseline", per_dataset="single_best"),
    Contender("least_loaded", "least_loaded", "baseline"),
    Contender("predicted_latency", "predicted_latency", "baseline"),
    Contender("random", "random", "baseline"),
    Contender("cascade", "cascade", "aware", "edf"),
    Contender("greedy", "greedy", "aware", "edf"),
    Contender(
        "greedy_no_price", "greedy", "ablation", "edf", {"price_idle": 0.0, "price_loaded": 0.0}
    ),
    Contender("quality_only", "quality_only", "ablation", "edf"),
    Contender("greedy_concise", "greedy", "ablation", "edf", {"depths": ["Concise"]}),
    Contender("greedy_flash", "greedy", "ablation", "edf", {"depths": ["Flash"]}),
    Contender("greedy_fcfs", "greedy", "ablation", "fcfs"),
    Contender("greedy_edf_plain", "greedy", "ablation", "edf_plain"),
)
"""In the order of the tables. Baselines run first come, first served, as in the paper."""

PAPERS = tuple(c.name for c in CONTENDERS if c.kind == "paper")


def contender(name: str) -> Contender:
    """The one called ``name``; raises ``ConfigError``."""
    for known in CONTENDERS:
        if known.name == name:
            return known
    raise ConfigError(f"unknown policy {name!r}; there are {', '.join(c.name for c in CONTENDERS)}")


def in_order(name: str, order: Order) -> Contender:
    """A contender with another order of the queues, and a name that says so."""
    return replace(contender(name), name=f"{name}/{order}", order=order)


def chosen(section: str) -> dict[str, Any]:
    """A section of ``chosen.json``; raises ``ConfigError`` where it is not there."""
    content = _read(CHOSEN)
    if section not in content:
        raise ConfigError(f"{CHOSEN.name} has no section {section!r}")
    return dict(content[section]["value"])


def choose(section: str, value: Mapping[str, Any], command: str) -> None:
    """Write a section of ``chosen.json`` with the command that made it."""
    content = _read(CHOSEN)
    content[section] = {"command": command, "value": dict(value)}
    CHOSEN.write_text(json.dumps(dict(sorted(content.items())), indent=1) + "\n", encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
