"""Wrappers of Keras call a layer on parts of a batch, with masks (batch, tokens) of Keras's own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from fuzz.fuzzing import Effort
from fuzz.runners import NumPy


@dataclass(frozen=True)
class Texts:
    """A batch of texts, each of several sentences of words, and a layer for each sentence."""

    layer: str
    score: str
    lengths: tuple[tuple[int, ...], ...]
    words: int
    seed: int

    def ids(self) -> np.ndarray:
        """Return numbers of words (texts, sentences, words); 0 is padding."""
        lengths = np.array(self.lengths)[..., None]
        drawn = np.random.default_rng(self.seed).integers(1, 20, (*lengths.shape[:2], self.words))
        return np.where(np.arange(self.words) < lengths, drawn, 0)


@st.composite
def texts(draw: st.DrawFn) -> Texts:
    batch, sentences, words = (draw(st.integers(1, n)) for n in (5, 3, 6))
    length = st.integers(1, words)
    one = st.lists(length, min_size=sentences, max_size=sentences).map(tuple)
    lengths = draw(st.lists(one, min_size=batch, max_size=batch).map(tuple))
    layer = draw(st.sampled_from(("SelfAttention", "MultiHeadAttention")))
    score = draw(st.sampled_from(("dot", "scaled_dot", "gaussian", "additive", "laplace")))
    return Texts(layer, score, lengths, words, draw(st.integers(0, 2**16)))


def test_a_layer_for_each_sentence(runner: NumPy, effort: Effort) -> None:
    if runner.name != "tensorflow":
        pytest.skip("layers of Keras are drawn beside TensorFlow")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    effort.spend(check, texts(), examples=20, share=0.05)


def check(drawn: Texts) -> None:
    import keras

    from anyscore.keras import MultiHeadAttention, SelfAttention

    keras.utils.set_random_seed(drawn.seed)
    layers: dict[str, Any] = {
        "SelfAttention": SelfAttention,
        "MultiHeadAttention": MultiHeadAttention,
    }
    layer = layers[drawn.layer](8, 4, score=drawn.score)
    embed, ids = keras.layers.Embedding(20, 8, mask_zero=True), drawn.ids()
    found = keras.layers.TimeDistributed(layer)(embed(ids))
    expected = [layer(embed(ids[:, n])) for n in range(ids.shape[1])]
    np.testing.assert_allclose(
        np.asarray(found)[ids != 0], np.stack(expected, 1)[ids != 0], rtol=1e-5, atol=1e-6
    )
