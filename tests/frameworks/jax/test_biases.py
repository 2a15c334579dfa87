"""Layers for JAX take bias= and bias_after=; biases are arguments of JAX's transformations."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anyscore.jax as layers
from anyscore import ALiBi, Relative, attention
from helpers import machine
from helpers.bias_layers import (
    LAYERS,
    LENGTHS,
    close,
    drawn,
    expected,
    inputs,
    make,
    objects,
    of,
    slope,
)
from helpers.by_pair import by_pair
from helpers.wrong_biases import TABLE
from helpers.wrong_calls import given

nnx = pytest.importorskip("flax.nnx", reason=machine.lacks("flax"))
modules = pytest.importorskip("anyscore.jax.nnx")

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (2, 2, 5, 4))


@by_pair("name", LAYERS)
def test_values_weights_and_slopes(name: str) -> None:
    """Biases may be NumPy arrays, and JAX arrays under transformations."""
    layer, xs, arrays = make(layers, name), inputs(name), drawn(name)
    (_, weights), params = layer.init_with_output(KEY, *xs, valid_lens=LENGTHS, **of(*arrays))
    parameters = layer.numpy_parameters(params)
    want = expected(name, parameters, xs, *arrays)
    np.testing.assert_allclose(weights, want[1], atol=1e-6)

    @jax.jit
    def loss(arrays: Any) -> Any:
        output = layer.apply(params, *xs, valid_lens=LENGTHS, **of(*arrays))
        return (output**2).sum(), output

    slopes, output = jax.grad(loss, has_aux=True)(tuple(map(jnp.asarray, arrays)))
    np.testing.assert_allclose(output, want[0], atol=1e-5)
    close(slopes, arrays, slope(name, parameters, xs, *arrays))


@pytest.mark.parametrize("name", ["trilinear", "heads"])
def test_modules_of_nnx(name: str) -> None:
    """A module passes its own table to the layer as a bias, and the table has a gradient."""
    xs, arrays = inputs(name), drawn(name)

    class Block(nnx.Module):
        def __init__(self) -> None:
            self.attention = make(modules, name, rngs=nnx.Rngs(0))
            self.table = nnx.Param(jnp.asarray(arrays[1]))

        def __call__(self, *xs: Any) -> Any:
            biases = of(jnp.asarray(arrays[0]), self.table[...])
            return self.attention(*xs, valid_lens=LENGTHS, **biases)

    block = Block()
    parameters = block.attention.numpy_parameters()
    want, _ = expected(name, parameters, xs, *arrays)
    np.testing.assert_allclose(block(*xs), want, atol=1e-5)
    slopes = nnx.grad(lambda block: (block(*xs) ** 2).sum())(block)
    close([slopes["table"][...]], arrays[1:], slope(name, parameters, xs, *arrays)[1:])


def test_scores_have_them() -> None:
    layer, (q, k, v), arrays = make(layers, "trilinear"), inputs("trilinear"), drawn("trilinear")
    params = layer.init(KEY)
    _, weights = layer.apply(params, q, k, v, return_weights=True, **of(*arrays))
    found = jax.nn.softmax(layer.scores(params, q, k, **of(*arrays)))
    np.testing.assert_allclose(found, weights, atol=1e-6)


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("number", range(3))
def test_transformations_take_the_objects(number: int, impl: str) -> None:
    def loss(bias: Any) -> Any:
        return (attention(X, X, X, bias=bias, impl=impl) ** 2).sum()

    bias = objects(jnp.asarray)[number]
    leaves, structure = jax.tree.flatten(bias)
    assert [x.shape for x in leaves] == [x.shape for x in bias.tensors().values()]
    np.testing.assert_allclose(jax.jit(loss)(bias), loss(bias), rtol=1e-6)
    (slopes,) = jax.jit(jax.grad(loss))(bias).tensors().values()
    for i in np.ndindex(slopes.shape):
        ends = [loss(bias.map(lambda x, i=i, by=by: x.at[i].add(by))) for by in (1e-2, -1e-2)]
        np.testing.assert_allclose(slopes[i], (ends[0] - ends[1]) / 2e-2, rtol=0.02, atol=1e-3)
    several = jax.tree.unflatten(structure, [jnp.stack([x, 2 * x]) for x in leaves])
    each = jax.vmap(loss)(several)
    want = [loss(bias.map(lambda x, by=by: by * x)) for by in (1, 2)]
    np.testing.assert_allclose(each, want, rtol=1e-5)


def test_the_offset_of_a_cache_is_traced() -> None:
    @jax.jit
    def step(query: Any, offset: Any) -> Any:
        return attention(query, X, X, bias=Relative(jnp.arange(5.0), offset=offset))

    whole = attention(X, X, X, bias=Relative(jnp.arange(5.0)))
    for i in range(5):
        np.testing.assert_allclose(
            step(X[..., i : i + 1, :], i), whole[..., i : i + 1, :], atol=1e-6
        )


def test_in_batches_of_biases() -> None:
    several = jnp.asarray(np.random.normal(size=(3, 5, 5)))
    found = jax.vmap(lambda bias: attention(X, X, X, bias=bias))(several)
    want = [attention(X, X, X, bias=bias) for bias in several]
    np.testing.assert_allclose(found, np.stack(want), atol=1e-6)


@pytest.mark.parametrize(("change", "error", "text"), TABLE)
def test_others_are_refused(change: Any, error: type[Exception], text: str) -> None:
    tensors, options = given(change, jnp.asarray)
    layer = layers.Attention("additive", hidden=8)
    with pytest.raises(error, match=re.escape(text)):
        layer.init(KEY, *tensors, **options)


def test_the_default_slopes() -> None:
    heads = jnp.ones((1, 3, 4, 2))
    found = layers.Attention().scores({}, heads, 0 * heads, bias=ALiBi())
    np.testing.assert_allclose(found[0, :, 0, 2], [-(2**-3), -(2**-7), -(2**-1)])


@pytest.mark.parametrize("slopes", [np.array(["a", 2], object), np.array("x")], ids=str)
def test_layers_name_a_bias_that_has_no_numbers(slopes: np.ndarray) -> None:
    layer, bias = layers.Attention("dot", d_q=3, d_k=3), ALiBi()
    vars(bias)["slopes"] = slopes  # as an unpickled bias may have
    x = jnp.ones((2, 4, 3))
    with pytest.raises(TypeError, match=r"bias\.slopes is a NumPy tensor"):
        layer.apply(layer.init(jax.random.key(0), x, x), x, x, bias=bias)
