"""Normalizers other than the softmax are right in JAX."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from anyscore import Gaussian, Sigmoid, attention
from anyscore.jax import Attention
from anyscore.kernels.pallas import attention as pallas
from helpers.normalizing import ARRAYS, NORMALIZERS, call, expected, near

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
    along = tuple(jnp.ones_like(x) / 3 for x in XS)

    def loss(*xs: Any) -> Any:
        return (call(*xs, normalizer=normalizer) ** 2).sum()

    @jax.jit
    def derivatives(*xs: Any) -> Any:
        _, ahead = jax.jvp(loss, xs, along)
        return ahead, jax.grad(loss, (0, 1, 2))(*xs), jax.hessian(loss)(*xs)

    ahead, slopes, found = derivatives(*XS)
    np.testing.assert_allclose(
        ahead, sum((x * y).sum() for x, y in zip(slopes, along, strict=True)), rtol=1e-4
    )

    def defined(*xs: Any) -> Any:
        return (call(*xs, normalizer=normalizer, impl="reference") ** 2).sum()

    for x, y in zip(found, jax.jit(jax.hessian(defined))(*XS), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("normalizer", [*NORMALIZERS, Sigmoid(-1.0)])
def test_the_layer(normalizer: Any) -> None:
    layer = Attention("gaussian", normalizer=normalizer, sigma=1.5)
    (output, weights), params = layer.init_with_output(jax.random.key(0), *XS)
    exact = attention(*ARRAYS, normalizer=normalizer, return_weights=True, score=Gaussian(1.5))
    np.testing.assert_allclose(output, exact.output, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(weights, exact.weights, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(jax.jit(layer.apply)(params, *XS), output, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_spread_over_devices(normalizer: str) -> None:
    """Each device computes its part and gathers nothing; shard_map gives the same."""
    mesh = jax.make_mesh((2,), ("batch",), axis_types=(AxisType.Auto,))
    spread = PartitionSpec("batch")
    xs = [jax.device_put(x, NamedSharding(mesh, spread)) for x in XS]

    def ours(*xs: Any) -> Any:
        return call(*xs, normalizer=normalizer, valid_lens=5)

    def slopes(*xs: Any) -> Any:
        return jax.grad(lambda *xs: (ours(*xs) ** 2).sum(), (0, 1, 2))(*xs)

    compiled = jax.jit(slopes).lower(*xs).compile()
    assert "all-gather" not in compiled.as_text()
    exact = slopes(*XS)
    for x, y in zip(compiled(*xs), exact, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    mapped = jax.shard_map(ours, mesh=mesh, in_specs=(spread,) * 3, out_specs=spread)
    np.testing.assert_allclose(jax.jit(mapped)(*XS), ours(*XS), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_exported(normalizer: str) -> None:
    ours = partial(call, normalizer=normalizer)
    written = export.export(jax.jit(ours), platforms=("cpu", "cuda", "tpu"))(*XS)
    assert "custom_call @anyscore" not in str(written.mlir_module())
    np.testing.assert_allclose(written.call(*XS), ours(*XS), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_nan_in_what_is_attended(normalizer: str) -> None:
    """NaN in a key makes rows and gradients of its queries NaN; NaN in a masked key is not read."""
    q, k, v = XS
    k = k.at[1, :, 2].set(jnp.nan).at[1, :, 5].set(jnp.nan)
    lengths = jnp.array([[6] * 4, [2, 3, 5, 1]])[:, None]

    def ours(*xs: Any) -> Any:
        return call(*xs, normalizer=normalizer, valid_lens=lengths)

    nan = jnp.isnan(ours(q, k, v)).all(-1)
    assert nan[1].tolist() == [[False, True, True, False]] * 3
    assert not nan[0].any()
    slope = jax.grad(lambda q: ours(q, k, v).sum())(q)
    assert (jnp.isnan(slope).all(-1) == nan).all()


def test_dropout_takes_a_key() -> None:
    output = call(
        *XS, normalizer="sparsemax", dropout=0.3, dropout_seed=jax.random.key(3), impl="fused"
    )
    assert not jnp.array_equal(output, jnp.asarray(expected("sparsemax")[0], jnp.float32))
    assert jnp.isfinite(output).all()
