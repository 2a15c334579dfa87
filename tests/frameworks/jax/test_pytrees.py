"""Masks, scores and prepared keys are arguments of JAX's transformations."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anyscore import (
    Additive,
    Causal,
    Euclidean,
    Gaussian,
    Interval,
    Keys,
    Lengths,
    Lorentz,
    StudentT,
    Window,
    attention,
    prepare_keys,
)
from helpers.samples import normal

QUERY, KEY, VALUE = (jnp.asarray(normal(3, *x)) for x in ((4, 5), (6, 5), (6, 7)))
ADDITIVE = Additive(*(jnp.asarray(normal(*x)) for x in ((8, 5), (8, 5), (8,))))
MASKS = {
    "lengths": Lengths([0, 2, 6]),
    "number": Lengths(3),
    "interval": Interval(None, np.array([1, 2, 3])),
    "window": Window(1, None, "end", offset=jnp.array([0, 1, -1])),
    "causal": Causal("start"),
    "keys": Keys(np.arange(6) % 2 == 0),
    "all": Causal("end") & Lengths(jnp.array([0, 2, 6])) & np.ones((1, 6), bool),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    mask = MASKS[name]
    leaves, structure = jax.tree.flatten(mask)
    assert jax.tree.structure(jax.tree.unflatten(structure, leaves)) == structure
    for x in (object(), None):  # JAX itself puts these there
        jax.tree.map(lambda _, x=x: x, mask)

    def call(query: jax.Array, mask: Any) -> jax.Array:
        return attention(query, KEY, VALUE, mask=mask)

    exact = attention(QUERY, KEY, VALUE, mask=mask)
    np.testing.assert_allclose(jax.jit(call)(QUERY, mask), exact, rtol=1e-12, atol=1e-13)
    _, scanned = jax.lax.scan(lambda m, q: (m, call(q, m)), mask, QUERY[None])
    np.testing.assert_allclose(scanned[0], exact, rtol=1e-12, atol=1e-13)


def test_masks_in_batches() -> None:
    lengths = jnp.array([0, 2, 6])

    def call(*args: Any) -> jax.Array:
        return attention(*args[:3], mask=args[3])

    found = jax.vmap(call)(QUERY, KEY, VALUE, Causal("end") & Lengths(lengths))
    exact = attention(QUERY, KEY, VALUE, mask=Causal("end"), valid_lens=lengths)
    np.testing.assert_allclose(found, exact, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "score",
    [ADDITIVE, Gaussian(1.5), Euclidean(1.5), StudentT(2.0, 1.5), Lorentz(1.5, 2.0)],
    ids=lambda x: type(x).__name__,
)
def test_scores(score: Any) -> None:
    """The gradient of a score is a score of the same class."""

    def call(score: Any, impl: str) -> jax.Array:
        return (attention(QUERY, KEY, VALUE, score=score, impl=impl) ** 2).sum()

    gradient = jax.jit(jax.grad(call), static_argnums=1)
    found, exact = gradient(score, "auto"), gradient(score, "reference")
    assert type(found) is type(score)
    assert len(jax.tree.leaves(found)) == len(jax.tree.leaves(score)) > 0
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True):
        assert jnp.any(x)
        np.testing.assert_allclose(x, y, rtol=1e-10)


def test_prepared_keys() -> None:
    call = jax.jit(lambda prepared, score: attention(QUERY, prepared, VALUE, score=score))
    found = call(prepare_keys(KEY, ADDITIVE), ADDITIVE)
    exact = attention(QUERY, KEY, VALUE, score=ADDITIVE)
    np.testing.assert_allclose(found, exact, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    "code",
    [
        "import anyscore, jax; jax.jit(lambda m: m.n + 1)(anyscore.Lengths(1))",
        "import jax, anyscore; jax.jit(lambda m: m.n + 1)(anyscore.Lengths(1))",
        "from anyscore import Lengths; m = Lengths(1); import jax, anyscore.jax; "
        "jax.jit(lambda m: m.n)(m)",
        "import anyscore, sys; anyscore.Lengths(1), anyscore.ScaledDot(); "
        "assert 'jax' not in sys.modules",
    ],
)
def test_jax_is_told_when_it_is_there(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_class_defined_twice() -> None:
    """As by a cell of a notebook that runs again."""

    def define() -> Any:
        return type("Twice", (Gaussian,), {"__module__": "__main__"})

    for score in (define()(jnp.array(1.0)), define()(jnp.array(1.0))):
        found = jax.jit(lambda s: attention(QUERY, KEY, VALUE, score=s))(score)
        np.testing.assert_allclose(found, attention(QUERY, KEY, VALUE, score=Gaussian()), rtol=1e-5)
