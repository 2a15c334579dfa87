"""Pairs and outer functions of formulas in MXNet agree by the core and by the definition."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from anyscore import attention, plan
from anyscore.ops import load
from anyscore.score import PRODUCT, Outer
from anyscore.score.pairs import Pair
from frameworks.mxnet.arrays import to
from helpers.own_scores import EVERY, SOFTPLUS, WAVE, Own, draw, wave, written_out

SOFT = Pair.from_formula("softplus", SOFTPLUS)
EACH = Pair.from_formula("each", EVERY)
ARRAYS = draw(2, queries=9, keys=17, width=5)

pytestmark = pytest.mark.usefixtures("np_mode", "kept_pairs")


def results(score: Any, **options: Any) -> list[np.ndarray]:
    """Return the output, and the gradients of the sum of its squares."""
    xs = [to(x, dtype="float64") for x in ARRAYS]
    for x in xs:
        x.attach_grad()
    with autograd.record():
        output = attention(*xs[:3], score=score(xs[3]), **options)
        loss = (output**2).sum()
    loss.backward()
    return [output.asnumpy(), *(x.grad.asnumpy() for x in xs)]


def test_values_and_gradients() -> None:
    q, k, v, w = (to(x, dtype="float64") for x in ARRAYS)
    assert plan(q, k, v, score=Own(w, SOFT)).route == "cpu"

    def exact(w: Any) -> Any:
        def score(q: Any, k: Any) -> Any:
            x = mx.np.expand_dims(q, -2) + mx.np.expand_dims(k, -3)
            return mx.np.dot(mx.np.log(1 + mx.np.exp(x)), w)

        return score

    found, expected = results(lambda w: Own(w, SOFT), impl="fused"), results(exact)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-8, atol=1e-10)


def test_the_definition_of_every_function() -> None:
    xp = load("numpy")
    expected = written_out(lambda a, b: EACH.value(xp, a, b), ARRAYS)
    output, *slopes = results(lambda w: Own(w, EACH), impl="reference")
    np.testing.assert_allclose(output, expected, rtol=1e-9)
    assert all(np.isfinite(x).all() for x in slopes)
    for scale in (1e-2, 1e4):
        q, k, v, w = (to(x, dtype="float64") for x in draw(1, scale=scale))
        both = (attention(q, k, v, score=Own(w, SOFT), impl=i) for i in ("fused", "reference"))
        one, other = (x.asnumpy() for x in both)
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-10)


def test_outer_functions() -> None:
    outer = Outer.from_formula("wave", WAVE)
    fused, reference = (
        results(lambda w: Own(w, PRODUCT, outer), impl=impl) for impl in ("fused", "reference")
    )
    for x, y in zip(fused, reference, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-8, atol=1e-10)
    expected = written_out(lambda a, b: a * b, ARRAYS, outer=wave)
    np.testing.assert_allclose(fused[0], expected, rtol=1e-9)
