"""`scores`, `log_weights` and `log_sum_exp` work in TensorFlow, eagerly and in functions."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from anyscore import Gaussian, Score, attention, log_weights, plan, scores
from helpers.by_pair import by_pair
from helpers.cases import case
from helpers.matrix_rows import MATRIX_ROWS, SLOPES, check_matrix, projection
from helpers.matrix_slopes import KINDS, check_slopes
from helpers.table_rows import Row, keep

FEW = [row for i, row in enumerate(MATRIX_ROWS) if i % 2 == 0]
FEW_SLOPES = [(row, [*KINDS][i % 3]) for i, row in enumerate(SLOPES)]


@by_pair("row", [row for row in FEW if row[0] != "callable"], ids="-".join)
def test_values(row: Row) -> None:
    to = partial(tf.constant, dtype=tf.float32)
    check_matrix(row, "float32", to, tf.constant, np.asarray)


@by_pair(("row", "kind"), [x for x in FEW_SLOPES if x[0][0] != "callable"], ids=str)
@pytest.mark.parametrize("in_function", [False, True])
def test_gradients(row: Row, kind: str, in_function: bool) -> None:
    c = case(*row)
    if in_function and SLOPES.index(row) % 5:
        return
    score = c.score.build(c.parameters, tf.constant)
    inputs = {"query": tf.constant(c.query), "key": tf.constant(c.key)}
    inputs |= score.tensors() if isinstance(score, Score) else {}

    def slopes(inputs: dict[str, Any]) -> list[Any]:
        fields = {**c.parameters, **{x: inputs[x] for x in inputs if x in c.parameters}}
        query, key = inputs["query"], inputs["key"]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            call = {"score": c.score.build(fields, tf.constant), **c.masking(np.asarray)}
            if kind == "weights":
                made = attention(query, key, key, return_weights=True, **call).weights
            else:
                made = {"scores": scores, "log_weights": log_weights}[kind](query, key, **call)
            kept = tf.where(keep(*row[1:]), made, 0.0)
            total = tf.reduce_sum(kept * tf.constant(projection(row), tf.float32))
        zero = tf.UnconnectedGradients.ZERO
        return tape.gradient(total, list(inputs.values()), unconnected_gradients=zero)

    found = (tf.function(slopes) if in_function else slopes)(inputs)
    check_slopes(row, kind, {name: x.numpy() for name, x in zip(inputs, found, strict=True)})


def test_second_derivatives() -> None:
    made = np.random.default_rng(0)
    query, key = (tf.constant(made.normal(size=(n, 4)), tf.float32) for n in (3, 5))
    found = []
    for impl in ("fused", "reference"):
        with tf.GradientTape() as outer:
            outer.watch(query)
            with tf.GradientTape() as inner:
                inner.watch(query)
                x = log_weights(query, key, score=Gaussian(), valid_lens=4, impl=impl)
                total = tf.reduce_sum(tf.where(x == -np.inf, 0.0, x) ** 2)
            first = inner.gradient(total, query)
        found.append(outer.gradient(first, query).numpy())
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)


def test_the_route() -> None:
    x = tf.ones((2, 3))
    assert plan(x, x).route == "cpu"
