"""A call or a layer refuses nested tensors with one clear error each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from anyscore import attention
from anyscore.torch import Attention, MultiHeadAttention, Pointer, SelfAttention

pytestmark = pytest.mark.sample


def nested() -> Tensor:
    """Return two sequences, of 4 and of 5 tokens."""
    return torch.nested.nested_tensor_from_jagged(torch.randn(9, 8), torch.tensor([0, 4, 9]))


@pytest.mark.parametrize("make", [lambda: MultiHeadAttention(8, 2), Attention])
@pytest.mark.parametrize("dense", ["query", "key", "value", "key and value"])
def test_dense_beside_nested_is_refused(dense: str, make: Any) -> None:
    """Dense tensors raise, also with as many tokens as the nested ones, together or each."""
    torch.manual_seed(0)
    layer, x = make(), nested()
    for other in (torch.randn(2, 9, 8), torch.randn(1, 9, 8), torch.randn(2, 5, 8)):
        xs = [other if name in dense else x for name in ("query", "key", "value")]
        with pytest.raises(TypeError, match=f"is a nested tensor but {dense.split()[0]} is dense"):
            layer(*xs)
        with pytest.raises(TypeError, match=r"is dense: pass all of them nested"):
            layer(xs[0], values=xs[2], keys=xs[1])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_other_nested_tensors_are_refused() -> None:
    strided = torch.nested.nested_tensor([torch.randn(n, 8) for n in (4, 5)])
    x = nested()
    for call in (attention, Attention(), MultiHeadAttention(8, 2)):
        with pytest.raises(TypeError, match=r"query is .* strided .* with layout=torch.jagged"):
            call(strided, strided, strided)
    with pytest.raises(TypeError, match="strided"):
        SelfAttention(8, 2)(strided)
    with pytest.raises(TypeError, match="Pointer takes no nested tensor here"):
        Pointer(hidden=4, d_q=8, d_k=8)(x, x)
