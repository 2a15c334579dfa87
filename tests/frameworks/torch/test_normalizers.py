"""Normalizers other than the softmax compile, export and work under PyTorch's transforms."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from anyscore import Sigmoid, plan
from anyscore.torch import SelfAttention
from helpers.by_pair import also_weekly
from helpers.normalizing import ARRAYS, LENGTHS, NORMALIZERS, call, near
from helpers.transformed import WARNINGS

pytestmark = [pytest.mark.sample, *WARNINGS]

XS = [torch.tensor(x) for x in ARRAYS]
each = pytest.mark.parametrize("normalizer", NORMALIZERS)


@each
@pytest.mark.parametrize("how", ["eager", "func", "checkpoint"])
def test_values_and_gradients(normalizer: str, how: str) -> None:
    ours = partial(call, normalizer=normalizer)

    def loss(*xs: Tensor) -> Tensor:
        return ours(*xs).square().sum()

    if how == "func":
        slopes = torch.func.grad(loss, (0, 1, 2))(*XS)
    else:
        xs = [x.clone().requires_grad_() for x in XS]
        total = checkpoint(loss, *xs, use_reentrant=False) if how == "checkpoint" else loss(*xs)
        total.backward()
        slopes = [x.grad for x in xs]
    near([ours(*XS), *slopes], normalizer)


@each
def test_vmap_and_forward_mode(normalizer: str) -> None:
    ours = partial(call, normalizer=normalizer)
    both = torch.stack([XS[0], -XS[0]])
    batched = torch.vmap(lambda x: ours(x, *XS[1:]))(both)
    for x, y in zip(batched, both, strict=True):
        torch.testing.assert_close(x, ours(y, *XS[1:]))
    along = [torch.ones_like(x) for x in XS]
    _, ahead = torch.func.jvp(lambda *xs: ours(*xs).square().sum(), tuple(XS), tuple(along))
    slopes = torch.func.grad(lambda *xs: ours(*xs).square().sum(), (0, 1, 2))(*XS)
    torch.testing.assert_close(ahead, sum(x.sum() for x in slopes))


@pytest.mark.slow
@pytest.mark.parametrize("normalizer", ["entmax15", *also_weekly("sparsemax", "sigmoid")])
def test_compiled(normalizer: str) -> None:
    lengths = torch.as_tensor(LENGTHS)

    def loss(*xs: Tensor) -> Any:
        output = call(*xs, normalizer=normalizer, valid_lens=lengths)
        return output, output.square().sum()

    xs = [x.clone().requires_grad_() for x in XS]
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    output, total = compiled(*xs)
    total.backward()
    near([output.detach(), *(x.grad for x in xs)], normalizer)


@pytest.mark.parametrize("normalizer", ["entmax15", Sigmoid(-1.0), "sigmoid"])
def test_exported(normalizer: Any) -> None:
    layer = SelfAttention(5, 4, normalizer=normalizer).double().eval()
    x = XS[1][:, 0]
    layer(x)
    again = torch.export.export(layer, (x,), strict=False).module()
    torch.testing.assert_close(again(x), layer(x))


def test_the_plan_of_half_precision() -> None:
    halves = [x.bfloat16() for x in XS]
    assert plan(*halves, normalizer="sigmoid").route == "cpu"
