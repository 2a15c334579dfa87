"""Edges of a graph in JAX: values and gradients are those of PyTorch, jit takes edges."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from anyscore import Edges, GATv2, attention

NODES, EDGES = 30, 200
RNG = np.random.default_rng(0)
PAIRS = RNG.integers(0, NODES, (2, EDGES))
ARRAYS = [RNG.standard_normal((2, NODES, 8)).astype(np.float32) for _ in range(3)]
W, BIAS, TERMS = (RNG.standard_normal(n).astype(np.float32) for n in (8, EDGES, (EDGES, 8)))


def attend(edges: Edges, query: Any, key: Any, value: Any, w: Any, bias: Any, terms: Any) -> Any:
    score, mask = GATv2(None, None, w), edges.with_terms(terms)
    return attention(query, key, value, score=score, mask=mask, bias=bias, return_weights=True)


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
