"""Ends a call whose engine gives nothing for too long."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TypeVar

from actors.protocol import EngineStalled

_Part = TypeVar("_Part")


async def unless_stalled(
    parts: AsyncIterator[_Part], stall_s: float | None
) -> AsyncIterator[_Part]:
    """Pass ``parts`` on; raises ``EngineStalled`` when one takes longer than ``stall_s``.

    However long the whole takes, a call that makes progress goes on. Closing this closes ``parts``.
    """
    async with contextlib.aclosing(parts) as source:  # type: ignore[type-var]
        while True:
            try:
                async with asyncio.timeout(stall_s) as limit:
                    part = await anext(source)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if not limit.expired():
                    raise
                raise EngineStalled(stall_s or 0.0) from None
            yield part
