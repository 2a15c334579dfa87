"""JAX runs impl="separable" in eager calls and their derivatives: jit does not know values."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anyscore import attention
from anyscore.kernels.xla import attention as xla
from helpers.separable_calls import inputs

pytestmark = pytest.mark.skipif(xla.problem() is not None, reason="the C++ core is not built")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_and_gradients(dtype: Any) -> None:
    arrays, score = inputs()
    score, made = (
        score.map(lambda x: jnp.asarray(x, dtype)),
        [jnp.asarray(x, dtype) for x in arrays],
    )

    def loss(*xs: jax.Array, impl: str) -> jax.Array:
        return (attention(*xs, score=score, valid_lens=[3, 7], impl=impl) ** 2).sum()

    both = jax.value_and_grad(loss, (0, 1, 2))
    found = both(*made, impl="separable")
    exact = jax.jit(both, static_argnames="impl")(*made, impl="reference")
    for x, y in zip(*map(jax.tree.leaves, (found, exact)), strict=True):
        assert x.dtype == dtype
        np.testing.assert_allclose(x, y, rtol=0, atol=2e-3 * float(abs(y).max()))


def test_traced() -> None:
    arrays, score = inputs()
    score, made = score.map(jnp.asarray), [jnp.asarray(x) for x in arrays]

    def call(*xs: jax.Array) -> jax.Array:
        return attention(*xs, score=score, impl="separable")

    for transform in (jax.jit, jax.vmap):
        with pytest.raises(NotImplementedError, match="measured first"):
            transform(call)(*made)


def test_arrays_spread_over_devices() -> None:
    arrays, score = inputs()
    score, made = score.map(jnp.asarray), [jnp.asarray(x) for x in arrays]
    exact = attention(*made, score=score)
    mesh = jax.make_mesh((2,), ("batch",))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
    found = attention(*(jax.device_put(x, place) for x in made), score=score, impl="separable")
    np.testing.assert_allclose(found, exact, atol=3e-3)
