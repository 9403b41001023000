"""The hash embedder's contract, and the embedder's choice of backend."""

import os
import subprocess
import sys

import numpy as np
import pytest

from actors.embedding import make_embedder
from runtime.embedding import HashEmbedder
from runtime.errors import ConfigError

SORT = "Write a Python function that sorts a list of numbers."
SORT_AGAIN = "Python function which sorts a list of integers"
CAPITAL = "What is the capital of France?"
ODD = [
    "",
    " \n\t ",
    "🎉",
    "👩‍👩‍👧 ok",
    "a\ud800b",
    "日本語のテキスト",
    "x",
    "ab",
    "1" * 300_000,
    "a b " * 100_000,
]


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_any_text_gives_a_unit_vector(text):
    rows = HashEmbedder().embed([text])
    assert rows.shape == (1, 384)
    assert rows.dtype == np.float32
    assert np.linalg.norm(rows[0]) == pytest.approx(1.0, abs=1e-5)


def test_rows_do_not_depend_on_the_batch():
    embedder = HashEmbedder()
    together = embedder.embed([SORT, "", CAPITAL])
    alone = np.concatenate([embedder.embed([t]) for t in (SORT, "", CAPITAL)])
    np.testing.assert_array_equal(together, alone)


def test_no_texts_give_no_rows():
    assert HashEmbedder().embed([]).shape == (0, 384)


def test_shared_words_are_nearer_than_other_words():
    sort, again, capital = HashEmbedder().embed([SORT, SORT_AGAIN, CAPITAL])
    assert sort @ again > 0.5
    assert sort @ capital < 0.3


def test_case_does_not_matter_but_words_do():
    lower, upper, other = HashEmbedder().embed(["prime numbers", "PRIME Numbers", "even numbers"])
    np.testing.assert_array_equal(lower, upper)
    assert lower @ other < 0.9


def test_repeating_a_word_does_not_drown_the_others():
    once, often = HashEmbedder().embed(["solve the equation", "solve the the the the equation"])
    assert once @ often > 0.6


def test_vectors_agree_across_processes():
    code = (
        "import sys; from runtime.embedding import HashEmbedder;"
        f"sys.stdout.buffer.write(HashEmbedder().embed([{SORT!r}, '🎉', '']).tobytes())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert outputs == {HashEmbedder().embed([SORT, "🎉", ""]).tobytes()}


def test_unknown_backend_names_the_key():
    with pytest.raises(ConfigError, match=r"embedding\.backend.*'glove'"):
        make_embedder("glove", "x")


def test_minilm_without_weights_says_what_to_run(tmp_path, monkeypatch):
    monkeypatch.setenv("INFRAMIND_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match="inframind models prepare all-minilm-l6-v2"):
        make_embedder("minilm", "prepared:all-minilm-l6-v2")
