"""Layers for MXNet take softcap=, alone and inside hybridized parents."""

from __future__ import annotations

import copy

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

import anyscore.mxnet as layers
from helpers.softcap_layers import LAYERS, LENGTHS, expected, inputs, make


@pytest.mark.parametrize("name", LAYERS)
def test_scores_are_capped(name: str) -> None:
    layer, arrays = make(layers, name), inputs(name)
    layer.initialize()
    given = [mx.nd.array(x) for x in arrays]
    output = layer(*given, valid_lens=mx.nd.array(LENGTHS))
    want = expected(name, layer.numpy_parameters(), arrays)
    np.testing.assert_allclose(output.asnumpy(), want[0], atol=1e-5)
    np.testing.assert_allclose(layer.attention_weights.asnumpy(), want[1], atol=1e-6)
    again = copy.deepcopy(layer)(*given, valid_lens=mx.nd.array(LENGTHS))
    np.testing.assert_allclose(again.asnumpy(), want[0], atol=1e-5)


def test_a_hybridized_parent_caps_the_scores() -> None:
    parent, x = nn.HybridSequential(), mx.nd.array(inputs("self")[0])
    parent.add(make(layers, "self"))
    parent.initialize()
    plain = parent(x).asnumpy()
    parent.hybridize()
    np.testing.assert_allclose(parent(x).asnumpy(), plain, atol=1e-6)
    parent[0].attention.softcap = 0.0
    assert not np.allclose(parent(x).asnumpy(), plain, atol=1e-2)


def test_the_cap_is_seen_and_checked() -> None:
    assert repr(layers.Attention(softcap=2.0)) == "Attention(ScaledDot, dropout=0.0, softcap=2.0)"
    for name in LAYERS:
        with pytest.raises(ValueError, match="softcap must be ≥ 0"):
            make(layers, name, softcap=-1.0)
