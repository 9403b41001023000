"""A text embedding without a model: lexical feature hashing.

Texts that share words or parts of words get similar vectors; meaning beyond that is not seen. The
hashes are fixed, so vectors agree across processes and machines.
"""

from __future__ import annotations

import re
import zlib

import numpy as np
from numpy.typing import NDArray

EMBEDDING_DIM = 384
_WORD = re.compile(r"\w+")
_TRIGRAM_WEIGHT = 0.5
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9))
_SIGN_BIT, _BUCKET_SHIFT = np.uint64(63), np.uint64(20)


class HashEmbedder:
    """Lower-cased words and character trigrams, signed feature hashing (Weinberger et al., 2009).

    A feature counts by the square root of how often it occurs, trigrams half of words.
    """

    dim = EMBEDDING_DIM

    def embed(self, texts: list[str]) -> NDArray[np.float32]:
        """``[len(texts), 384]``, float32, each row of L2 norm 1; any text works, the empty too."""
        rows = [self._row(text.lower()) for text in texts]
        return np.array(rows, dtype=np.float32).reshape(len(texts), self.dim)

    def _row(self, text: str) -> NDArray[np.float64]:
        row = np.zeros(self.dim)
        words = _WORD.findall(text)
        _add(row, _hash_words(words), 1.0)
        _add(row, _hash_trigrams(f" {' '.join(text.split())} "), _TRIGRAM_WEIGHT)
        norm = float(np.linalg.norm(row))
        if norm < 1e-9:  # nothing to hash, or everything cancelled: one fixed direction
            row[0] = norm = 1.0
        return row / norm


def _hash_words(words: list[str]) -> NDArray[np.uint64]:
    codes = [zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in words]
    return np.array(codes, dtype=np.uint64) * _MIX[0] ^ _MIX[2]


def _hash_trigrams(text: str) -> NDArray[np.uint64]:
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    points = points.astype(np.uint64)
    mixed = points[:-2] * _MIX[0] ^ points[1:-1] * _MIX[1] ^ points[2:] * _MIX[2]
    return (mixed ^ (mixed >> np.uint64(29))) * _MIX[1]


def _add(row: NDArray[np.float64], hashes: NDArray[np.uint64], weight: float) -> None:
    distinct, counts = np.unique(hashes, return_counts=True)
    buckets = ((distinct >> _BUCKET_SHIFT) % np.uint64(len(row))).astype(np.intp)
    signs = 1.0 - 2.0 * (distinct >> _SIGN_BIT).astype(np.float64)
    np.add.at(row, buckets, signs * np.sqrt(counts) * weight)
