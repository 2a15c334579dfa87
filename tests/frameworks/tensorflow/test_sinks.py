"""A sink in TensorFlow is one more logit, eagerly and in functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from anyscore import attention

MADE = np.random.default_rng(0)
XS = [
    tf.constant(MADE.normal(size=n), tf.float32)
    for n in ((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 2), (3,))
]


def written_out(q: Any, k: Any, v: Any, sink: Any) -> Any:
    s = tf.matmul(q, k, transpose_b=True) / 5**0.5
    s = tf.where(tf.range(6) < tf.constant([0, 4])[:, None, None, None], s, -np.inf)
    logit = tf.broadcast_to(sink[:, None, None], (2, 3, 4, 1))
    return tf.nn.softmax(tf.concat([s, logit], -1), -1)[..., :-1] @ v


def ours(q: Any, k: Any, v: Any, sink: Any) -> Any:
    return attention(q, k, v, valid_lens=[0, 4], sink=sink)


@pytest.mark.parametrize("in_function", [False, True])
def test_values_and_gradients(in_function: bool) -> None:
    def both(f: Any) -> Any:
        def run(*xs: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(xs)
                output = f(*xs)
                total = tf.reduce_sum(output**2)
            return [output, *tape.gradient(total, xs)]

        return (tf.function(run) if in_function else run)(*XS)

    for x, y in zip(both(ours), both(written_out), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
