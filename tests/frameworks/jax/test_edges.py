"""Edges of a graph in JAX give the values and gradients of PyTorch, and jit takes edges."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from anyscore import Edges, GATv2, attention, plan, scores
from helpers.graph_calls import ARRAYS, BIAS, EDGES, NODES, PAIRS, RNG, TERMS, W, attend


def test_values_and_gradients() -> None:
    given = [*ARRAYS, W, BIAS, TERMS]
    tensors = [torch.tensor(x, requires_grad=True) for x in given]
    want = attend(Edges.from_index(PAIRS, NODES), *tensors)
    (want.output.square().sum() + want.weights.square().sum()).backward()

    def loss(edges: Edges, *xs: Any) -> Any:
        found = attend(edges, *xs)
        return jnp.square(found.output).sum() + jnp.square(found.weights).sum()

    xs = [jnp.array(x) for x in given]
    for edges in (Edges.from_index(PAIRS, NODES), Edges.from_index(jnp.array(PAIRS), NODES)):
        for call in (attend, jax.jit(attend)):
            found = call(edges, *xs)
            np.testing.assert_allclose(found.output, want.output.detach(), atol=2e-6)
            np.testing.assert_allclose(found.weights, want.weights.detach(), atol=2e-6)
        slopes = jax.jit(jax.grad(loss, argnums=range(1, 7)))(edges, *xs)
        for slope, tensor in zip(slopes, tensors, strict=True):
            np.testing.assert_allclose(slope, tensor.grad, rtol=1e-4, atol=2e-5)


def test_pairs_made_inside_jit() -> None:
    @jax.jit
    def found(pairs: Any, x: Any) -> Any:
        return attention(x, x, x, mask=Edges.from_index(pairs, NODES))

    x = jnp.array(ARRAYS[0])
    want = attention(*[ARRAYS[0]] * 3, mask=Edges.from_index(PAIRS, NODES))
    np.testing.assert_allclose(found(jnp.array(PAIRS), x), want, atol=2e-6)


def test_the_core_runs_them() -> None:
    x = jnp.array(ARRAYS[0])
    edges = Edges.from_index(PAIRS, NODES)
    assert plan(x, x, x, mask=edges).route == "cpu"
    one, other = (attention(x, x, x, mask=edges, impl=i) for i in ("fused", "reference"))
    np.testing.assert_allclose(one, other, atol=2e-6)
    assert np.array_equal(one, attention(*[ARRAYS[0]] * 3, mask=edges))  # a call of NumPy


@pytest.mark.parametrize("what", ["arrays", "graphs", "both"])
def test_vmap(what: str) -> None:
    """vmap maps over arrays along one graph, and over graphs of equally many edges."""
    many = jnp.array(RNG.integers(0, NODES, (3, 2, EDGES)))
    xs = jnp.array(RNG.standard_normal((3, NODES, 8)), jnp.float32)

    def loss(pairs: Any, x: Any) -> Any:
        w = jnp.array(W)
        edges = Edges.from_index(pairs, NODES)
        return jnp.square(attention(x, x, x, score=GATv2(None, None, w), mask=edges)).sum()

    axes = {"arrays": (None, 0), "graphs": (0, None), "both": (0, 0)}[what]
    given = many[0] if axes[0] is None else many, xs[0] if axes[1] is None else xs
    run = jax.value_and_grad(loss, argnums=1)
    found = jax.jit(jax.vmap(run, in_axes=axes))(*given)
    for i in range(3):
        want = run(many[0 if axes[0] is None else i], xs[0 if axes[1] is None else i])
        for x, y in zip(found, want, strict=True):
            np.testing.assert_allclose(x[i], y, rtol=1e-5, atol=1e-5)


def test_scores_dropout_and_the_sigmoid() -> None:
    query, key, value = map(jnp.array, ARRAYS)
    edges = Edges.from_index(PAIRS, NODES)
    for options in ({"normalizer": "sigmoid"}, {"dropout": 0.3, "dropout_seed": 5}):
        one, other = (
            attention(query, key, value, mask=edges, impl=impl, **options)
            for impl in ("fused", "reference")
        )
        np.testing.assert_allclose(one, other, atol=2e-6)
    one, other = (scores(query, key, mask=edges, impl=impl) for impl in ("fused", "reference"))
    np.testing.assert_allclose(one, other, atol=2e-6)


def test_second_derivatives_and_forward_mode() -> None:
    x = jnp.array(ARRAYS[0])
    edges = Edges.from_index(PAIRS, NODES)

    def loss(x: Any, impl: str) -> Any:
        return jnp.square(attention(x, x, x, mask=edges, impl=impl)).sum()

    @partial(jax.jit, static_argnames="impl")
    def both(x: Any, impl: str) -> Any:
        def slopes(x: Any) -> Any:
            return jnp.square(jax.grad(loss)(x, impl)).sum()

        return jax.grad(slopes)(x), jax.jacfwd(slopes)(x)

    for found, want in zip(*(both(x, impl) for impl in ("fused", "reference")), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-3, atol=1e-3)


def test_what_is_no_graph_is_refused_when_it_runs() -> None:
    x = jnp.array(ARRAYS[0])

    @jax.jit
    def found(rowptr: Any, col: Any) -> Any:
        return attention(x, x, x, mask=Edges(rowptr, col))

    rowptr = jnp.linspace(0, EDGES, NODES + 1).astype(int)
    found(rowptr, jnp.zeros(EDGES, int))
    with pytest.raises(Exception, match="col holds 30 at 0, expected 0 to 29"):
        found(rowptr, jnp.full(EDGES, NODES)).block_until_ready()
