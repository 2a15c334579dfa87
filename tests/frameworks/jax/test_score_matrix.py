"""`scores`, `log_weights` and `log_sum_exp` agree in JAX: by core, Pallas and definition."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anyscore import Gaussian, Lengths, Score, attention, log_sum_exp, log_weights, plan, scores
from anyscore.jax import Attention
from anyscore.kernels.pallas import attention as pallas
from helpers import machine
from helpers.by_pair import by_pair
from helpers.cases import case
from helpers.matrix_rows import MATRIX_ROWS, SLOPES, check_matrix, projection
from helpers.matrix_slopes import KINDS, check_slopes
from helpers.table_rows import Row, keep

nnx = pytest.importorskip("flax.nnx", reason=machine.lacks("flax"))
nnx_layers = pytest.importorskip("anyscore.jax.nnx")

FEW = [row for i, row in enumerate(MATRIX_ROWS) if i % 4 == 0]
FEW_SLOPES = [(row, [*KINDS][i % 3]) for i, row in enumerate(SLOPES) if i % 2 == 0]


@by_pair("row", FEW, ids="-".join)
def test_values(row: Row) -> None:
    check_matrix(row, "float32", jnp.asarray, jnp.asarray, np.asarray)


@by_pair("row", FEW[::5], ids="-".join)
def test_values_by_pallas(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pallas, "INTERPRET", True)
    check_matrix(row, "float32", jnp.asarray, jnp.asarray, np.asarray)


def slopes(row: Row, kind: str, **options: Any) -> dict[str, np.ndarray]:
    c = case(*row)
    score = c.score.build(c.parameters, jnp.asarray)
    inputs = {"query": jnp.asarray(c.query), "key": jnp.asarray(c.key)}
    inputs |= score.tensors() if isinstance(score, Score) else {}

    def total(given: dict[str, Any]) -> Any:
        fields = {**c.parameters, **{x: given[x] for x in given if x in c.parameters}}
        call = {"score": c.score.build(fields, jnp.asarray), **c.masking(np.asarray), **options}
        query, key = given["query"], given["key"]
        if kind == "weights":
            made = attention(query, key, key, return_weights=True, **call).weights
        else:
            made = {"scores": scores, "log_weights": log_weights}[kind](query, key, **call)
        return (jnp.where(keep(*row[1:]), made, 0.0) * projection(row)).sum()

    return {name: np.asarray(x) for name, x in jax.jit(jax.grad(total))(inputs).items()}


@by_pair(("row", "kind"), FEW_SLOPES, ids=str)
def test_gradients(row: Row, kind: str) -> None:
    check_slopes(row, kind, slopes(row, kind))


@by_pair(("row", "kind"), FEW_SLOPES[::4], ids=str)
def test_gradients_by_pallas(row: Row, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pallas, "INTERPRET", True)
    check_slopes(row, kind, slopes(row, kind))


def test_transforms() -> None:
    """Batches, tangents and second derivatives equal those of the definition."""
    made = np.random.default_rng(0)
    query, key = (jnp.asarray(made.normal(size=(3, n, 4)), jnp.float32) for n in (2, 5))

    @partial(jax.jit, static_argnums=0)
    def derivatives(f: Any, query: jax.Array, key: jax.Array) -> Any:
        def of_square(q: jax.Array) -> jax.Array:
            return (f(q, key[0]) ** 2).sum()

        tangents = jax.jvp(f, (query, key), (key[:, :2], key))
        return tangents, jax.hessian(of_square)(query[0]), jax.vmap(jax.grad(of_square))(query)

    for function in (scores, log_weights, log_sum_exp):
        fused, defined = (
            partial(function, score=Gaussian(), impl=x) for x in ("fused", "reference")
        )
        close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
        close(jax.vmap(fused)(query, key), defined(query, key))
        close(jax.vmap(fused, (None, 0))(query[0], key), defined(query[:1], key))
        made_of = (jax.tree.leaves(derivatives(f, query, key)) for f in (fused, defined))
        for one, other in zip(*made_of, strict=True):
            close(one, other)


def test_the_route() -> None:
    x = jnp.ones((2, 3))
    assert plan(x, x).route == "cpu"


def test_layers() -> None:
    made = np.random.default_rng(0)
    x, y = (jnp.asarray(made.normal(size=(2, n, 4)), jnp.float32) for n in (3, 5))
    layer = Attention("additive", hidden=8)
    params = layer.init(jax.random.key(0), x, y)
    found = jax.jit(layer.scores)(params, x, y, jnp.array([2, 5]))
    _, weights = layer.apply(params, x, y, valid_lens=jnp.array([2, 5]), return_weights=True)
    np.testing.assert_allclose(jax.nn.softmax(found, -1), weights, rtol=1e-5)
    slopes = jax.grad(lambda p: layer.scores(p, x, y).sum())(params)
    assert all(jnp.abs(x).sum() > 0 for x in jax.tree.leaves(slopes))
    module = nnx_layers.Attention("additive", hidden=8, d_q=4, d_k=4, rngs=nnx.Rngs(0))
    assert module.scores(x, y, mask=Lengths([2, 5])).shape == (2, 3, 5)
