"""Layers for PyTorch cap scores by softcap=, keep it in copies, and show and check it."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import anyscore.torch as layers
from anyscore.torch import Attention, MultiHeadAttention
from helpers.by_pair import by_pair
from helpers.softcap_layers import CAP, LAYERS, LENGTHS, expected, inputs, make

pytestmark = pytest.mark.sample


@pytest.mark.parametrize("impl", ["auto", "reference"])
@by_pair("name", LAYERS)
def test_scores_are_capped(name: str, impl: str) -> None:
    layer, arrays = make(layers, name, impl=impl), inputs(name)
    given = [torch.tensor(x) for x in arrays]
    output = layer(*given, valid_lens=torch.tensor(LENGTHS))
    want = expected(name, layer.numpy_parameters(), arrays)
    np.testing.assert_allclose(output.detach(), want[0], atol=1e-5)
    np.testing.assert_allclose(layer.attention_weights, want[1], atol=1e-6)
    uncapped = expected(name, layer.numpy_parameters(), arrays, cap=0.0)
    assert not np.allclose(output.detach(), uncapped[0], atol=1e-2)
    plain = make(layers, name, softcap=0.0)
    plain.load_state_dict(layer.state_dict())
    output = plain(*given, valid_lens=torch.tensor(LENGTHS))
    np.testing.assert_allclose(output.detach(), uncapped[0], atol=1e-5)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_keep_the_cap(copied: Any) -> None:
    x = 4 * torch.randn(2, 5, 6)
    for layer in (make(layers, "dot"), make(layers, "heads")):
        torch.testing.assert_close(copied(layer)(x, x, x), layer(x, x, x), rtol=0, atol=0)


def test_the_cap_is_seen() -> None:
    assert repr(Attention(softcap=30.0)) == "Attention(ScaledDot, dropout=0.0, softcap=30.0)"
    assert repr(Attention()) == "Attention(ScaledDot, dropout=0.0)"
    assert f"softcap={CAP}" in repr(MultiHeadAttention(8, 2, softcap=CAP))


@pytest.mark.parametrize(
    ("cap", "error"),
    [(-1.0, ValueError), (math.inf, ValueError), (math.nan, ValueError), (True, TypeError),
     ("30", TypeError), (None, TypeError)],
)  # fmt: skip
@by_pair("name", LAYERS)
def test_other_caps_are_refused(name: str, cap: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="softcap must be"):
        make(layers, name, softcap=cap)
