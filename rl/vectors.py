"""Embeddings of training questions and roles: files of ``benchmarks.embed``, or packed ones.

Packed files hold rows of signed bytes, each over its own ``scales``; they are what is shipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rl.spaces import DECIDER_KEY, Array, Layout, role_key
from runtime.errors import ConfigError

SHIPPED = Path(__file__).parent / "data" / "train_embeddings.npz"


def load_vectors(paths: Sequence[Path] = (SHIPPED,)) -> dict[str, Array]:
    """Vectors of shape [384] by item id and by ``role:TASK/NAME``; later files win.

    Raises:
        ConfigError: a file is missing or cannot be read.
    """
    found: dict[str, Array] = {}
    for path in paths:
        try:
            with np.load(path, allow_pickle=False) as file:
                rows: npt.NDArray[np.float32] = file["vectors"].astype(np.float32)
                if "scales" in file:
                    rows = rows * file["scales"].astype(np.float32)[:, None]
                keys = file["keys"].tolist()
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"embeddings {path}: {error}") from None
        found.update(zip(keys, rows, strict=True))
    return found


def role_vectors(layout: Layout, vectors: Mapping[str, Array]) -> Array:
    """Shape [R + 1, 384]: the layout's roles, then the decider.

    Raises:
        ConfigError: a role has no vector.
    """
    keys = [*(role_key(task, name) for task, name in layout.roles), DECIDER_KEY]
    if missing := [key for key in keys if key not in vectors]:
        raise ConfigError(f"no embedding of {missing[0]}; make them with benchmarks.embed")
    return np.stack([vectors[key] for key in keys])


def pack(vectors: Mapping[str, Array], keys: Iterable[str], path: Path) -> int:
    """Write a packed file of ``keys``; returns how many there are. Raises ``KeyError``."""
    chosen = list(keys)
    rows = np.stack([vectors[key] for key in chosen])
    scales = np.abs(rows).max(axis=1) / 127
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        keys=np.array(chosen),
        vectors=np.round(rows / scales[:, None]).astype(np.int8),
        scales=scales.astype(np.float32),
    )
    return len(chosen)
