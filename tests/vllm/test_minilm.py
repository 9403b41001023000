"""The real MiniLM. Needs torch and `inframind models prepare all-minilm-l6-v2`."""

import numpy as np
import pytest

from actors.embedding import MiniLmEmbedder
from actors.models import resolve_source
from runtime.errors import ConfigError

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def embedder():
    pytest.importorskip("torch", reason="torch is not installed: make install-vllm")
    try:
        folder = resolve_source("prepared:all-minilm-l6-v2")
    except ConfigError as error:
        pytest.skip(str(error))
    return MiniLmEmbedder(folder)


def test_like_meanings_are_near_without_shared_words(embedder):
    sort, order, capital = embedder.embed(
        [
            "Write a Python function that sorts a list.",
            "Code for putting array elements into ascending order",
            "Which city is the seat of government of France?",
        ]
    )
    assert sort @ order > 0.4
    assert sort @ order > sort @ capital + 0.3


def test_any_text_gives_a_unit_vector_whatever_else_is_in_the_batch(embedder):
    texts = ["", "🎉👩‍👩‍👧", "a\ud800b", "What is 2 + 2?", "word " * 50_000, "x" * 100_000] * 3
    rows = embedder.embed(texts)
    assert rows.shape == (18, 384)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-4)
    np.testing.assert_allclose(rows[3], embedder.embed(["What is 2 + 2?"])[0], atol=1e-4)


def test_text_beyond_256_tokens_is_cut(embedder):
    short = embedder.embed(["word " * 400])
    np.testing.assert_allclose(short, embedder.embed(["word " * 400 + "entirely else"]), atol=1e-5)


def test_a_folder_without_weights_is_a_config_error(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed: make install-vllm")
    with pytest.raises(ConfigError, match="no model in"):
        MiniLmEmbedder(tmp_path)
