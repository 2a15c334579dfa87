"""Calls of few keys keep scores for the backward instead of the output."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from anyscore import Additive, GATv2, Laplace, ScaledDot, attention
from helpers.samples import normal

B, T_Q, T_K, D, D_V = 3, 4, 7, 5, 9
W = jnp.asarray(normal(D))
SCORES = {
    "dot": ScaledDot(),
    "additive": Additive(None, None, W),
    "gatv2": GATv2(None, None, W),
    "laplace": Laplace(),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "lengths": {"valid_lens": jnp.array([7, 0, 4])},
    "cap": {"softcap": 2.0},
    "sigmoid": {"normalizer": "sigmoid"},
    "dropout": {"dropout": 0.4, "dropout_seed": 7},
    "bias": {"bias": jnp.linspace(-1, 1, T_K)},
}


def arrays(keys: int = T_K, value_width: int = D_V) -> tuple[jax.Array, ...]:
    shapes = (B, T_Q, D), (B, keys, D), (B, keys, value_width)
    return tuple(jnp.asarray(normal(*shape)) for shape in shapes)


def slopes(**options: Any) -> Callable[..., Any]:
    def total(*args: jax.Array) -> jax.Array:
        return jnp.sin(attention(*args, **options)).sum()

    return jax.grad(total, (0, 1, 2))


def given(function: Callable[..., Any], *args: Any) -> set[str]:
    """Return the operands of the one backward in a function's program."""
    text = jax.jit(function).lower(*args).as_text()
    (found,) = {x for x in re.findall(r'names = "([^"]+)"', text) if "d_output" in x}
    return set(found.split())


@pytest.mark.parametrize("name", OPTIONS)
def test_gradients(name: str) -> None:
    args = arrays()
    for score in SCORES.values():
        options = {"score": score, **OPTIONS[name]}
        ours = jax.jit(slopes(impl="fused", **options))(*args)
        exact = jax.jit(slopes(impl="reference", **options))(*args)
        for x, y in zip(ours, exact, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-12)


def test_which_calls_do() -> None:
    """Calls keep scores of few keys, at most d_v, unless bias_after hides the values of φ."""
    few = slopes(score=SCORES["additive"])
    assert {"scores", "stats"} <= given(few, *arrays())
    assert "output" not in given(few, *arrays())
    for keys, value_width in (T_K, T_K - 1), (65, 80):
        operands = given(few, *arrays(keys, value_width))
        assert "output" in operands
        assert "scores" not in operands
    after = slopes(score=SCORES["dot"], softcap=2.0, bias_after=jnp.linspace(-1, 1, T_K))
    assert "scores" not in given(after, *arrays())


def test_weights_beside_the_output() -> None:
    """Scores of returned weights are kept too, and have gradients of their own."""

    def total(*args: jax.Array, impl: str) -> jax.Array:
        found = attention(*args, score=SCORES["gatv2"], return_weights=True, impl=impl)
        return jnp.sin(found.output).sum() + (found.weights**2).sum()

    of = jax.jit(jax.grad(total, (0, 1, 2)), static_argnames="impl")
    for x, y in zip(of(*arrays(), impl="fused"), of(*arrays(), impl="reference"), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-12)


def test_vmap_over_some_operands() -> None:
    """If all elements of a batch share queries and keys, these elements share the scores."""
    query, key, value = arrays()
    values = jnp.stack([value, value + 1, -value])
    for axes in (None, None, 0), (None, 0, None):
        args = [query, key, value]
        args[axes.index(0)] = values if axes[2] == 0 else jnp.stack([key, key + 1, -key])
        ours, exact = (
            jax.jit(jax.vmap(slopes(score=SCORES["additive"], impl=impl), axes))(*args)
            for impl in ("fused", "reference")
        )
        for x, y in zip(ours, exact, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-12)


def test_sizes_that_are_symbols() -> None:
    """A gradient exports with an unknown number of keys."""
    keys = export.symbolic_shape("n")[0]
    shapes = (B, T_Q, D), (B, keys, D), (B, keys, D_V)
    like = [jax.ShapeDtypeStruct(shape, jnp.float64) for shape in shapes]  # type: ignore[no-untyped-call]
    of = slopes(score=SCORES["dot"])
    found = export.export(jax.jit(of))(*like).call(*arrays())
    for x, y in zip(found, of(*arrays()), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-12)
