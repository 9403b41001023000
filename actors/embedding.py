"""Query embeddings, 384-d: MiniLM or feature hashing, behind one batched Serve deployment.

``Embedder`` is a plain class; ``serve.deployment`` is applied where the application is composed.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
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
MAX_CHARS = 16_384  # cut before tokenising: far more than 256 tokens of any prose
_TEXTS_PER_PASS = 8


class TextEmbedder(Protocol):
    """``embed`` gives ``[len(texts), dim]`` float32, rows of L2 norm 1."""

    dim: int

    def embed(self, texts: list[str]) -> NDArray[np.float32]: ...


class TokenCounter(Protocol):
    """Tokens of each text, and the most that is read of one; ``None`` is no bound."""

    most_tokens: int | None

    def count(self, texts: list[str]) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Embedded:
    """``vectors`` is ``[len(texts), dim]``; empty where a text, the first of them by index, is
    ``too_long``."""

    vectors: NDArray[np.float32]
    num_tokens: int
    most_tokens: int | None = None
    too_long: int | None = None


class WordCounter:
    """For embedders without a tokenizer: words, at least one a text."""

    most_tokens = None

    def count(self, texts: list[str]) -> list[int]:
        return [max(1, len(text.split())) for text in texts]


class MiniLmEmbedder:
    """all-MiniLM-L6-v2: mean over the tokens of the last layer, normalised. ``embed`` is for one
    thread at a time; ``count`` may run beside it.

    Raises:
        ConfigError: ``folder`` has no model, or torch and transformers are not installed.
    """

    dim = EMBEDDING_DIM
    most_tokens = _MAX_TOKENS

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
        self._lock = threading.Lock()  # a tokenizer is set to cut, or not, for all its callers
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

    def count(self, texts: list[str]) -> list[int]:
        """Tokens of each text with the two that mark its ends, uncut."""
        with self._lock:
            rows = self._tokenizer([_clean(text) for text in texts], verbose=False)["input_ids"]
        return [len(row) for row in rows]

    def _embed_pass(self, texts: list[str]) -> NDArray[np.float32]:
        with self._lock:
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
    return text[:MAX_CHARS].encode("utf-8", "replace").decode("utf-8")


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
        counter = self._backend if isinstance(self._backend, MiniLmEmbedder) else WordCounter()
        self._counter: TokenCounter = counter
        self._max_batch = max_batch
        self._backend.embed([""])  # the first pass is slow
        self._embed.set_max_batch_size(max_batch)  # type: ignore[attr-defined]

    async def __call__(self, text: str) -> NDArray[np.float32]:
        """``[384]``, float32, L2 norm 1."""
        row: NDArray[np.float32] = await self._embed(text)
        return row

    async def embed_all(self, texts: list[str]) -> Embedded:
        """All ``texts``, unless one is longer than what the model reads of it.

        One batch after another, so that single calls get in between.
        """
        counts = await asyncio.to_thread(self._counter.count, texts)
        most = self._counter.most_tokens
        too_long = [i for i, count in enumerate(counts) if most is not None and count > most]
        if too_long:
            none = np.zeros((0, self._backend.dim), dtype=np.float32)
            return Embedded(none, sum(counts), most, too_long[0])
        rows: list[NDArray[np.float32]] = []
        for start in range(0, len(texts), self._max_batch):
            chosen = texts[start : start + self._max_batch]
            rows += await asyncio.gather(*(self._embed(text) for text in chosen))
        return Embedded(np.stack(rows), sum(counts), most)

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=_BATCH_WAIT_S)
    async def _embed(self, texts: list[str]) -> list[NDArray[np.float32]]:
        return list(await asyncio.to_thread(self._backend.embed, texts))
