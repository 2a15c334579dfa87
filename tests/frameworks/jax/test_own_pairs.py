"""Formulas in JAX agree by the core, by Pallas and by the definition."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anyscore import attention, plan, scores
from anyscore.jax import Attention
from anyscore.kernels.pallas import attention as pallas
from anyscore.score import PRODUCT, Outer
from anyscore.score.pairs import Pair
from helpers.own_scores import EVERY, FAR, FAR_KEYS, SOFTPLUS, WAVE, Own, draw, wave, written_out

SOFT = Pair.from_formula("softplus", SOFTPLUS)
EACH = Pair.from_formula("each", EVERY)
XS = [jnp.asarray(x, jnp.float32) for x in draw(2, queries=9, keys=17, width=5)]

pytestmark = pytest.mark.usefixtures("kept_pairs")


def softplus(q: Any, k: Any, w: Any) -> Any:
    return jax.nn.softplus(q[..., :, None, :] + k[..., None, :, :]) @ w


@pytest.mark.parametrize("by_pallas", [False, True])
def test_values_and_gradients(by_pallas: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pallas, "INTERPRET", by_pallas)

    def ours(q: Any, k: Any, v: Any, w: Any) -> Any:
        return attention(q, k, v, score=Own(w, SOFT), valid_lens=[3, 17], impl="fused")

    def exact(q: Any, k: Any, v: Any, w: Any) -> Any:
        return attention(q, k, v, score=lambda q, k: softplus(q, k, w), valid_lens=[3, 17])

    found, expected = (
        jax.jit(jax.value_and_grad(lambda *x, f=f: (f(*x) ** 2).sum(), (0, 1, 2, 3)))(*XS)
        for f in (ours, exact)
    )
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("impl", ["pallas", "auto", "reference"])
@pytest.mark.parametrize("formula", FAR)
def test_a_choice_of_far_numbers(formula: str, impl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pallas, "INTERPRET", impl == "pallas")
    pair = Pair.from_formula("far", formula)
    q, k, w = (jnp.asarray(x, jnp.float32) for x in ([[0.0]], FAR_KEYS, [1.0]))
    impl = "auto" if impl == "pallas" else impl
    found = jax.jit(lambda q, k: scores(q, k, score=Own(w, pair), impl=impl))(q, k)
    np.testing.assert_allclose(found[0], FAR[formula], rtol=1e-6)


@pytest.mark.parametrize("by_pallas", [False, True])
def test_outer_functions(by_pallas: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pallas, "INTERPRET", by_pallas)
    outer = Outer.from_formula("wave", WAVE)

    def run(impl: str) -> Any:
        def loss(q: Any, k: Any, v: Any, w: Any) -> Any:
            score = Own(w, PRODUCT, outer)
            return (attention(q, k, v, score=score, valid_lens=[3, 17], impl=impl) ** 2).sum()

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3)))(*XS)

    for x, y in zip(*(jax.tree.leaves(run(impl)) for impl in ("fused", "reference")), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-4 * float(abs(y).max()))
    q, k, v, w = XS
    found = attention(q, k, v, score=Own(w, PRODUCT, outer))
    expected = written_out(lambda a, b: a * b, [np.asarray(x, "float64") for x in XS], outer=wave)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    if not by_pallas:
        assert plan(q, k, v, score=Own(w, PRODUCT, outer)).route == "cpu"


@pytest.mark.parametrize("large", [1.0, 1e4])
def test_the_definition_of_every_function(large: float) -> None:
    xs = [np.asarray(x) * (large if i < 2 else 1) for i, x in enumerate(XS)]
    pair = EACH if large == 1 else SOFT
    args = [jnp.asarray(x) for x in xs]

    def run(q: Any, k: Any, v: Any, w: Any) -> Any:
        return attention(q, k, v, score=Own(w, pair), impl="reference")

    exact = [x.astype("float64") for x in xs]
    expected = written_out(lambda a, b: pair.value(np_ops(), a, b), exact)
    np.testing.assert_allclose(run(*args), expected, rtol=1e-3, atol=1e-4)
    gradients = jax.jit(jax.grad(lambda *x: run(*x).sum(), (0, 1, 3)))(*args)
    assert all(bool(jnp.isfinite(x).all()) for x in gradients)


def np_ops() -> Any:
    from anyscore.ops import load

    return load("numpy")


def test_layer_and_plan() -> None:
    q, k, v, w = XS
    assert plan(q, k, v, score=Own(w, SOFT)).route == "cpu"
    layer = Attention(score=Own(w, SOFT))
    (output, _), _ = layer.init_with_output(jax.random.key(0), q, k, v)
    np.testing.assert_allclose(output, attention(q, k, v, score=Own(w, SOFT)), rtol=1e-5)


def test_the_same_name_again() -> None:
    """JAX compiles anew for another formula of the same name."""
    q, k, v, w = XS
    run = jax.jit(lambda score: attention(q, k, v, score=score, impl="reference"))
    one, other = (run(Own(w, Pair.from_formula("mine", f))) for f in (SOFTPLUS, "a * sin(b)"))
    assert float(abs(one - other).max()) > 0.01
