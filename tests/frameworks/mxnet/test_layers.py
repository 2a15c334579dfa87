"""Gluon layers reproduce the notebooks, and all scores agree with the function."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from anyscore import Additive, Causal, Gaussian, attention
from anyscore import mxnet as layers
from anyscore.ops import load
from frameworks.mxnet.arrays import numbers, to
from frameworks.mxnet.blocks import D_V, LAYERS, LENGTHS, T_K, T_Q, B, D, inputs, normal
from helpers.table_scores import TABLE


def options(name: str) -> dict[str, Any]:
    return {"hidden": 6} if TABLE[name].hidden else {}


@pytest.mark.parametrize(
    "make", [lambda: layers.DotProductAttention(0.5), lambda: layers.MLPAttention(8, 0.1)]
)
def test_the_notebook(make: Any, kind: str) -> None:
    """Valid lengths of 2 and 6 give the means of the first two and six values."""
    M = mx.np if kind == "np" else mx.nd
    layer = make()
    layer.initialize()
    keys = M.ones((2, 10, 2))
    values = M.arange(40).reshape((1, 10, 4)).repeat(2, axis=0)
    output = layer(M.ones((2, 1, 2)), keys, values, M.array([2, 6]))
    assert type(output) is type(keys)
    np.testing.assert_allclose(numbers(output)[:, 0], [[2, 3, 4, 5], [10, 11, 12, 13]], rtol=1e-6)
    weights = numbers(layer.attention_weights)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-6)
    assert not weights[0, :, 2:].any()
    assert not weights[1, :, 6:].any()


def test_additive_attention_of_the_book(kind: str) -> None:
    """Queries may have another width than keys, and lengths may be per query."""
    layer = layers.AdditiveAttention(num_hiddens=8, dropout=0.1)
    layer.initialize()
    queries, keys = to(normal(2, 1, 20), kind=kind), to(normal(2, 10, 2), kind=kind)
    values, lengths = to(normal(2, 10, 4), kind=kind), to(LENGTHS[:, None], kind=kind)
    assert layer(queries, keys, values, lengths).shape == (2, 1, 4)
    shapes = {name: p.shape for name, p in layer.parameters().items()}
    assert shapes == {"W_q.weight": (8, 20), "W_k.weight": (8, 2), "w_v.weight": (1, 8)}


def test_masked_softmax(kind: str) -> None:
    x = normal(2, 2, 4)
    for lengths in (np.float32([2, 3]), np.float32([[1, 3], [2, 4]])):
        found = layers.masked_softmax(to(x, kind=kind), to(lengths, kind=kind))
        kept = np.arange(4) < (lengths[:, None] if lengths.ndim == 1 else lengths)[..., None]
        e = np.exp(x) * kept
        np.testing.assert_allclose(numbers(found), e / e.sum(-1, keepdims=True), rtol=1e-5)
    with pytest.raises(TypeError, match="expected an MXNet array"):
        layers.masked_softmax(x)


@pytest.mark.parametrize("rank", [2, 3, 4])
@pytest.mark.parametrize("name", TABLE)
def test_named_scores_are_those_of_the_function(name: str, rank: int, kind: str) -> None:
    """With the layer's parameters as arrays, `attention` in NumPy gives the same."""
    layer = layers.Attention(name, **options(name))
    layer.initialize()
    lead = (2, 3)[: rank - 2]
    q, k, v = (normal(*lead, n, d) for n, d in ((T_Q, D), (T_K, D), (T_K, D_V)))
    found = layer(*(to(x, kind=kind) for x in (q, k, v)), 5)
    values = layer.numpy_parameters()
    assert all(x.shape == () for field, x in values.items() if field.startswith("log_"))
    score = TABLE[name].of_layer(values, D, D)
    expected = attention(q, k, v, score=score, valid_lens=5)
    np.testing.assert_allclose(numbers(found), expected, atol=2e-6)
    for parameter in layer.parameters().values():
        assert rank == 2 or parameter.shape is not None


SCALED = [name for name, row in TABLE.items() if [*row.learned(D, D, D).values()] == [()]]


@pytest.mark.parametrize("name", SCALED)
def test_learned_scales(name: str, kind: str) -> None:
    """Learned scales get gradients, outside of MXNet's mode too."""
    layer = layers.Attention(name)
    layer.initialize()
    with autograd.record():
        output = layer(*inputs(kind))
    output.backward()
    (scale,) = layer.parameters().values()
    assert abs(numbers(scale.grad())).max() > 1e-4


