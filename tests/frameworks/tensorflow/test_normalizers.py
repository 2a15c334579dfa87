"""Normalizers other than the softmax are right in TensorFlow, eagerly and in functions."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from helpers.normalizing import ARRAYS, NORMALIZERS, call, near

XS = [tf.constant(x, tf.float32) for x in ARRAYS]


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("mode", ["eager", "function", "unknown shapes", "xla"])
def test_values_and_gradients(normalizer: str, mode: str) -> None:
    def run(*xs: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(xs)
            output = call(*xs, normalizer=normalizer)
            total = tf.reduce_sum(output**2)
        return [output, *tape.gradient(total, xs)]

    if mode != "eager":
        unknown = [tf.TensorSpec((None, None, None, x.shape[-1]), tf.float32) for x in XS]
        signature = unknown if mode == "unknown shapes" else None
        run = tf.function(run, input_signature=signature, jit_compile=mode == "xla")
    near(run(*XS), normalizer)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_half_precision_and_dropout(normalizer: str) -> None:
    xs = [tf.cast(x, tf.bfloat16) for x in XS]
    output = call(*xs, normalizer=normalizer, dropout=0.3, dropout_seed=1)
    exact = call(*XS, normalizer=normalizer, dropout=0.3, dropout_seed=1)
    assert output.dtype == tf.bfloat16
    assert float(tf.reduce_max(tf.abs(tf.cast(output, tf.float32) - exact))) < 0.05
