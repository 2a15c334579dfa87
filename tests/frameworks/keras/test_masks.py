"""Layers take masks as Keras's own do: lists, attention_mask, with heads or without."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from anyscore import Causal, Keys, Lengths, attention
from anyscore.keras import Attention, DotProductAttention, MultiHeadAttention, SelfAttention
from frameworks.keras.arrays import KEEP, PAIRS, QUERIES, T_Q, B, D, arrays, near, numpy
from helpers.samples import normal


def test_lists_of_masks() -> None:
    """A list of one mask raises: the mask could belong to queries or to values."""
    query, key, _ = arrays()
    for layer in (DotProductAttention(), MultiHeadAttention(D, 2)):
        for mask in ([KEEP], [QUERIES, KEEP, KEEP, KEEP]):
            with pytest.raises(ValueError, match=r"expected mask=\[query mask, value mask\] or"):
                layer([query, key], mask=mask)
    square = DotProductAttention()
    with pytest.raises(ValueError, match=r"got a list of 1: .*mask=\[None, value mask\]"):
        square([query, query], mask=[QUERIES])


@pytest.mark.parametrize("many", [False, True])
def test_a_mask_that_does_not_fit_is_named(many: bool) -> None:
    query, key, _ = arrays()
    layer = MultiHeadAttention(D, 2) if many else DotProductAttention()
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {"mask": [KEEP, KEEP]},
            r"the query mask has shape \(2, 5\), expected \(batch, tokens\): \(2, 3\)",
        ),
        ({"mask": [QUERIES, QUERIES]}, r"the value mask has shape \(2, 3\), .*: \(2, 5\)"),
        ({"mask": [None, KEEP, QUERIES]}, r"the key mask has shape \(2, 3\)"),
        ({"mask": [None, KEEP[0]]}, r"the value mask has shape \(5,\)"),
        ({"mask": [None, np.stack([KEEP] * 3)]}, r"the value mask has shape \(3, 2, 5\)"),
        ({"query_mask": KEEP}, r"the query mask has shape \(2, 5\)"),
        ({"attention_mask": PAIRS.swapaxes(1, 2)}, r"mask has shape \(2, 5, 3\), expected"),
        ({"attention_mask": KEEP}, r"mask has shape \(2, 5\), expected"),
        ({"mask": PAIRS[:, :2]}, r"mask has shape \(2, 2, 5\), expected"),
    ]
    for options, text in cases:
        with pytest.raises(ValueError, match=text):
            layer([query, key], **options)
    for wrong in (PAIRS.astype("float32"), PAIRS.astype("float32").tolist()):
        with pytest.raises(TypeError, match="attention_mask must be boolean, or integers 0 and 1"):
            layer([query, key], attention_mask=wrong)
    layer([query, key], mask=[QUERIES, KEEP], attention_mask=PAIRS)  # masks of these shapes fit


def test_attention_mask() -> None:
    query, key, value = arrays()
    layer = DotProductAttention()
    for mask in (PAIRS, PAIRS[:1], PAIRS[0], PAIRS.astype("int32")):
        expected = attention(query, key, value, mask=mask.astype(bool))
        near(layer(query, key, value, attention_mask=mask), expected)
    both = attention(query, key, value, mask=PAIRS & KEEP[:, None], valid_lens=[4, 2])
    found = layer([query, value, key], valid_lens=[4, 2], attention_mask=PAIRS, mask=[None, KEEP])
    near(found, both)
    near(layer(query, key, value, [4, 2], attention_mask=PAIRS, mask=KEEP[:, None]), both)
    heads = [normal(B, 3, *x.shape[1:]).astype("float32") for x in arrays()]
    expected = attention(*heads, mask=PAIRS[:, None])
    near(layer(*heads, attention_mask=PAIRS), expected)
    near(layer(*heads, attention_mask=np.repeat(PAIRS[:, None], 3, axis=1)), expected)
    alone = SelfAttention(D, 3)
    square = normal(B, T_Q, T_Q) > 0
    near(alone(query, attention_mask=square), alone(query, mask=square))
    output, weights = alone(query, attention_mask=square, return_attention_scores=True)
    assert not numpy(weights)[~square].any()
    near(weights, alone.attention_weights)
    symbol = keras.Input((T_Q, D))
    shapes = [x.shape for x in alone(symbol, return_attention_scores=True)]
    assert shapes == [(None, T_Q, D), (None, T_Q, T_Q)]
    assert output.shape == (B, T_Q, D)


@pytest.mark.parametrize("many", [False, True])
def test_masks_of_ours_pass_keras_unseen(many: bool) -> None:
    """Masks of anyscore work in models too, and with lengths that half precision would round."""
    x = np.ones((1, 3001, 2), "float32")
    options = {"score": "dot", "dtype": "mixed_float16"}
    layer = MultiHeadAttention(2, 1, **options) if many else Attention(**options)
    mask = Lengths(np.array([2999.0])) & Keys(np.ones((1, 3001), bool))
    output, weights = layer(x[:, :1], x, mask=mask, return_attention_scores=True)
    assert (numpy(weights)[0, ..., 0, :] > 0).sum() == 2999
    inputs = keras.Input((None, 2)), keras.Input((None, 2))
    model = keras.Model(inputs, layer(*inputs, mask=mask))
    assert np.array_equal(numpy(model([x[:, :1], x])), numpy(output))


@pytest.mark.parametrize("batch", [6, 3, 1])
@pytest.mark.parametrize("many", [False, True])
def test_a_wrapper_passes_padding(many: bool, batch: int) -> None:
    """`TimeDistributed` calls `call` with a mask (batch, tokens), also if batch = tokens."""
    layer = (MultiHeadAttention if many else SelfAttention)(8, 4, score="gaussian")
    embed = keras.layers.Embedding(20, 8, mask_zero=True)
    ids = np.random.default_rng(0).integers(1, 20, (batch, 4, 6))
    ids[0, :, 3:] = ids[-1, 2, 5:] = 0
    found = keras.layers.TimeDistributed(layer)(embed(ids))
    expected = [numpy(layer(embed(ids[:, step]))) for step in range(4)]
    near(numpy(found)[ids != 0], np.stack(expected, 1)[ids != 0])


@pytest.mark.parametrize("make", [np.asarray, keras.ops.convert_to_tensor])
def test_a_mask_with_two_meanings_is_refused(make: Any) -> None:
    x, keep = normal(5, 5, 8).astype("float32"), np.arange(5) < np.array([[2], [5], [5], [1], [4]])
    for layer in (SelfAttention(8, 4), MultiHeadAttention(8, 2)):
        with pytest.raises(ValueError, match=r"fits \(batch, tokens\) and .* pass mask=Keys\(keep"):
            layer(x, mask=make(keep))
        layer(x, mask=Keys(keep))
        near(layer(x, mask=make(keep[None])), layer(x, attention_mask=keep[None]))
        layer(x[:4], mask=make(keep))
    layer(x, x, mask=make(keep))  # of two tensors it is of pairs


def test_masks_of_heads() -> None:
    """A mask (batch, T_q, T_k) is for all heads, by mask= and & too; another mask has heads."""
    query, key, _ = arrays()
    layer = MultiHeadAttention(D, 2, score="gaussian")
    output, weights = layer(query, key, attention_mask=PAIRS, return_attention_scores=True)
    assert ((numpy(weights) > 0) == PAIRS[:, None]).all()
    wide = np.repeat(PAIRS[:, None], 2, axis=1)
    near(layer(query, key, attention_mask=wide), output)
    near(layer(query, key, mask=PAIRS), output)
    near(layer(query, key, mask=wide), output)
    near(layer(query, key, mask=keras.ops.convert_to_tensor(PAIRS)), output)
    near(layer(query, key, attention_mask=PAIRS[0]), layer(query, key, mask=PAIRS[0]))
    both = layer(query, key, valid_lens=[4, 2], mask=Causal("start") & PAIRS)
    options = {"valid_lens": [4, 2], "attention_mask": PAIRS, "use_causal_mask": True}
    near(both, layer(query, key, **options))
    other = wide.copy()
    other[:, 1] = True
    weights = layer(query, key, attention_mask=other, return_attention_scores=True)[1]
    assert ((numpy(weights) > 0) == other).all()


def test_masks_merge_as_in_keras() -> None:
    """Masks of embeddings, of queries and values, and causality equal one mask by hand."""
    tokens = np.array([[1, 2, 3, 0, 0], [3, 3, 1, 1, 2], [1, 0, 0, 0, 0]])
    others = np.array([[5, 4, 0], [3, 0, 0], [2, 1, 1]])
    queries = keras.layers.Embedding(4, 8, mask_zero=True)(tokens)
    values = keras.layers.Embedding(6, 8, mask_zero=True)(others)
    pairs = (tokens > 0)[:, :, None] & (others > 0)[:, None]
    layer = MultiHeadAttention(8, 2, score="additive")
    for causal in (False, True):
        allowed = pairs & (np.tri(5, 3, dtype=bool) if causal else True)
        found = layer(query=queries, value=values, use_causal_mask=causal)
        near(found, layer(numpy(queries), numpy(values), attention_mask=allowed))
        assert (numpy(found._keras_mask) == (tokens > 0)).all()