def test_a_score_object_with_parameters_and_constants(kind: str) -> None:
    W_q = gluon.Parameter("query_weight", shape=(6, D))
    w_v = to(normal(6), kind=kind)
    layer = layers.Attention(Additive(W_q, to(normal(6, D, seed=2), kind=kind), w_v))
    layer.initialize()
    with autograd.record():
        output = layer(*inputs(kind))
    output.backward()
    assert abs(numbers(W_q.grad())).max() > 0
    assert set(layer.parameters()) == {"W_q.weight", "W_k.weight", "w_v.weight"}
    q, k, v, _ = (numbers(x) for x in inputs("np"))
    score = Additive(numbers(W_q.data()), normal(6, D, seed=2), normal(6))
    np.testing.assert_allclose(
        numbers(output), attention(q, k, v, score=score, valid_lens=LENGTHS), atol=2e-6
    )


def test_self_attention_counts_its_parameters(kind: str) -> None:
    layer = layers.SelfAttention(D, 3, bias=False)
    layer.initialize()
    assert sum(x.size for x in layer.numpy_parameters().values()) == D * (2 * 3 + D)
    x = to(normal(B, T_Q, D), kind=kind)
    output = layer(x, to(LENGTHS, kind=kind), mask=Causal())
    assert output.shape == (B, T_Q, D)
    assert layer.attention_weights.shape == (B, T_Q, T_Q)
    projected = layers.SelfAttention(D, 3, d_v=2, project_output=True)
    projected.initialize()
    assert projected(x).shape == (B, T_Q, D)


def test_prepared_keys(kind: str) -> None:
    for layer in (
        layers.AdditiveAttention(6, query_size=D, key_size=D),
        layers.MultiHeadAttention(D, 2),
    ):
        layer.initialize()
        queries, keys, _, lengths = inputs(kind)
        prepared = layer.prepare_keys(keys)
        output = layer(queries, prepared, keys, lengths)
        assert type(output) is type(queries)
        np.testing.assert_allclose(
            numbers(output), numbers(layer(queries, keys, keys, lengths)), atol=1e-6
        )


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_cast(dtype: str, kind: str) -> None:
    for make in LAYERS.values():
        layer = make()
        layer.cast(dtype)
        layer.initialize()
        given = [x.astype(dtype) for x in inputs(kind)[:3]]
        assert layer(*given).dtype == np.dtype(dtype)


def test_padding_reaches_no_gradient(kind: str) -> None:
    for make in (LAYERS[name] for name in LAYERS if name != "dot"):
        layer = make()
        layer.initialize()
        queries, keys, values, lengths = inputs(kind)
        given = [numbers(x).copy() for x in (keys, values)]
        for x in given:
            x[0, 2:] = np.nan
        with autograd.record():
            output = layer(queries, *(to(x, kind=kind) for x in given), lengths)
        output.backward()
        for name, parameter in layer.parameters().items():
            assert np.isfinite(numbers(parameter.grad())).all(), name


def test_a_number_is_not_learned(kind: str) -> None:
    layer = layers.Attention("gaussian", sigma=2.0)
    assert not layer.parameters()
    q, k, v, _ = inputs(kind)
    expected = attention(*(numbers(x) for x in (q, k, v)), score=Gaussian(2.0))
    np.testing.assert_allclose(numbers(layer(q, k, v)), expected, atol=2e-6)


def test_copies_leave_the_last_call_behind() -> None:
    layer = layers.Attention("additive", hidden=6, d_q=D, d_k=D)
    layer.initialize()
    size = len(pickle.dumps(layer))
    layer(mx.nd.ones((50, T_Q, D)), mx.nd.ones((50, T_K, D)))
    assert len(pickle.dumps(layer)) == size
    for made in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert made.attention_weights is None
        pairs = zip(
            made.numpy_parameters().values(), layer.numpy_parameters().values(), strict=True
        )
        assert all(np.array_equal(*pair) for pair in pairs)
    assert layer.attention_weights is not None


@pytest.mark.parametrize(
    "kind", [layers.Attention, layers.MultiHeadAttention, layers.SelfAttention]
)
def test_impl(kind: Any) -> None:
    """A layer with impl= runs that implementation, or raises with the reason."""
    x = mx.np.ones((2, T_Q, 8))
    sizes = {layers.MultiHeadAttention: (8, 2), layers.SelfAttention: (8, 8)}.get(kind, ())
    given = (x, x) if kind is layers.Attention else (x,)

    def made(impl: str) -> Any:
        layer = kind(*sizes, score=lambda q, k: xp.matmul(q, xp.transpose(k)), impl=impl)
        layer.initialize()
        return layer

    xp = load("mxnet")
    assert made("reference")(*given).shape == x.shape
    with pytest.raises(NotImplementedError, match="the score is a callable"):
        made("fused")(*given)
    with pytest.raises(ValueError, match="impl must be one of"):
        made("fast")
