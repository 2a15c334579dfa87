"""Layers for JAX take softcap=, as plain layers and as Flax NNX modules."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import anyscore.jax as layers
from helpers import machine
from helpers.by_pair import by_pair
from helpers.softcap_layers import LAYERS, LENGTHS, expected, inputs, make

nnx = pytest.importorskip("flax.nnx", reason=machine.lacks("flax"))
modules = pytest.importorskip("anyscore.jax.nnx")

KEY = jax.random.key(0)


@by_pair("name", LAYERS)
def test_scores_are_capped(name: str) -> None:
    layer, arrays = make(layers, name), inputs(name)
    (output, weights), params = layer.init_with_output(KEY, *arrays, valid_lens=LENGTHS)
    want = expected(name, layer.numpy_parameters(params), arrays)
    np.testing.assert_allclose(output, want[0], atol=1e-5)
    np.testing.assert_allclose(weights, want[1], atol=1e-6)
    traced = jax.jit(layer.apply)(params, *arrays, valid_lens=LENGTHS)
    np.testing.assert_allclose(traced, want[0], atol=1e-5)


@pytest.mark.parametrize("name", ["trilinear", "heads"])
def test_modules_of_nnx_have_the_cap_as_structure(name: str) -> None:
    module, arrays = make(modules, name, rngs=nnx.Rngs(0)), inputs(name)
    want, _ = expected(name, module.numpy_parameters(), arrays)
    np.testing.assert_allclose(module(*arrays, valid_lens=LENGTHS), want, atol=1e-5)
    again = nnx.merge(*nnx.split(module))
    np.testing.assert_allclose(again(*arrays, valid_lens=LENGTHS), want, atol=1e-5)


def test_the_cap_is_seen_and_checked() -> None:
    assert repr(layers.Attention(softcap=2.0)) == "Attention(ScaledDot, dropout=0.0, softcap=2.0)"
    for name in LAYERS:
        with pytest.raises(ValueError, match="softcap must be ≥ 0"):
            make(layers, name, softcap=-1.0)
