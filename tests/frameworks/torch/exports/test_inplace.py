"""A caller's changes of a result in place reach gradients only by the rules of calculus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from anyscore import Additive, Causal, ScaledDot, attention, plan
from anyscore.torch import Attention, MultiHeadAttention

SCORES = pytest.mark.parametrize("score", [ScaledDot(), Additive(None, None, torch.ones(4))])


def inputs(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [torch.randn(2, t, 4, dtype=dtype, requires_grad=True) for t in (3, 5, 5)]


def scaled(xs: list[Tensor], score: Any, impl: str) -> Tensor:
    return attention(*xs, score=score.map(lambda x: x.to(xs[0].dtype)), impl=impl).mul_(2)


def with_residual(xs: list[Tensor], score: Any, impl: str) -> Tensor:
    out = attention(
        *xs, score=score.map(lambda x: x.to(xs[0].dtype)), mask=Causal("end"), impl=impl
    )
    out += xs[0]
    return out.relu_()


def of_log_sum_exp(xs: list[Tensor], score: Any, impl: str) -> Tensor:
    score = score.map(lambda x: x.to(xs[0].dtype))
    out = attention(*xs, score=score, return_lse=True, impl=impl)
    out.lse.sigmoid_()
    return out.output.tanh_() * out.lse[..., None]


CHANGES = pytest.mark.parametrize("change", [scaled, with_residual, of_log_sum_exp])


def gradients(f: Callable[..., Tensor], xs: list[Tensor], *args: Any) -> tuple[Tensor, ...]:
    return torch.autograd.grad(f(xs, *args).sin().sum(), xs)


@SCORES
@CHANGES
def test_of_a_result(change: Callable[..., Tensor], score: Any) -> None:
    xs = inputs()
    assert plan(*xs, score=score.map(Tensor.double), impl="fused").route == "cpu"
    found = gradients(change, xs, score, "fused")
    torch.testing.assert_close(found, gradients(change, xs, score, "reference"))


@SCORES
@CHANGES
def test_in_half_precision(change: Callable[..., Tensor], score: Any) -> None:
    xs = inputs(torch.bfloat16)
    exact = [x.detach().double().requires_grad_() for x in xs]
    found = gradients(change, xs, score, "auto")
    expected = gradients(change, exact, score, "reference")
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=0.1, atol=0.1)


@CHANGES
def test_under_checkpointing(change: Callable[..., Tensor]) -> None:
    """Gradients are right under checkpointing, where PyTorch does not guard saved tensors."""

    def f(xs: list[Tensor], impl: str) -> Tensor:
        return checkpoint(change, xs, ScaledDot(), impl, use_reentrant=False)

    xs = inputs()
    torch.testing.assert_close(gradients(f, xs, "fused"), gradients(f, xs, "reference"))


def test_of_second_derivatives() -> None:
    xs = inputs()

    def second(impl: str) -> tuple[Tensor, ...]:
        out = attention(*xs, impl=impl).mul_(2)
        first = torch.autograd.grad(out.sin().sum(), xs, create_graph=True)
        return torch.autograd.grad(sum(x.sin().sum() for x in first), xs)

    torch.testing.assert_close(second("fused"), second("reference"))


@pytest.mark.parametrize("layer", [Attention(), MultiHeadAttention(4, 2, project_output=False)])
def test_of_a_layer_s_output(layer: Any) -> None:
    x = torch.randn(2, 5, 4, requires_grad=True)

    def f(xs: list[Tensor], in_place: bool) -> Tensor:
        out = layer(x, x, x)
        return out.add_(x) if in_place else out + x

    torch.testing.assert_close(gradients(f, [x], True), gradients(f, [x], False))
