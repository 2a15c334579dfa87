"""Forward mode through the fused core and through masks gives the reference's derivatives."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anyscore import Additive, Causal, Gaussian, Lengths, ScaledDot, Score, attention, plan
from helpers.samples import normal

B, T_Q, T_K, D, D_V = 3, 4, 6, 5, 7
LENGTHS = jnp.array([0, 2, T_K])
MASKS = {"lengths": Lengths(LENGTHS), "mixed": Causal("end") & Lengths(LENGTHS)}
GIVEN = tuple(jnp.asarray(normal(B, *x)) for x in ((T_Q, D), (T_K, D), (T_K, D_V)))
MOVED = tuple(jnp.asarray(normal(*x.shape, seed=5)) for x in GIVEN)
WEIGHTS = tuple(jnp.asarray(normal(*x)) for x in ((8, D), (8, D), (8,)))


def call(impl: str, mask: str, **options: Any) -> Callable[..., jax.Array]:
    def of(*args: jax.Array) -> jax.Array:
        score = Additive(*WEIGHTS)
        return attention(*args, score=score, mask=MASKS[mask], impl=impl, **options)

    return of


def total(impl: str, mask: str) -> Callable[..., jax.Array]:
    return lambda *args: (call(impl, mask)(*args) ** 2).sum()


def agree(ours: Any, exact: Any) -> None:
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(exact), strict=True)
    for x, y in pairs:
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-10)


def slope(of: Callable[..., jax.Array]) -> jax.Array:
    """Return the derivative along MOVED by differences of the value."""
    ahead, behind = (of(*(x + e * y for x, y in zip(GIVEN, MOVED, strict=True))) for e in (H, -H))
    return (ahead - behind) / (2 * H)


H = 1e-5


@pytest.mark.parametrize(
    ("impl", "mask", "drops"),
    [
        ("auto", "lengths", False),
        ("auto", "mixed", True),
        ("fused", "lengths", True),
        ("fused", "mixed", False),
        ("reference", "lengths", False),
        ("reference", "mixed", True),
    ],
)
def test_of_the_value(impl: str, mask: str, drops: bool) -> None:
    """Tangents agree eagerly, compiled, linearized and batched, for all masks and dropout."""
    options: dict[str, Any] = {"dropout": 0.4, "dropout_seed": 7} if drops else {}
    of = call(impl, mask, **options)

    @jax.jit
    def compiled(x: Any, y: Any) -> Any:
        batched = jax.vmap(lambda y: jax.jvp(of, x, y)[1])(tuple(jnp.stack([d, -d]) for d in y))
        return of(*x), jax.linearize(of, *x)[1](*y), jax.jvp(of, x, y)[1], batched

    value, found = jax.jvp(of, GIVEN, MOVED)
    agree(compiled(GIVEN, MOVED), (value, found, found, jnp.stack([found, -found])))
    differences = slope(lambda *x: compiled(x, MOVED)[0])
    np.testing.assert_allclose(found, differences, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("mask", MASKS)
def test_of_both_orders(mask: str) -> None:
    """Forward over reverse, reverse over forward, and reverse over reverse agree."""
    assert plan(*GIVEN, score=Additive(*WEIGHTS), mask=MASKS[mask]).route == "cpu"
    ours, definition = total("auto", mask), total("reference", mask)

    @jax.jit
    def derivatives(*xs: jax.Array) -> Any:
        first = jax.jacfwd(ours)(*xs), jax.grad(definition)(*xs)
        seconds = jax.hessian(ours), jax.jacrev(jax.jacfwd(ours)), jax.hessian(definition)
        return first, [f(*xs) for f in seconds], jax.jacrev(jax.jacrev(definition))(*xs)

    first, seconds, exact = derivatives(*GIVEN)
    agree(*first)
    for second in seconds:
        agree(second, exact)


@pytest.mark.parametrize("score", [ScaledDot(), Gaussian()], ids=lambda x: type(x).__name__)
def test_of_the_log_sum_exp(score: Score) -> None:
    """Tangents agree with shared key heads, and along one argument alone."""
    q, k, v = (
        jnp.asarray(normal(2, n, *x)) for n, x in ((4, (3, D)), (2, (T_K, D)), (2, (T_K, 2)))
    )

    def of(k: jax.Array, impl: str) -> Any:
        found = attention(q, k, v, score=score, return_lse=True, impl=impl)
        return found.output, found.lse

    def derivative(impl: str) -> Any:
        return jax.jvp(lambda k: of(k, impl), (k,), (k * k,))

    agree(derivative("fused"), derivative("reference"))


@pytest.mark.parametrize("impl", ["fused", "reference"])
def test_what_is_masked_reaches_no_tangent(impl: str) -> None:
    """NaN in padding changes no tangent, in values or in directions."""
    padding = jnp.arange(T_K)[:, None] >= LENGTHS[:, None, None]

    def spoilt(xs: Any) -> Any:
        return xs[0], *(jnp.where(padding, jnp.nan, x) for x in xs[1:])

    of = call(impl, "mixed")
    found = jax.jvp(of, spoilt(GIVEN), spoilt(MOVED))
    agree(found, jax.jvp(of, GIVEN, MOVED))


def test_gradients_are_those_of_the_core() -> None:
    """Reverse mode still runs the fused backward, alone and batched."""
    grad = jax.grad(total("auto", "lengths"))
    assert "anyscore_backward" in jax.jit(grad).lower(*GIVEN).as_text()

    def batched(*args: jax.Array) -> jax.Array:
        of = jax.vmap(lambda *x: attention(*x, score=Additive(*WEIGHTS), impl="fused"))
        return (of(*args) ** 2).sum()

    text = jax.jit(jax.grad(batched, (0, 1, 2))).lower(*GIVEN).as_text()
    assert "anyscore_backward" in text
    assert "tanh(" not in text  # no operation of the definition
    assert not re.search(rf"{T_Q}x{T_K}x\d", text)  # kept scores of few keys, no wider array
