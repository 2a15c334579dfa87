"""Calls take the names and the order of arguments of Keras's attention layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from anyscore import keras as layers
from frameworks.keras.arrays import D_V, KEEP, PAIRS, QUERIES, D, arrays, near, numpy
from helpers.by_pair import by_pair

BACKEND = keras.backend.backend()


MAKERS: dict[str, Any] = {
    "attention": lambda: layers.Attention("gatv2", hidden=5),
    "additive": lambda: layers.AdditiveAttention(5),
    "mlp": lambda: layers.MLPAttention(5),
    "dot": lambda: layers.DotProductAttention(),
    "heads": lambda: layers.MultiHeadAttention(D, 2, d_v=D_V, score="additive"),
}


@by_pair("name", MAKERS)
def test_names_of_keras(name: str) -> None:
    query, key, value = arrays()
    layer = MAKERS[name]()
    expected = layer(query, key, value)
    near(layer(query=query, value=value, key=key), expected)
    near(layer(query, value=value, key=key), expected)
    near(layer(query, key, value=value), expected)
    near(layer(inputs=[query, value, key]), expected)
    near(
        layer(query=query, value=value, key=key, valid_lens=[2, 4]),
        layer(query, key, value, [2, 4]),
    )
    masks = {"query_mask": QUERIES, "value_mask": KEEP, "key_mask": KEEP[::-1].copy()}
    listed = layer([query, value, key], mask=[QUERIES, KEEP, KEEP[::-1].copy()])
    near(layer(query=query, value=value, key=key, **masks), listed)
    assert not np.allclose(numpy(listed), numpy(expected))


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "heads"])
def test_keys_are_the_values_where_keras_says_so(name: str) -> None:
    query, key, _ = arrays()
    layer = MAKERS[name]()
    near(layer(query=query, value=key), layer(query, key))
    near(layer(query=query, value=key, key=None), layer(query, key))
    near(layer(query, value=key, value_mask=KEEP), layer([query, key], mask=[None, KEEP]))


def test_one_sequence_under_names_of_keras() -> None:
    x = arrays()[0]
    layer = layers.SelfAttention(D, 3)
    near(layer(query=x, query_mask=QUERIES), layer(x, mask=[QUERIES, QUERIES]))
    near(layer(inputs=x), layer(x))
    near(layer(query=x, value=x, key=x, value_mask=QUERIES), layer(query=x, query_mask=QUERIES))
    with pytest.raises(TypeError, match="x came twice, once as value=: this layer attends one seq"):
        layer(x, value=x + 1)
    many = layers.MultiHeadAttention(D, 2)
    near(many(query=x), many(x))
    near(many(query=x, value=x, key=x), many(x))
    near(many(x, x), many(x))


@pytest.mark.parametrize("name", ["attention", "heads"])
def test_names_in_models_and_files(name: str, tmp_path: Path) -> None:
    query, key, value = arrays()
    inputs = {x: keras.Input((None, n)) for x, n in (("query", D), ("value", D_V), ("key", D))}
    pairs = keras.Input((None, None), dtype="bool", name="pairs")
    layer = MAKERS[name]()
    model = keras.Model([*inputs.values(), pairs], layer(**inputs, attention_mask=pairs))
    given = [query, value, key, PAIRS]
    expected = layer(query, key, value, attention_mask=PAIRS)
    near(model(given), expected)
    assert not numpy(expected)[0, 1].any() or name == "heads"  # W_o has a bias
    model.save(tmp_path / "model.keras")
    near(keras.models.load_model(tmp_path / "model.keras")(given), expected)
    tokens, others = np.array([[1, 2, 0], [3, 0, 0]]), np.array([[4, 1, 2, 0], [1, 0, 0, 0]])
    embed, layer = keras.layers.Embedding(9, D, mask_zero=True), layers.DotProductAttention()
    symbols = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    model = keras.Model(symbols, layer(query=embed(symbols[0]), value=embed(symbols[1])))
    listed = layer([embed(tokens), embed(others)])
    near(model([tokens, others]), listed)
    assert (
        numpy(layer(query=embed(tokens), value=embed(others))._keras_mask) == (tokens > 0)
    ).all()


def test_what_came_twice_or_does_not_fit() -> None:
    query, key, value = arrays()
    for layer in (layers.Attention("dot"), layers.MultiHeadAttention(D, 2, d_v=D_V)):
        with pytest.raises(
            TypeError, match=r"keys came twice, once as key=: .* \(queries, keys, v"
        ):
            layer(query, key, key=key + 1)
        near(layer(query, key, key=key, value=value), layer(query, key, value))  # the same tensor
        with pytest.raises(TypeError, match="at most 4 arguments by position"):
            layer(query, key, value, [1, 2], None)
        for _ in range(2):  # before the parameters are made, and after
            with pytest.raises(
                ValueError, match=r"keys have shape .*7\), expected width 4: by pos"
            ):
                layer(query, value[..., :D] if D_V == D else value, key)
            layer(query, key, value)
    wide = layers.Attention("additive", hidden=3)
    wide(query, key, value)
    with pytest.raises(ValueError, match=r"pass one list \[query, value, key\], or query=, value="):
        wide(query, value, key)
    with pytest.raises(ValueError, match=r"queries have shape .*7\), expected width 4\."):
        wide(value, key, key)
    symbols = [keras.Input((None, x.shape[-1])) for x in (query, value, key)]
    with pytest.raises(ValueError, match="by position the order is"):
        wide(*symbols)
    with pytest.raises(ValueError, match="keys have 5 tokens but values have 3"):
        wide(query, key, query)
    with pytest.raises(ValueError, match="keys have 5 tokens but values have 3"):
        layers.MultiHeadAttention(D, 2)(*(keras.Input((n, D)) for n in (3, 5, 3)))
    with pytest.raises(ValueError, match="expected width 4"):
        layers.SelfAttention(D, 3)(value)
