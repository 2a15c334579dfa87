"""Inside JAX's transformations, the fused core agrees with the definition to rounding."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anyscore import (
    Additive,
    Causal,
    Gaussian,
    Laplace,
    ScaledDot,
    Score,
    Trilinear,
    attention,
    plan,
    prepare_keys,
)
from frameworks.jax.agreement import agree
from helpers.samples import normal

B, H, T_Q, T_K, D, D_V = 3, 2, 4, 6, 5, 7
LENGTHS = jnp.array([0, 2, T_K])


def arrays(kv_heads: int = H) -> tuple[jax.Array, jax.Array, jax.Array]:
    shapes = (B, H, T_Q, D), (B, kv_heads, T_K, D), (B, kv_heads, T_K, D_V)
    return tuple(jnp.asarray(normal(*shape)) for shape in shapes)


def score(*parameters: jax.Array) -> Score:
    return Additive(*(parameters or (jnp.asarray(normal(*x)) for x in ((8, D), (8, D), (8,)))))


PARAMETERS = tuple(score().tensors().values())


def total(impl: str, **options: Any) -> Callable[..., jax.Array]:
    """Return a function whose number depends on query, key, value and the parameters."""

    def of(query: jax.Array, key: jax.Array, value: jax.Array, *given: jax.Array) -> jax.Array:
        masked = {"valid_lens": LENGTHS, **options}
        return (attention(query, key, value, score=score(*given), impl=impl, **masked) ** 2).sum()

    return of


EVERYTHING = tuple(range(6))
SEEDS = {"dropout": 0.4, "dropout_seed": 7}


def test_plan() -> None:
    assert plan(*arrays(), score=score()).route == "cpu"


@pytest.mark.parametrize("options", [{}, SEEDS], ids=["all", "dropout"])
def test_derivatives(options: dict[str, Any]) -> None:
    """Compiled first and second derivatives agree, and eager first ones under checkpointing."""
    args = (*arrays(), *PARAMETERS)

    def first(impl: str) -> Any:
        return jax.grad(total(impl, **options), EVERYTHING)

    def second(*args: jax.Array, impl: str) -> jax.Array:
        return sum((x**3).sum() for x in first(impl)(*args))

    agree(lambda impl: jax.jit(first(impl))(*args))
    agree(lambda impl: jax.grad(jax.checkpoint(total(impl, **options)), EVERYTHING)(*args))
    agree(
        lambda impl: jax.jit(jax.grad(second, EVERYTHING), static_argnames="impl")(
            *args, impl=impl
        ),
        1e-9,
    )


@pytest.mark.parametrize("kv_heads", [1, H])
@pytest.mark.parametrize(
    "kind",
    [ScaledDot(), Gaussian(), Trilinear(*(jnp.ones(D) / 3,) * 3)],
    ids=lambda x: type(x).__name__,
)
def test_other_pairs(kind: Score, kv_heads: int) -> None:
    """Gradients of other pairs agree, also with shared key heads."""
    args = arrays(kv_heads)

    def of(*args: jax.Array, impl: str) -> jax.Array:
        found = attention(
            *args, score=kind, mask=jnp.arange(T_K)[None] > 1, impl=impl, return_lse=True
        )
        return (found.output**2).sum() + jnp.sin(found.lse).sum()

    agree(lambda impl: jax.jit(jax.grad(of, (0, 1, 2)), static_argnames="impl")(*args, impl=impl))


def one(impl: str, **options: Any) -> Callable[..., jax.Array]:
    def of(q: jax.Array, k: jax.Array, v: jax.Array, n: Any, seed: Any = None) -> jax.Array:
        drop = {"dropout": 0.5, "dropout_seed": seed} if seed is not None else {}
        return attention(q, k, v, score=score(*PARAMETERS), valid_lens=n, impl=impl, **drop)

    return of


def test_vmap() -> None:
    """Batches agree alone, nested, with shared operands, and with one seed or many."""
    q, k, v = arrays()
    agree(lambda impl: jax.vmap(one(impl))(q, k, v, LENGTHS))
    seeds = jax.random.split(jax.random.key(0), B)

    @partial(jax.jit, static_argnames="impl")
    def others(q: jax.Array, k: jax.Array, v: jax.Array, impl: str) -> Any:
        call = one(impl)
        return (
            jax.vmap(jax.vmap(call, (0, 0, 0, None)))(q, k, v, LENGTHS),
            jax.vmap(call, (0, None, None, 0))(q, k[0], v[0], LENGTHS),
            jax.vmap(call, (2, 2, 2, None), 1)(*(jnp.moveaxis(x, 0, 2) for x in (q, k, v)), 3),
            jax.vmap(call, (0, 0, 0, 0, None))(q, k, v, LENGTHS, 7),
            jax.vmap(call)(q, k, v, LENGTHS, seeds),
        )

    agree(lambda impl: others(q, k, v, impl=impl))


def test_vmap_and_derivatives() -> None:
    q, k, v = arrays()

    def squared(impl: str) -> Any:
        return lambda q, k, v, n: (one(impl)(q, k, v, n) ** 2).sum()

    shared = 0, None, None, 0

    @partial(jax.jit, static_argnames="impl")
    def each(q: jax.Array, k: jax.Array, v: jax.Array, impl: str) -> Any:
        def summed(k: jax.Array, v: jax.Array) -> jax.Array:
            return jax.vmap(squared(impl), shared)(q, k, v, LENGTHS).sum()

        return (
            jax.vmap(jax.grad(squared(impl), (0, 1, 2)), shared)(q, k[0], v[0], LENGTHS),
            jax.grad(summed, (0, 1))(k[0], v[0]),
            jax.jacrev(one(impl))(q[:, 0], k[:, 0], v[:, 0], LENGTHS),
        )

    agree(lambda impl: each(q, k, v, impl=impl))


def test_scan() -> None:
    q, k, _ = arrays()

    def repeated(impl: str) -> jax.Array:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return attention(x, k, score=score(*PARAMETERS), value=k, impl=impl), None

        return jax.lax.scan(step, q, None, length=3)[0]

    agree(repeated)
    agree(lambda impl: jax.jit(jax.grad(lambda q: attention(q, k, k, impl=impl).sum()))(q))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16, np.float32])
def test_narrow_dtypes(dtype: Any) -> None:
    args = [x.astype(dtype) for x in (*arrays(), *PARAMETERS)]
    for impl in ("fused", "reference"):
        found = jax.jit(jax.grad(total(impl), EVERYTHING))(*args)
        assert all(x.dtype == dtype for x in found)
    agree(
        lambda impl: attention(*args[:3], score=score(*args[3:]), impl=impl).astype(np.float32),
        1e-2,
    )


def test_prepared_keys_and_weights() -> None:
    q, k, v = arrays()
    prepared = jax.jit(lambda k: prepare_keys(k, score(*PARAMETERS)).packed)(k)
    assert prepared.shape == (B, H, T_K + 1, 8)
    call = {"score": score(*PARAMETERS), "valid_lens": LENGTHS, "return_weights": True}
    found = attention(q, prepare_keys(k, score(*PARAMETERS)), v, impl="fused", **call)
    exact = attention(q, k, v, impl="reference", **call)
    for x, y in zip(found[:2], exact[:2], strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("sizes", [(0, T_Q, T_K), (2, 0, T_K), (2, T_Q, 0)])
def test_nothing(sizes: tuple[int, int, int]) -> None:
    b, t_q, t_k = sizes
    query, key, value = jnp.ones((b, t_q, D)), jnp.ones((b, t_k, D)), jnp.ones((b, t_k, D_V))

    def call(key: jax.Array) -> jax.Array:
        return attention(query, key, value, score=score(*PARAMETERS), impl="fused")

    assert call(key).shape == (b, t_q, D_V)
    assert not jnp.any(call(key)) or t_k
    found = jax.grad(lambda key: call(key).sum())(key)
    assert found.shape == key.shape
    assert not found.any()


@pytest.mark.parametrize("impl", ["fused", "reference"])
def test_ties_and_empty_masks(impl: str) -> None:
    """|q − k| has the derivative 0 where q = k; a mask may have no queries."""
    query, key = jnp.zeros((1, 2)), jnp.array([[0.0, 1.0], [2.0, 0.0]])
    value = jnp.array([[1.0, 2.0], [3.0, 5.0]])

    def of(query: jax.Array) -> jax.Array:
        return attention(query, key, value, score=Laplace(1.0), impl=impl).sum()

    found = jax.grad(of)(query)
    np.testing.assert_allclose(found, [[0.98306, -0.98306]], rtol=1e-5)

    def nothing(key: jax.Array) -> jax.Array:
        return attention(jnp.ones((2, 0, 5)), key, key, mask=Causal("end"), impl=impl).sum()

    assert not jax.grad(nothing)(jnp.full((2, 7, 5), jnp.nan)).any()
