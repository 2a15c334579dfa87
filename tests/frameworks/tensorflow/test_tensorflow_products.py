"""Products of all leading dimensions: TensorFlow 2.21 misreads some of them with oneDNN."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import tensorflow as tf

from anyscore import Bilinear, attention
from anyscore.ops import tensorflow as ops

LEADS = [lead for rank in range(4) for lead in product((1, 2), repeat=rank)]


@pytest.mark.parametrize("of_x", LEADS, ids=str)
def test_products_of_all_leading_dimensions(of_x: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    for of_y, (m, n, k) in product(LEADS, [(70, 2, 3), (17, 65, 15), (128, 70, 3), (1, 4, 6)]):
        x = rng.standard_normal((*of_x, m, n)).astype(np.float32)
        y = rng.standard_normal((*of_y, n, k)).astype(np.float32)
        found = ops.matmul(tf.constant(x), tf.constant(y))
        assert found.shape == (x @ y).shape, of_y
        np.testing.assert_allclose(found.numpy(), x @ y, atol=1e-4)


def test_one_matrix_for_batches_of_one_where_sizes_come_with_the_call() -> None:
    """TensorFlow's issue 117700: x (B, 1, m, n) times y that all of it shares."""
    unknown = [tf.TensorSpec([None] * 4, tf.float32)] * 2
    compiled = tf.function(ops.matmul, input_signature=unknown)
    rng = np.random.default_rng(0)
    for of_x, of_y in product(product((1, 4), (1, 3)), repeat=2):
        shapes = [(of_x, 33, 2), (of_y, 2, 3)]
        if any({a, b} == {3, 4} for a, b in zip(of_x, of_y, strict=True)):
            continue
        x, y = (rng.standard_normal((*lead, m, n)).astype(np.float32) for lead, m, n in shapes)
        np.testing.assert_allclose(compiled(x, y).numpy(), x @ y, atol=1e-5)


def test_a_matrix_for_several_heads_of_one_query() -> None:
    rng = np.random.default_rng(0)
    query = rng.standard_normal((2, 1, 64, 2)).astype(np.float32)
    key = rng.standard_normal((1, 1, 31, 17)).astype(np.float32)
    value = rng.standard_normal((1, 1, 31, 3)).astype(np.float32)
    W = rng.standard_normal((1, 2, 17)).astype(np.float32)
    expected = attention(query, key, value, score=Bilinear(W))
    for impl in ("auto", "reference"):
        found = attention(
            *map(tf.constant, (query, key, value)), score=Bilinear(tf.constant(W)), impl=impl
        )
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)
