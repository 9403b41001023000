"""What a benchmark assumes of answers: the calibration, its luck, and one rule changed at will."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import numpy as np

from runtime.sim.items import TASKS, Calibration, load_folder, shipped
from runtime.sim.outcomes import SimItem
from runtime.sim.quality import QualityModel

DATASETS = tuple(TASKS)
EMBEDDINGS = Path(__file__).parent / "embeddings.npz"

Vectors = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class World:
    """``folder`` has a full ``items.csv`` (else the shipped one); ``same_wrong`` multiplies the
    probability that two wrong answers coincide, on every data set."""

    folder: Path | None = None
    same_wrong: float = 1.0

    def calibration(self) -> Calibration:
        """All that answers rest on."""
        return _calibration(self)

    def quality(self, seed: int) -> QualityModel:
        """The model of answers with the luck of ``seed``."""
        return QualityModel(self.calibration(), seed)

    def items(self, dataset: str, split: str = "test") -> tuple[SimItem, ...]:
        """The items of a data set."""
        return self.calibration().select(dataset, split)


@lru_cache(maxsize=8)
def _calibration(world: World) -> Calibration:
    calibration = load_folder(world.folder) if world.folder else shipped()
    if world.same_wrong == 1.0:
        return calibration
    parameters = calibration.parameters
    changed = {
        name: replace(
            d, same_wrong=d.same_wrong.moved(min(1.0, world.same_wrong * d.same_wrong.value))
        )
        for name, d in parameters.datasets.items()
    }
    return replace(calibration, parameters=replace(parameters, datasets=changed))


@lru_cache(maxsize=2)
def embeddings(path: Path = EMBEDDINGS) -> Vectors:
    """Vectors of the test questions by item id, for policies that read the question.

    The file has ``keys`` and ``vectors`` in signed bytes, each row over its own ``scales``.
    """
    with np.load(path, allow_pickle=False) as file:
        rows = file["vectors"].astype(np.float64) * file["scales"][:, None]
        keys = file["keys"].tolist()
    return MappingProxyType({k: tuple(r) for k, r in zip(keys, rows.tolist(), strict=True)})


def pack(source: Path, items: Mapping[str, SimItem], path: Path = EMBEDDINGS) -> int:
    """Write ``path`` from a file of ``benchmarks.embed``, for ``items`` only; returns how many."""
    with np.load(source, allow_pickle=False) as file:
        found = dict(zip(file["keys"].tolist(), file["vectors"], strict=True))
    keys = [key for key in items if key in found]
    vectors = np.stack([found[key] for key in keys])
    scales = np.abs(vectors).max(axis=1) / 127
    small = np.round(vectors / scales[:, None]).astype(np.int8)
    np.savez_compressed(path, keys=np.array(keys), vectors=small, scales=scales.astype(np.float32))
    return len(keys)
