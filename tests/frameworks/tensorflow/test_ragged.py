"""Ragged tensors agree with each sequence by itself, eagerly and in tf.function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from anyscore import Causal, attention, log_sum_exp, plan, scores
from helpers.by_pair import by_pair
from helpers.samples import NAMES, WIDTH, make_score, normal

QUERIES, KEYS, WIDTH_VALUE = [3, 0, 30, 1], [5, 2, 17, 3], 6


def ragged(lengths: list[int], *width: int) -> Any:
    return tf.RaggedTensor.from_row_lengths(tf.constant(normal(sum(lengths), *width)), lengths)


def inputs(*heads: int) -> list[Any]:
    key = ragged(KEYS, *heads, WIDTH)
    value = key.with_values(tf.constant(normal(sum(KEYS), *heads, WIDTH_VALUE)))
    return [ragged(QUERIES, *heads, WIDTH), key, value]


def alone(x: Any) -> list[Any]:
    parts = [x[s] for s in range(len(QUERIES))]
    return [y if y.shape.rank == 2 else tf.transpose(y, [1, 0, 2])[None] for y in parts]


def flat(outputs: list[Any]) -> Any:
    """Return the outputs of single sequences as the values of one ragged tensor."""
    parts = [y if y.shape.rank == 2 else tf.transpose(y[0], [1, 0, 2]) for y in outputs]
    return tf.concat(parts, 0)


@by_pair("name", NAMES)
def test_every_score_is_that_of_each_sequence(name: str) -> None:
    score = make_score(name).map(tf.constant)
    query, key, value = inputs()
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([query.values, key.values, value.values])
        output = attention(query, key, value, score=score)
        each = zip(*map(alone, (query, key, value)), strict=True)
        expected = flat([attention(*one, score=score) for one in each])
        slopes = tf.reduce_sum(tf.sin(output.values)), tf.reduce_sum(tf.sin(expected))
    assert isinstance(output, tf.RaggedTensor)
    np.testing.assert_array_equal(output.row_splits, query.row_splits)
    np.testing.assert_allclose(output.values, expected, rtol=1e-10, atol=1e-10)
    for x in (query.values, key.values, value.values):
        found, wanted = (tape.gradient(slope, x) for slope in slopes)
        wanted = tf.convert_to_tensor(wanted)
        np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("compiled", [False, True])
def test_heads_masks_and_what_is_returned(impl: str, compiled: bool) -> None:
    given = inputs(2)

    def run(query: Any, key: Any, value: Any) -> Any:
        options: Any = {"return_weights": True, "return_lse": True, "impl": impl}
        mask, lengths = Causal("end"), tf.constant([4, 1, 9, 3])
        return attention(query, key, value, mask=mask, valid_lens=lengths, **options)

    if compiled:
        of_tokens = [tf.RaggedTensorSpec([None, None, 2, x.shape[-1]], x.dtype, 1) for x in given]
        run = tf.function(run, input_signature=of_tokens)
    output, weights, lse = run(*given)
    each = [
        attention(*one, mask=Causal("end"), valid_lens=int(n), return_weights=True, return_lse=True)
        for n, *one in zip([4, 1, 9, 3], *map(alone, given), strict=True)
    ]
    np.testing.assert_allclose(output.values, flat([one.output for one in each]), atol=1e-12)
    assert weights.shape == (4, 2, 30, 17)
    for s, one in enumerate(each):
        n, m = QUERIES[s], KEYS[s]
        np.testing.assert_allclose(tf.transpose(lse[s]), one.lse[0], atol=1e-12)
        np.testing.assert_allclose(weights[s, :, :n, :m], one.weights[0], atol=1e-12)
        assert not np.any(weights[s, :, n:])
        assert not np.any(weights[s, :, :, m:])


def test_scores() -> None:
    query, key, _ = inputs()
    found, lse = scores(query, key), log_sum_exp(query, key)
    for s, (q, k) in enumerate(zip(alone(query), alone(key), strict=True)):
        n, m = QUERIES[s], KEYS[s]
        np.testing.assert_allclose(found[s, :n, :m], scores(q, k), atol=1e-12)
        np.testing.assert_allclose(lse[s], log_sum_exp(q, k), atol=1e-12)
        assert np.all(np.isneginf(found[s, n:]))
        assert np.all(np.isneginf(found[s, :, m:]))
    assert plan(*inputs()).route == "cpu"


def test_what_is_no_batch_is_refused() -> None:
    query, key, value = inputs()
    with pytest.raises(TypeError, match="key is ragged: pass"):
        attention(query.to_tensor(), key, value)
    with pytest.raises(ValueError, match="key and value are ragged tensors of other lengths"):
        attention(query, key, query)
    with pytest.raises(ValueError, match="hold other numbers of sequences"):
        attention(ragged([2, 3], WIDTH), key, value)


def test_lengths_of_a_graph_are_compared_when_it_runs() -> None:
    query, key, value = inputs()
    run = tf.function(lambda q, k, v: attention(q, k, v).values)
    specs = [tf.RaggedTensorSpec([None, None, x.shape[-1]], x.dtype, 1) for x in inputs()]
    run = run.get_concrete_function(*specs)
    np.testing.assert_allclose(run(query, key, value), attention(query, key, value).values)
    other = tf.RaggedTensor.from_row_lengths(value.values, KEYS[::-1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="key and value are ragged tensors"):
        run(query, key, other)
