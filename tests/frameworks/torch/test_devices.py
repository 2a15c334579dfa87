"""Calls refuse tensors that are not dense or not on the device of the query."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from anyscore import (
    Additive,
    Bilinear,
    Gaussian,
    Keys,
    Lengths,
    ScaledDot,
    Score,
    Trilinear,
    attention,
    plan,
    prepare_keys,
)
from anyscore.torch import MultiHeadAttention, masked_softmax

pytestmark = pytest.mark.sample

X = torch.ones(1, 6, 4)
META = {"device": "meta"}


@pytest.mark.parametrize(
    ("name", "score"),
    [
        ("Additive.w_v", Additive(None, None, torch.ones(4, **META))),
        ("Additive.W_q", Additive(torch.ones(3, 4, **META), torch.ones(3, 4), torch.ones(3))),
        (
            "Additive.bias",
            Additive(None, None, torch.ones(4), torch.ones(4, **META)),
        ),
        ("Bilinear.W", Bilinear(torch.ones(4, 4, **META))),
        ("Trilinear.w_k", Trilinear(torch.ones(4), torch.ones(4, **META), torch.ones(4))),
        ("Gaussian.sigma", Gaussian(torch.tensor(1.0, **META))),
        ("ScaledDot.scale", ScaledDot(torch.tensor(1.0, **META))),
    ],
)
def test_parameters_elsewhere_are_refused(name: str, score: Score) -> None:
    for call in (attention, plan):
        with pytest.raises(ValueError, match="move them to one device") as raised:
            call(X, X, X, score=score)
        assert str(raised.value).startswith(f"query is on cpu but {name} is on meta: ")


def test_tensors_elsewhere_are_refused() -> None:
    away = X.to("meta")
    for name, tensors in (("key", (X, away, X)), ("value", (X, X, away))):
        with pytest.raises(ValueError, match=f"query is on cpu but {name} is on meta: move"):
            attention(*tensors)
    with pytest.raises(ValueError, match="query is on meta but key is on cpu"):
        attention(away, X, X)
    for mask in (torch.ones(6, 6, dtype=torch.bool, **META), Lengths(torch.ones(1, **META))):
        with pytest.raises(ValueError, match=r"is on meta, the query on cpu: move them"):
            attention(X, X, X, mask=mask)
    with pytest.raises(ValueError, match="query is on cpu but key is on meta"):
        MultiHeadAttention(4, 2)(X, away)
    assert attention(away, away, away, valid_lens=3).device.type == "meta"  # shapes alone


def _nested(layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([X[0], X[0, :2]], layout=layout)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors:UserWarning")
@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (X.to_sparse, "of layout torch.sparse_coo: pass x.to_dense()."),
        (X[0].to_sparse_csr, "of layout torch.sparse_csr: pass x.to_dense()."),
        (X.to_mkldnn, "of layout torch._mkldnn: pass x.to_dense()."),
        (lambda: _nested(torch.jagged), "a nested tensor"),
        (lambda: _nested(torch.strided), "a nested tensor"),
        (lambda: torch.masked.masked_tensor(X, X > 0), "a MaskedTensor: pass x.get_data(), and"),
        (lambda: np.ma.masked_array(np.ones((6, 4))), "a masked array, whose mask is True where "),
        (lambda: np.asmatrix(np.ones((6, 4))), "a matrix, whose * is a product of matrices: pass"),
    ],
)
def test_other_layouts_are_refused(make: Callable[[], Any], text: str) -> None:
    odd = make()
    plain = np.ones((6, 4)) if isinstance(odd, np.ndarray) else X
    for i, name in enumerate(("query", "key", "value")):
        tensors = [odd if i == j else plain for j in range(3)]
        for impl in ("auto", "reference"):
            with pytest.raises(TypeError, match=name) as raised:
                attention(*tensors, impl=impl)
            assert str(raised.value).startswith(f"{name} is {text}")
    with pytest.raises(TypeError, match="key is "):
        prepare_keys(odd)


def test_layouts_of_masks_and_parameters() -> None:
    keep = np.ma.masked_array(np.ones((6, 6), bool))
    x = np.ones((1, 6, 4))
    with pytest.raises(TypeError, match="mask is a masked array, whose mask is True where Keys"):
        attention(x, x, x, mask=keep)
    with pytest.raises(TypeError, match=r"Keys\(keep\) is a masked array"):
        attention(x, x, x, mask=Keys(keep[:1]))
    with pytest.raises(TypeError, match="valid_lens is a masked array"):
        attention(x, x, x, valid_lens=np.ma.masked_array([3]))
    with pytest.raises(TypeError, match=r"mask is of layout torch.sparse_coo: pass x.to_dense"):
        attention(X, X, X, mask=torch.ones(6, 6, dtype=torch.bool).to_sparse())
    with pytest.raises(TypeError, match=r"Bilinear.W is of layout torch.sparse_coo"):
        attention(X, X, X, score=Bilinear(torch.eye(4).to_sparse()))
    with pytest.raises(TypeError, match=r"X is a masked array"):
        _softmax_of_numpy(np.ma.masked_array(x))
    with pytest.raises(TypeError, match=r"X is of layout torch.sparse_coo"):
        masked_softmax(X.to_sparse())


def _softmax_of_numpy(x: Any) -> Any:
    from anyscore.backends.reference.definition import masked_softmax
    from anyscore.ops import load

    return masked_softmax(load("numpy"), x, None)


def test_checks_are_remembered_by_place_and_layout() -> None:
    """A call that passed does not admit its shapes and dtypes on other devices or layouts."""
    attention(X, X, X)
    with pytest.raises(ValueError, match="one device"):
        attention(X, X.to("meta"), X)
    with pytest.raises(TypeError, match="layout"):
        attention(X, X, X.to_sparse())
