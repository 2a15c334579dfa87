"""Products of all leading dimensions are right: TensorFlow 2.21 misreads some with oneDNN."""

from __future__ import annotations

import subprocess
import sys
from itertools import product

import numpy as np
import pytest
import tensorflow as tf

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
    """Issue 117700 of TensorFlow misreads x (B, 1, m, n) times a y that all of x shares."""
    unknown = [tf.TensorSpec([None] * 4, tf.float32)] * 2
    compiled = tf.function(ops.matmul, input_signature=unknown)
    rng = np.random.default_rng(0)
    for of_x, of_y in product(product((1, 4), (1, 3)), repeat=2):
        shapes = [(of_x, 33, 2), (of_y, 2, 3)]
        if any({a, b} == {3, 4} for a, b in zip(of_x, of_y, strict=True)):
            continue
        x, y = (rng.standard_normal((*lead, m, n)).astype(np.float32) for lead, m, n in shapes)
        np.testing.assert_allclose(compiled(x, y).numpy(), x @ y, atol=1e-5)


_SHARED = """
import numpy as np, tensorflow as tf
from anyscore.ops import tensorflow as ops
rng = np.random.default_rng(0)
for lead in [(2, 1), (4, 1)] * 20:
    for m, n, k in [(70, 2, 3), (17, 65, 15), (128, 70, 3)]:
        x = rng.standard_normal((*lead, m, n)).astype("f4")
        y = rng.standard_normal((1, n, k)).astype("f4")
        found = ops.matmul(tf.constant(x), tf.constant(y)).numpy()
        assert np.allclose(found, x @ y, atol=1e-4), (lead, m, n, k)
"""


def test_threads_do_not_meet_what_tensorflow_misreads() -> None:
    """The test needs a process of its own: with one thread, as here, TensorFlow reads right."""
    done = subprocess.run([sys.executable, "-c", _SHARED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
