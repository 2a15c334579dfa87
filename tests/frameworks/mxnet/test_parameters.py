"""Gluon layers take parameters from files, from NumPy arrays and under old names, or anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mxnet.gluon import nn

from anyscore.mxnet import (
    AdditiveAttention,
    Attention,
    MLPAttention,
    MultiHeadAttention,
    SelfAttention,
)
from frameworks.mxnet.arrays import numbers, to
from frameworks.mxnet.blocks import D_V, LAYERS, T_Q, B, D, inputs, normal


@pytest.mark.parametrize("name", LAYERS)
def test_parameters_go_both_ways(name: str, kind: str) -> None:
    first, second, third = (LAYERS[name]() for _ in range(3))
    first.initialize()
    given = inputs(kind)
    output = numbers(first(*given))
    arrays = first.numpy_parameters()
    second.load_numpy_parameters(arrays)  # before `second` is initialised
    third.initialize()
    third(*given)
    third.load_numpy_parameters(arrays)
    for layer in (second, third):
        np.testing.assert_array_equal(numbers(layer(*given)), output)
        for x, y in zip(arrays.values(), layer.numpy_parameters().values(), strict=True):
            np.testing.assert_array_equal(x, y)


def test_old_names_are_accepted(kind: str) -> None:
    """Parameters may have names of the book's earlier layers and of torch.nn.MultiheadAttention."""
    layer = MLPAttention(6)
    given = {"W_q.weight": normal(6, D), "W_k.weight": normal(6, D), "v.weight": normal(1, 6)}
    layer.load_numpy_parameters(given)
    np.testing.assert_array_equal(layer.numpy_parameters()["w_v.weight"], given["v.weight"])
    heads = MultiHeadAttention(D, 2)
    fused = {"in_proj_weight": normal(3 * D, D), "in_proj_bias": normal(3 * D)}
    fused |= {"out_proj.weight": normal(D, D), "out_proj.bias": normal(D)}
    heads.load_numpy_parameters(fused)
    made = heads.numpy_parameters()
    np.testing.assert_array_equal(made["W_k.weight"], fused["in_proj_weight"][D : 2 * D])
    with pytest.raises(ValueError, match=r"expected parameters W_q\.weight"):
        layer.load_numpy_parameters({"W_q.weight": normal(6, D)})
    with pytest.raises(ValueError, match=r"W_q\.weight has shape \(5, 4\), expected \(6, 4\)"):
        layer.load_numpy_parameters({**given, "W_q.weight": normal(5, D)})


@pytest.mark.parametrize("make", [MultiHeadAttention, SelfAttention])
def test_old_names_of_layers_that_project(make: Any) -> None:
    first, second = (make(D, 2, score="gatv2") for _ in range(2))
    first.initialize()
    own = first.numpy_parameters()
    given = {
        name.replace("qkv.", "_Attention__qkv.").replace("attention.w_v.", "attention.v."): x
        for name, x in own.items()
    }
    assert given.keys() != own.keys()
    second.load_numpy_parameters(given)
    for name, x in second.numpy_parameters().items():
        np.testing.assert_array_equal(x, own[name])


@pytest.mark.parametrize("name", LAYERS)
def test_files(name: str, kind: str, tmp_path: Path) -> None:
    first, second, third = (LAYERS[name]() for _ in range(3))
    first.initialize()
    given = inputs(kind)
    output = numbers(first(*given))
    path = str(tmp_path / "layer.params")
    first.save_parameters(path)
    second.load_parameters(path)  # before the sizes are known
    third.initialize()
    third(*given)
    third.load_parameters(path)
    for layer in (second, third):
        np.testing.assert_array_equal(numbers(layer(*given)), output)


def test_a_file_of_the_book(kind: str, tmp_path: Path) -> None:
    """A layer reads the file of the book's layer, whose `nn.Dense` blocks have these names."""

    class Book(nn.Block):
        def __init__(self) -> None:
            super().__init__()
            self.W_k = nn.Dense(6, use_bias=False, flatten=False)
            self.W_q = nn.Dense(6, use_bias=False, flatten=False)
            self.w_v = nn.Dense(1, use_bias=False, flatten=False)

        def forward(self, queries: Any, keys: Any) -> None:
            q, k = self.W_q(queries), self.W_k(keys)
            self.w_v(q[:, :1] + k[:, :1])

    book, layer = Book(), AdditiveAttention(6)
    book.initialize()
    queries, keys, values, lengths = inputs(kind)
    book(queries, keys)
    path = str(tmp_path / "book.params")
    book.save_parameters(path)
    layer.load_parameters(path)
    layer(queries, keys, values, lengths)
    np.testing.assert_array_equal(
        layer.numpy_parameters()["W_q.weight"], numbers(book.W_q.weight.data())
    )
    smaller = AdditiveAttention(5)
    smaller.load_parameters(path)
    with pytest.raises(ValueError, match=r"was loaded with shape \(6, 4\), expected \(5, 4\)"):
        smaller(queries, keys, values, lengths)


def test_not_initialized(kind: str) -> None:
    layer = AdditiveAttention(6)
    with pytest.raises(RuntimeError, match="has not been initialized"):
        layer(*inputs(kind))
    with pytest.raises(ValueError, match="initialize the layer"):
        layer.numpy_parameters()


def test_wrong_first_calls_make_nothing(kind: str) -> None:
    layer = AdditiveAttention(6)
    layer.initialize()
    queries, keys, values, _ = inputs(kind)
    with pytest.raises(ValueError, match="key has 7 tokens but value has 6"):
        layer(queries, keys, values[:, :6])
    with pytest.raises(ValueError, match="valid_lens has shape"):
        layer(queries, keys, values, to(np.float32([1, 2, 3]), kind=kind))
    assert layer(to(normal(B, T_Q, 9), kind=kind), keys, values).shape == (B, T_Q, D_V)
    with pytest.raises(ValueError, match="unknown score 'aditive': did you mean 'additive'"):
        Attention("aditive")


def test_start_and_reinitialisation() -> None:
    """Weights start uniform in the score's bounds, σ at the score's value, and anew on demand."""
    layer = Attention("additive", hidden=64, d_q=50, d_k=30)
    layer.initialize()
    first = layer.numpy_parameters()
    bound = (3 * 0.5 / 50) ** 0.5
    assert 0.9 * bound < abs(first["W_q.weight"]).max() <= bound
    layer.initialize(force_reinit=True)
    assert not np.array_equal(layer.numpy_parameters()["W_q.weight"], first["W_q.weight"])
    scale = Attention("gaussian", d_q=D, d_k=D)
    scale.initialize()
    np.testing.assert_allclose(scale.numpy_parameters()["log_sigma.weight"], np.log(8) / 4)
