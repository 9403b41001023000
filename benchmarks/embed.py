"""Embeddings of benchmark questions and of what MasRouter chooses among, for its training:
``python -m benchmarks.embed --data FOLDER --out FILE.npz``.

``FOLDER`` holds ``*.jsonl`` with ``id`` and ``question``. The file has ``keys`` (item ids and
those of ``rl.baselines.items``) and ``vectors`` ([n, 384], float32).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from actors.embedding import make_embedder
from rl.baselines.items import item_texts

_BATCH = 64


def questions(folder: Path) -> dict[str, str]:
    """Question by item id, of every ``*.jsonl`` in ``folder``.

    Raises:
        ValueError: a row has no id or no question; the message names file and line.
    """
    texts: dict[str, str] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                row = json.loads(line)
                texts[row["id"]] = row["question"]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path.name}, line {number}: {error!r}") from None
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backend", choices=("minilm", "hash"), default="minilm")
    parser.add_argument("--source", default="prepared:all-minilm-l6-v2")
    args = parser.parse_args()
    texts = {**questions(args.data), **item_texts()}
    embedder = make_embedder(args.backend, args.source)
    keys, wanted = list(texts), list(texts.values())
    rows = [
        embedder.embed(wanted[start : start + _BATCH]) for start in range(0, len(wanted), _BATCH)
    ]
    np.savez(args.out, keys=np.array(keys), vectors=np.concatenate(rows))
    print(f"{len(keys)} embeddings in {args.out}")


if __name__ == "__main__":
    main()
