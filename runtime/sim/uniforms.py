"""Random numbers that depend on a key alone, so that no order of calls can change them.

A key is a text. Its BLAKE2b digest of 64 bytes is read as eight little-endian 64-bit integers;
integer ``x`` becomes the uniform ``((x >> 12) + 1/2) / 2**52``, which is never 0 or 1. A normal is
the standard normal quantile of a uniform. One digest costs about a microsecond, a numpy generator
some twenty.
"""

from __future__ import annotations

from hashlib import blake2b
from statistics import NormalDist
from struct import Struct

Uniforms = tuple[float, float, float, float, float, float, float, float]

quantile = NormalDist().inv_cdf
"""The standard normal quantile of a probability."""

cumulative = NormalDist().cdf
"""The standard normal distribution function."""

_EIGHT = Struct("<8Q")
_STEP = 2.0**-52


def uniforms(key: str) -> Uniforms:
    """Eight independent uniforms, in (0, 1), of ``key``."""
    a, b, c, d, e, f, g, h = _EIGHT.unpack(blake2b(key.encode()).digest())
    return (
        ((a >> 12) + 0.5) * _STEP,
        ((b >> 12) + 0.5) * _STEP,
        ((c >> 12) + 0.5) * _STEP,
        ((d >> 12) + 0.5) * _STEP,
        ((e >> 12) + 0.5) * _STEP,
        ((f >> 12) + 0.5) * _STEP,
        ((g >> 12) + 0.5) * _STEP,
        ((h >> 12) + 0.5) * _STEP,
    )


def normal(key: str) -> float:
    """A standard normal of ``key``."""
    return quantile(uniforms(key)[0])
