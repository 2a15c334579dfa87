"""Biases in TensorFlow are right, eagerly and in functions of known and unknown lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from anyscore import ALiBi, Relative, attention, log_weights
from helpers.bias_layers import objects

X = tf.constant(np.random.default_rng(0).normal(size=(2, 2, 6, 4)), tf.float32)


def both(x: Any, bias: Any, impl: str = "auto") -> Any:
    """Return the output, and the gradients of its squares by x and by the bias."""
    tensors = list(bias.tensors().values()) if isinstance(bias, Relative | ALiBi) else [bias]
    with tf.GradientTape() as tape:
        tape.watch([x, *tensors])
        found = attention(x[..., 1:, :], x, x, bias=bias, softcap=2.0, impl=impl)
        total = tf.reduce_sum(found**2)
    return [found, *tape.gradient(total, [x, *tensors])]


def same(found: Any, want: Any) -> None:
    for x, y in zip(found, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("number", range(4))
def test_in_functions(number: int) -> None:
    bias = [*objects(tf.constant), tf.random.normal((2, 1, 5, 6))][number]
    want = both(X, bias)
    assert all(np.any(x) for x in want)
    same(both(X, bias, impl="reference"), want)
    same(tf.function(lambda x: both(x, bias))(X), want)


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("number", range(3))
def test_lengths_that_are_not_known(number: int, impl: str) -> None:
    bias = objects(tf.constant)[number]
    signature = [tf.TensorSpec([None, 2, None, 4])]
    run = tf.function(lambda x: both(x, bias, impl), input_signature=signature)
    for n in (6, 2):
        same(run(X[:, :, :n]), both(X[:, :, :n], bias))


def test_tensors_of_lengths_that_are_not_known() -> None:
    signature = [tf.TensorSpec([None, 2, None, 4]), tf.TensorSpec([2, None, None])]
    run = tf.function(both, input_signature=signature)
    for n in (6, 3):
        x, bias = X[:, :, :n], tf.random.normal((2, n - 1, n))
        same(run(x, bias), both(x, bias))


@pytest.mark.parametrize("in_function", [False, True])
def test_a_variable_is_trained(in_function: bool) -> None:
    table = tf.Variable(tf.zeros((2, 5)))
    optimizer = tf.keras.optimizers.SGD(1.0)

    def step() -> Any:
        with tf.GradientTape() as tape:
            lost = -log_weights(X, X, bias=Relative(table.value()))
            total = tf.reduce_sum(lost[..., 3, 1])
        optimizer.apply_gradients([(tape.gradient(total, table), table)])
        return total

    optimizer.build([table])
    first, *_, last = [float((tf.function(step) if in_function else step)()) for _ in range(3)]
    assert last < first
    assert np.all(table.numpy()[:, 0] > 0)  # distances of 2 and more before the query
