"""Wrong calls with MXNet's arrays raise the common messages before any operator runs."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest

from anyscore import Additive, Edges, Gaussian, attention
from anyscore.mxnet import DotProductAttention, MultiHeadAttention
from frameworks.mxnet.arrays import numbers, to
from helpers.wrong_calls import NAMING, TABLE, given

B, T_Q, T_K, D, D_V = 3, 4, 6, 5, 2


def arrays() -> list[np.ndarray]:
    return [np.ones(shape) for shape in ((B, T_Q, D), (B, T_K, D), (B, T_K, D_V))]


def _wrong(change: dict[str, Any]) -> Any:
    tensors, options = given(change, lambda x: x if x.dtype.kind == "c" else to(x))
    return attention(*tensors, **options)


def _same_in_mxnet(change: dict[str, Any]) -> bool:
    """Return whether the call has no complex numbers, which MXNet lacks."""
    given = change.get("key"), getattr(change.get("score"), "sigma", None)
    return all(getattr(x, "dtype", None) != np.dtype("complex128") for x in given)


@pytest.mark.usefixtures("np_mode")
@pytest.mark.parametrize(
    ("change", "error", "text"), [row for row in TABLE if _same_in_mxnet(row[0])]
)
def test_wrong_calls(change: dict[str, Any], error: type, text: str) -> None:
    with pytest.raises(error) as raised:
        _wrong(change)
    assert type(raised.value) is error
    assert str(raised.value) == text


@pytest.mark.usefixtures("np_mode")
@pytest.mark.parametrize(("change", "parts"), NAMING)
def test_what_errors_name(change: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises((TypeError, ValueError)) as raised:
        _wrong(change)
    for part in parts:
        assert part in str(raised.value)


@pytest.mark.usefixtures("np_mode")
def test_there_are_no_edges() -> None:
    with pytest.raises(TypeError, match="Edges are for NumPy, PyTorch, JAX and TensorFlow"):
        Edges.from_index(mx.np.array([[0, 1], [1, 0]], dtype="int64"), 2)
    x = mx.np.ones((2, 3))
    with pytest.raises(TypeError, match="Edges are for NumPy, PyTorch, JAX and TensorFlow"):
        attention(x, x, x, mask=Edges([0, 1, 2], [1, 0]))


def test_wrong_calls_with_legacy_arrays() -> None:
    query, key, value = (to(x, kind="nd") for x in arrays())
    with pytest.raises(ValueError, match="key has 6 tokens but value has 5"):
        attention(query, key, value[:, :5])
    with pytest.raises(ValueError, match="Gaussian needs queries and keys of one width"):
        attention(query[:, :, :3], key, value, score=Gaussian())
    with pytest.raises(TypeError, match="must be boolean"):
        attention(query, key, value, mask=to(np.ones((T_Q, T_K)), kind="nd"))
    with pytest.raises(TypeError, match=r"CSRNDArray.*dense"):
        attention(mx.nd.zeros((2, 3)).tostype("csr"), key, value)


def test_layers_take_arrays_of_mxnet(kind: str) -> None:
    query, key, value = (to(x, kind=kind) for x in arrays())
    for layer in (DotProductAttention(), MultiHeadAttention(D, 1, d_v=D_V)):
        layer.initialize()
        with pytest.raises(TypeError, match="got a ndarray, expected an MXNet array"):
            layer(numbers(query), key, value)
        with pytest.raises(TypeError, match=r"MXNet.*NumPy"):
            layer(query, numbers(key), value)


def test_separable_scores_are_for_pytorch(kind: str) -> None:
    query, key, value = (to(x, kind=kind) for x in arrays())
    score = Additive(None, None, to(np.ones(D), kind=kind))
    with pytest.raises(NotImplementedError, match="it is for PyTorch on NVIDIA GPUs"):
        attention(query, key, value, score=score, impl="separable")
