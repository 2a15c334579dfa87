"""PyTorch's counter counts the floating-point operations of anyscore's operators."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from anyscore import Additive, Causal, Gaussian, ScaledDot, attention, plan
from anyscore.call.task import Call, Options
from anyscore.functional.attention import attend, weights
from anyscore.torch import Attention

B, HEADS, KV_HEADS, T_Q, T_K, D, D_V = 2, 6, 3, 5, 7, 11, 13
PAIRS = B * HEADS * T_Q * T_K

SCORES = pytest.mark.parametrize(
    "score",
    [ScaledDot(), Gaussian(2.0), Additive(None, None, torch.ones(D))],
    ids=lambda score: type(score).__name__,
)


def inputs(gradients: bool = False, width: int = D_V) -> list[Tensor]:
    shapes = (HEADS, T_Q, D), (KV_HEADS, T_K, D), (KV_HEADS, T_K, width)
    return [torch.randn(B, *shape, requires_grad=gradients) for shape in shapes]


@SCORES
def test_forward(score: ScaledDot) -> None:
    """Each feature of a score or a value counts two operations, in grouped heads too."""
    xs = inputs()
    assert plan(*xs, score=score).route == "cpu"
    for mask in (None, Causal("end")):  # masked pairs count too, as everywhere in PyTorch
        with FlopCounterMode(display=False) as counter:
            attention(*xs, score=score, mask=mask)
        assert counter.get_total_flops() == PAIRS * (2 * D + 2 * D_V)


@SCORES
@pytest.mark.parametrize(("width", "of_scores"), [(D_V, 4), (T_K - 1, 6)], ids=["kept", "again"])
def test_backward(score: ScaledDot, width: int, of_scores: int) -> None:
    """A backward without kept scores computes the scores again."""
    output = attention(*inputs(True, width), score=score)
    with FlopCounterMode(display=False) as counter:
        output.sum().backward()
    assert counter.get_total_flops() == PAIRS * (of_scores * D + 4 * width)


def test_weights() -> None:
    _, task = attend(Call(*inputs(), ScaledDot()), Options())
    with FlopCounterMode(display=False) as counter:
        weights(task)
    assert counter.get_total_flops() == PAIRS * 2 * D


def test_the_forward_is_that_of_the_definition() -> None:
    """The count is that of the definition, of which PyTorch counts the products."""
    xs = [torch.randn(B, 1, t, d) for t, d in ((T_Q, D), (T_K, D), (T_K, D_V))]
    for score in (ScaledDot(), Additive(None, None, torch.ones(D))):
        counted = []
        for impl in ("fused", "reference"):
            with FlopCounterMode(display=False) as counter:
                attention(*xs, score=score, impl=impl)
            counted.append(counter.get_total_flops())
        assert counted[0] == counted[1]


def test_of_a_layer() -> None:
    """The count of a layer includes its projections."""
    model = torch.nn.Sequential(Attention("additive", hidden=D, d_q=3, d_k=3))
    x = torch.randn(B, T_Q, 3)
    layer = model[0]
    with FlopCounterMode(display=False) as counter:
        layer(x, x, x)
    projections = 2 * (2 * B * T_Q * 3 * D)
    assert counter.get_total_flops() == projections + B * T_Q**2 * (2 * D + 2 * 3)
