"""Formulas in TensorFlow agree by core and definition, eagerly and in functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from anyscore import attention, plan, scores
from anyscore.ops import load
from anyscore.score import PRODUCT, Outer
from anyscore.score.pairs import Pair
from helpers.own_scores import EVERY, FAR, FAR_KEYS, SOFTPLUS, WAVE, Own, draw, wave, written_out

SOFT = Pair.from_formula("softplus", SOFTPLUS)
EACH = Pair.from_formula("each", EVERY)
XS = [tf.constant(x) for x in draw(2, queries=9, keys=17, width=5)]

pytestmark = pytest.mark.usefixtures("kept_pairs")


def gradients(run: Any) -> list[Any]:
    with tf.GradientTape() as tape:
        tape.watch(XS)
        output = run(*XS)
        loss = tf.reduce_sum(output**2)
    return [output, *tape.gradient(loss, XS)]


@pytest.mark.parametrize("in_graph", [False, True])
def test_values_and_gradients(in_graph: bool) -> None:
    def ours(q: Any, k: Any, v: Any, w: Any) -> Any:
        return attention(q, k, v, score=Own(w, SOFT), impl="fused")

    def exact(q: Any, k: Any, v: Any, w: Any) -> Any:
        x = tf.math.softplus(q[..., :, None, :] + k[..., None, :, :])
        return tf.nn.softmax(tf.linalg.matvec(x, w)) @ v

    assert plan(*XS[:3], score=Own(XS[3], SOFT)).route == "cpu"
    found = gradients(tf.function(ours) if in_graph else ours)
    for x, y in zip(found, gradients(exact), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-11)


def test_the_definition_of_every_function() -> None:
    def run(q: Any, k: Any, v: Any, w: Any) -> Any:
        return attention(q, k, v, score=Own(w, EACH), impl="reference")

    xp = load("numpy")
    expected = written_out(lambda a, b: EACH.value(xp, a, b), [x.numpy() for x in XS])
    output, *slopes = gradients(run)
    np.testing.assert_allclose(output, expected, rtol=1e-9)
    assert all(np.isfinite(x).all() for x in slopes)


@pytest.mark.parametrize("in_graph", [False, True])
def test_outer_functions(in_graph: bool) -> None:
    outer = Outer.from_formula("wave", WAVE)

    def run(impl: str) -> Any:
        def ours(q: Any, k: Any, v: Any, w: Any) -> Any:
            return attention(q, k, v, score=Own(w, PRODUCT, outer), impl=impl)

        return gradients(tf.function(ours) if in_graph else ours)

    found = run("fused")
    for x, y in zip(found, run("reference"), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-11)
    expected = written_out(lambda a, b: a * b, [x.numpy() for x in XS], outer=wave)
    np.testing.assert_allclose(found[0], expected, rtol=1e-9)


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("formula", FAR)
def test_a_choice_of_far_numbers(formula: str, impl: str, in_graph: bool) -> None:
    pair = Pair.from_formula("far", formula)
    q, k, w = (tf.constant(x, tf.float32) for x in ([[0.0]], FAR_KEYS, [1.0]))
    run = lambda q, k: scores(q, k, score=Own(w, pair), impl=impl)  # noqa: E731
    found = (tf.function(run) if in_graph else run)(q, k)
    np.testing.assert_allclose(found[0], FAR[formula], rtol=1e-6)
