"""TensorFlow runs impl="separable" in eager mode, under tapes too, and not in graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from anyscore import attention
from anyscore.kernels import cpu
from helpers.separable_calls import inputs

pytestmark = pytest.mark.skipif(cpu.problem() is not None, reason="the C++ core is not built")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_results_and_gradients(dtype: str) -> None:
    arrays, score = inputs()
    score = score.map(lambda x: tf.constant(x, dtype))
    made = [tf.constant(x, dtype) for x in arrays]

    def results(impl: str) -> list[Any]:
        with tf.GradientTape() as tape:
            tape.watch(made)
            out = attention(*made, score=score, valid_lens=[3, 7], impl=impl)
        return [out, *tape.gradient(out, made, out)]

    for x, y in zip(results("separable"), results("reference"), strict=True):
        assert x.dtype == dtype
        np.testing.assert_allclose(x, y, rtol=0, atol=2e-3 * np.abs(y).max())


def test_graphs() -> None:
    arrays, score = inputs()
    made, score = [tf.constant(x) for x in arrays], score.map(tf.constant)
    with pytest.raises(NotImplementedError, match="measured first"):
        tf.function(lambda *xs: attention(*xs, score=score, impl="separable"))(*made)
