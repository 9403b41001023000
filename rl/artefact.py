"""A trained policy as files: ``NAME.safetensors`` and ``NAME.json``; never pickle.

The JSON says the format, the observation layout with its version (models, topologies, roles), the
parts that are switched off, and how it was trained.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from rl.nets import Tensors, check_shapes
from rl.spaces import Array, Layout, layout_from_json
from runtime.config import AppConfig
from runtime.errors import ConfigError
from runtime.roles import roles_for
from runtime.topology import TOPOLOGIES
from runtime.types import TaskKind

FORMAT = 1
_PARTS = ("planner", "executor")


@dataclass(frozen=True, slots=True)
class Artefact:
    """``role_vectors`` is [R + 1, 384]; ``trained`` is free text and numbers about the training."""

    layout: Layout
    planner: Tensors
    executor: Tensors
    role_vectors: Array
    film: bool = True
    question: bool = True
    trained: Mapping[str, Any] = field(default_factory=dict)


def save(artefact: Artefact, path: Path) -> None:
    """Write ``path`` (``.safetensors``) and the JSON beside it; each file appears whole."""
    tensors = {"role_vectors": artefact.role_vectors}
    for part in _PARTS:
        tensors |= {f"{part}.{name}": value for name, value in getattr(artefact, part).items()}
    about = {
        "format": FORMAT,
        "layout": artefact.layout.as_json(),
        "film": artefact.film,
        "question": artefact.question,
        "trained": dict(artefact.trained),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".fresh")
    save_file(tensors, fresh)
    os.replace(fresh, path)
    fresh.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    os.replace(fresh, path.with_suffix(".json"))


def load(path: Path) -> Artefact:
    """Read and check both files.

    Raises:
        ConfigError: a file is missing or broken, of another format or layout version, or its
            tensors do not fit its layout.
    """
    try:
        about = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        tensors = load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(f"policy artefact {path}: {error}") from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        found = about.get("format") if isinstance(about, dict) else None
        raise ConfigError(f"policy artefact {path}: format {found!r}, only {FORMAT} can be read")
    try:
        layout = layout_from_json(about["layout"])
        parts = {part: _part(tensors, part) for part in _PARTS}
        check_shapes(parts["executor"], parts["planner"], layout)
        return Artefact(
            layout=layout,
            planner=parts["planner"],
            executor=parts["executor"],
            role_vectors=tensors["role_vectors"],
            film=bool(about["film"]),
            question=bool(about["question"]),
            trained=about.get("trained", {}),
        )
    except KeyError as error:
        raise ConfigError(f"policy artefact {path}: {error} is missing") from None
    except ConfigError as error:
        raise ConfigError(f"policy artefact {path}: {error.message}") from None


def check_fits(layout: Layout, config: AppConfig, name: str) -> None:
    """Raises ``ConfigError`` that says why a policy of this layout cannot serve the pool."""
    models = tuple(model.name for model in config.models)
    if models != layout.models:
        raise ConfigError(
            f"{name} was trained for the models {', '.join(layout.models)}; this pool has "
            f"{', '.join(models)}"
        )
    if config.embedding.backend != layout.embedding:
        raise ConfigError(
            f"{name} reads embeddings of {layout.embedding!r}; this pool's are of "
            f"{config.embedding.backend!r}"
        )
    if unknown := [t for t in layout.topologies if t not in TOPOLOGIES]:
        raise ConfigError(f"{name} plans topologies that are not registered: {unknown}")
    for task in TaskKind:
        there = {role.name for role in roles_for(task)}
        if not any(kind == task.value and role in there for kind, role in layout.roles):
            raise ConfigError(f"{name} knows no role for {task.value} questions")


def _part(tensors: Mapping[str, Array], part: str) -> dict[str, Array]:
    start = f"{part}."
    return {n.removeprefix(start): v for n, v in tensors.items() if n.startswith(start)}
