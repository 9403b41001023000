"""Frames of JSON over a pipe: four bytes of length, then the text."""

from __future__ import annotations

import json
import os
from typing import Any

MAX_FRAME_BYTES = 32 * 2**20


class ProtocolError(Exception):
    """The other side sent what is no frame, or not what was agreed."""


def read_frame(descriptor: int, limit_bytes: int = MAX_FRAME_BYTES) -> Any:
    """The next frame. Raises ``EOFError`` at the end, ``ProtocolError`` on what is no frame."""
    size = int.from_bytes(_read(descriptor, 4), "big")
    if size > limit_bytes:
        raise ProtocolError(f"a frame of {size} bytes, allowed are {limit_bytes}")
    try:
        return json.loads(_read(descriptor, size))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not JSON: {type(error).__name__}") from None


def write_frame(descriptor: int, content: Any) -> None:
    """Raises ``OSError``, and ``ValueError`` where the content is too long."""
    data = json.dumps(content).encode()
    if len(data) > MAX_FRAME_BYTES:
        raise ValueError(f"{len(data)} bytes are more than {MAX_FRAME_BYTES}")
    rest = memoryview(len(data).to_bytes(4, "big") + data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _read(descriptor: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = os.read(descriptor, min(size - len(data), 2**20))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)
