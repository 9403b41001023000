"""The task kind of a question: the kind whose prototype questions are nearest to its embedding."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import numpy.typing as npt
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from runtime.classify import PROTOTYPES, nearest_kind
from runtime.types import TaskKind

Vector = npt.NDArray[np.float32]


class Classifier:
    """Embeds a question through the embedding deployment and compares it with the prototypes."""

    def __init__(self, embed: Any, timeout_s: float) -> None:
        self._embed = embed
        self._timeout_s = timeout_s
        self._prototypes: list[tuple[TaskKind, Vector]] | None = None
        self._lock = asyncio.Lock()

    async def classify(
        self, question: str, task: TaskKind | None
    ) -> tuple[TaskKind, Vector | None]:
        """The kind (``task`` where it is given) and the embedding.

        ``GENERAL`` and ``None`` when no embedding is to be had in time.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                embedding: Vector = await self._embed.remote(question)
                if task is None:
                    task = nearest_kind(embedding, await self._ready())
                return task, embedding
        except (TimeoutError, RayError, RayServeException):
            return task or TaskKind.GENERAL, None

    async def _ready(self) -> list[tuple[TaskKind, Vector]]:
        """The prototypes' embeddings, made once."""
        async with self._lock:
            if self._prototypes is None:
                pairs = [(kind, text) for kind, texts in PROTOTYPES.items() for text in texts]
                vectors = await asyncio.gather(*(self._embed.remote(text) for _, text in pairs))
                self._prototypes = [
                    (kind, vector) for (kind, _), vector in zip(pairs, vectors, strict=True)
                ]
            return self._prototypes
