"""Layers for JAX take sink=, as plain layers and as Flax NNX modules."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import anyscore.jax as layers
import anyscore.torch as torch_layers
from anyscore import Gaussian
from helpers import machine
from helpers.by_pair import by_pair
from helpers.sink_layers import (
    FIXED,
    LAYERS,
    LENGTHS,
    WRONG,
    drawn,
    expected,
    inputs,
    make,
    sink_of,
)

nnx = pytest.importorskip("flax.nnx", reason=machine.lacks("flax"))
modules = pytest.importorskip("anyscore.jax.nnx")

KEY = jax.random.key(0)


@by_pair("name", LAYERS)
def test_a_learned_sink(name: str) -> None:
    """A learned sink gives the expected values, here and in PyTorch's layer, and has a gradient."""
    layer, arrays = make(layers, name), inputs(name)
    params = layer.init(KEY, *arrays)
    parameters = drawn(name, layer.numpy_parameters(params))
    params = layer.load_numpy_parameters(parameters)
    want = expected(name, parameters, arrays)
    output, weights = layer.apply(params, *arrays, valid_lens=LENGTHS, return_weights=True)
    np.testing.assert_allclose(output, want[0], atol=1e-5)
    np.testing.assert_allclose(weights, want[1], atol=1e-6)
    theirs = make(torch_layers, name)
    theirs.load_numpy_parameters(parameters)
    given = [torch.tensor(x) for x in arrays]
    output = theirs(*given, valid_lens=torch.tensor(LENGTHS)).detach()
    np.testing.assert_allclose(output, want[0], atol=1e-5)

    @jax.jit
    def step(params: Any) -> Any:
        slopes = jax.grad(lambda p: (layer.apply(p, *arrays) ** 2).sum())(params)
        return jax.tree.map(lambda p, slope: p - 0.1 * slope, params, slopes)

    key, _ = sink_of(name)
    assert not np.allclose(step(params)[key], params[key], atol=1e-4)


@pytest.mark.parametrize("sink", FIXED)
@by_pair("name", LAYERS)
def test_a_fixed_sink(name: str, sink: float) -> None:
    layer, arrays = make(layers, name, sink), inputs(name)
    params = layer.init(KEY, *arrays)
    assert sink_of(name)[0] not in params
    want, _ = expected(name, layer.numpy_parameters(params), arrays, sink)
    found = jax.jit(layer.apply)(params, *arrays, valid_lens=LENGTHS)
    np.testing.assert_allclose(found, want, atol=1e-5)


@pytest.mark.parametrize("name", ["dot", "trilinear", "heads"])
def test_modules_of_nnx_hold_it(name: str) -> None:
    module, arrays = make(modules, name, rngs=nnx.Rngs(0)), inputs(name)
    parameters = drawn(name, module.numpy_parameters())
    module.load_numpy_parameters(parameters)
    want, _ = expected(name, parameters, arrays)
    again = nnx.merge(*nnx.split(module))
    for one in (module, again):
        np.testing.assert_allclose(one(*arrays, valid_lens=LENGTHS), want, atol=1e-5)


@pytest.mark.parametrize("score", [Gaussian(jnp.array(2.0)), lambda q, k: q @ k.swapaxes(-1, -2)])
def test_beside_scores_that_are_no_names(score: Any) -> None:
    x = jax.random.normal(KEY, (2, 5, 8))
    layer = layers.MultiHeadAttention(8, 2, score=score, sink=True, dtype="bfloat16")
    params = layer.init(KEY)
    assert params["attention.sink.weight"].shape == (2,)
    assert params["attention.sink.weight"].dtype == jnp.bfloat16
    _, weights = layer.apply(jax.tree.map(jnp.float32, params), x, return_weights=True)
    assert (weights.sum(-1) < 1).all()
    alone = layers.Attention(score, sink=True)
    assert alone.scores(alone.init(KEY), x, x).shape == (2, 5, 5)


def test_it_is_seen_taken_and_checked() -> None:
    assert repr(layers.Attention(sink=0)) == "Attention(ScaledDot, dropout=0.0, sink=0.0)"
    layer = layers.Attention(heads=2, sink=True)
    assert layer.load_numpy_parameters({"sinks": np.ones(2)})["sink.weight"].shape == (2,)
    for sink, error, text in WRONG:
        with pytest.raises(error, match=text):
            layers.MultiHeadAttention(8, 2, sink=sink)
