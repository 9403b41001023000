"""Query embeddings, 384-d: MiniLM or feature hashing, behind one batched Serve deployment.

``Embedder`` is a plain class; ``serve.deployment`` is applied where the application is composed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from ray import serve

from actors.models import resolve_source
from runtime.embedding import EMBEDDING_DIM, HashEmbedder
from runtime.errors import ConfigError

_BATCH_WAIT_S = 0.004
_MAX_TOKENS = 256  # the model's own max_seq_length
_MAX_CHARS = 16_384  # cut before tokenising: far more than 256 tokens of any prose
_TEXTS_PER_PASS = 8


class TextEmbedder(Protocol):
    """``embed`` gives ``[len(texts), dim]`` float32, rows of L2 norm 1."""

    dim: int

    def embed(self, texts: list[str]) -> NDArray[np.float32]: ...


class MiniLmEmbedder:
    """all-MiniLM-L6-v2: mean over the tokens of the last layer, normalised. Not thread-safe.

    Raises:
        ConfigError: ``folder`` has no model, or torch and transformers are not installed.
    """

    dim = EMBEDDING_DIM

    def __init__(self, folder: str | Path) -> None:
        try:
            import torch
            from transformers import AutoModel, AutoTokenizer
        except ImportError as error:
            raise ConfigError(f"embedding minilm needs {error.name}; use `hash`") from None
        if not (Path(folder) / "model.safetensors").is_file():
            raise ConfigError(f"embedding minilm: no model in {folder}")
        torch.set_num_threads(1)
        self._torch = torch
        self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self._model = AutoModel.from_pretrained(folder, local_files_only=True).eval()

    def embed(self, texts: list[str]) -> NDArray[np.float32]:
        """Texts of like length share a pass, so that one long text does not pad all others."""
        out = np.zeros((len(texts), self.dim), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        for start in range(0, len(order), _TEXTS_PER_PASS):
            chosen = order[start : start + _TEXTS_PER_PASS]
            out[chosen] = self._embed_pass([_clean(texts[i]) for i in chosen])
        return out

    def _embed_pass(self, texts: list[str]) -> NDArray[np.float32]:
        inputs = self._tokenizer(
            texts, padding=True, truncation=True, max_length=_MAX_TOKENS, return_tensors="pt"
        )
        with self._torch.inference_mode():
            hidden = self._model(**inputs).last_hidden_state
        mask = inputs["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        pooled = (hidden * mask).sum(1) / mask.sum(1)
        rows: NDArray[np.float32] = self._torch.nn.functional.normalize(pooled, dim=1).numpy()
        return rows


def _clean(text: str) -> str:
    """The tokeniser refuses lone surrogates, which JSON can carry."""
    return text[:_MAX_CHARS].encode("utf-8", "replace").decode("utf-8")


def make_embedder(backend: str, source: str) -> TextEmbedder:
    """``hash``, or ``minilm`` with ``source`` as in the config (``prepared:NAME`` or a folder)."""
    if backend == "hash":
        return HashEmbedder()
    if backend == "minilm":
        return MiniLmEmbedder(resolve_source(source))
    raise ConfigError(f"embedding.backend: {backend!r} is not one of minilm, hash")


class Embedder:
    """The deployment. Calls that arrive within 4 ms of each other share a batch of ``max_batch``.

    Batches run one at a time in a thread: the replica's event loop stays free for health checks.
    """

    def __init__(self, backend: str, source: str, max_batch: int) -> None:
        self._backend = make_embedder(backend, source)
        self._backend.embed([""])  # the first pass is slow
        self._embed.set_max_batch_size(max_batch)  # type: ignore[attr-defined]

    async def __call__(self, text: str) -> NDArray[np.float32]:
        """``[384]``, float32, L2 norm 1."""
        row: NDArray[np.float32] = await self._embed(text)
        return row

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=_BATCH_WAIT_S)
    async def _embed(self, texts: list[str]) -> list[NDArray[np.float32]]:
        return list(await asyncio.to_thread(self._backend.embed, texts))
