"""Normalizers other than the softmax, in JAX."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anyscore import Sigmoid, attention
from anyscore.jax import Attention
from anyscore.kernels.pallas import attention as pallas
from normalizing import ARRAYS, NORMALIZERS, call, expected, near

XS = [jnp.asarray(x, jnp.float32) for x in ARRAYS]


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("by_pallas", [False, True])
def test_values_and_gradients(
    normalizer: str, by_pallas: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pallas, "INTERPRET", by_pallas)
    ours = partial(call, normalizer=normalizer)

    def loss(*xs: Any) -> Any:
        output = ours(*xs, impl="fused")
        return (output**2).sum(), output

    slopes, output = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(*XS)
    near([output, *slopes], normalizer)
    if by_pallas:
        return
    batched = jax.vmap(lambda x: ours(x, *XS[1:]))(jnp.stack([XS[0], -XS[0]]))
    np.testing.assert_allclose(batched[0], output, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(batched[1], ours(-XS[0], *XS[1:]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_forward_mode_and_second_derivatives(normalizer: str) -> None:
    along = [jnp.ones_like(x) / 3 for x in XS]

    def loss(*xs: Any) -> Any:
        return (call(*xs, normalizer=normalizer) ** 2).sum()

    _, ahead = jax.jvp(loss, XS, along)
    slopes = jax.grad(loss, (0, 1, 2))(*XS)
    np.testing.assert_allclose(
        ahead, sum((x * y).sum() for x, y in zip(slopes, along, strict=True)), rtol=1e-4
    )

    def defined(*xs: Any) -> Any:
        return (call(*xs, normalizer=normalizer, impl="reference") ** 2).sum()

    for x, y in zip(*(jax.hessian(f)(*XS) for f in (loss, defined)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("normalizer", [*NORMALIZERS, Sigmoid(-1.0)])
def test_the_layer(normalizer: Any) -> None:
    layer = Attention("gaussian", normalizer=normalizer, sigma=1.5)
    (output, weights), params = layer.init_with_output(jax.random.key(0), *XS)
    exact = attention(*ARRAYS, normalizer=normalizer, return_weights=True, **_score())
    np.testing.assert_allclose(output, exact.output, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(weights, exact.weights, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(jax.jit(layer.apply)(params, *XS), output, rtol=1e-5, atol=1e-6)


def _score() -> dict[str, Any]:
    from anyscore import Gaussian

    return {"score": Gaussian(1.5)}


def test_dropout_takes_a_key() -> None:
    output = call(
        *XS, normalizer="sparsemax", dropout=0.3, dropout_seed=jax.random.key(3), impl="fused"
    )
    assert not jnp.array_equal(output, jnp.asarray(expected("sparsemax")[0], jnp.float32))
    assert jnp.isfinite(output).all()
