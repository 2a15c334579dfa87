"""Padding does not change results of layers; layers stop NaN in padding where possible."""

from __future__ import annotations

import math

import pytest
import torch

from anyscore.torch import Attention, MultiHeadAttention
from helpers.by_pair import by_pair
from helpers.table_scores import TABLE

pytestmark = pytest.mark.sample

WIDTH, HEADS, B, T_Q, T_K = 12, 6, 2, 3, 7
BY_NAME = by_pair("name", TABLE)


@BY_NAME
def test_padding_changes_nothing(name: str) -> None:
    """Outputs and gradients equal those of the sequence without padding, for any padding."""
    layer = MultiHeadAttention(WIDTH, HEADS, score=name).double()
    q, k = torch.randn(1, T_Q, WIDTH).double(), torch.randn(1, 4, WIDTH).double()
    expected = layer(q, k)
    expected_grads = torch.autograd.grad(expected.square().sum(), list(layer.parameters()))
    for padding in (0.0, 1e6):
        padded = torch.cat([k, torch.full((1, 3, WIDTH), padding).double()], dim=1)
        output = layer(q, padded, valid_lens=torch.tensor([4]))
        grads = torch.autograd.grad(output.square().sum(), list(layer.parameters()))
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(grads, expected_grads)


@BY_NAME
def test_nan_in_padding_reaches_no_gradient_of_the_projections_of_heads(name: str) -> None:
    layer = MultiHeadAttention(WIDTH, HEADS, score=name)
    q, k = torch.randn(B, T_Q, WIDTH), torch.randn(B, T_K, WIDTH)
    lengths, expected = torch.tensor([4, 0]), []
    beyond = torch.arange(T_K)[:, None] >= lengths[:, None, None]
    for content in (0.0, math.nan, math.inf):
        layer.zero_grad()
        output = layer(q, torch.where(beyond, content, k), valid_lens=lengths)
        output.square().sum().backward()
        seen = [output, *(p.grad for p in layer.parameters())]
        expected = expected or seen
        torch.testing.assert_close(seen, [x.clone() for x in expected])


@BY_NAME
def test_nan_in_padding_reaches_no_gradient_of_attention_with_its_own_projections(
    name: str,
) -> None:
    hidden = 3 if TABLE[name].hidden else None
    layer = Attention(name, hidden=hidden, d_q=5, d_k=5)
    q, k, v = torch.randn(B, T_Q, 5), torch.randn(B, T_K, 5), torch.randn(B, T_K, 11)
    lengths, expected = torch.tensor([4, 2]), []
    beyond = torch.arange(T_K)[:, None] >= lengths[:, None, None]
    for content in (0.0, math.nan, math.inf):
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        keys, values = (torch.where(beyond, content, x) for x in inputs[1:])
        output = layer(inputs[0], keys, values, lengths)
        leaves = [*inputs, *layer.parameters()]
        seen = [output, *torch.autograd.grad(output.square().sum(), leaves)]
        expected = expected or seen
        torch.testing.assert_close(seen, expected)


def test_padding_is_zeroed_before_projections_only_where_it_may_reach_other_rows() -> None:
    """Gradients and half-precision products take zeroed padding; plain inference copies nothing."""
    layer, projected = MultiHeadAttention(WIDTH, HEADS), []
    layer.W_k.register_forward_pre_hook(lambda module, inputs: projected.append(inputs[0]))
    q, k = torch.randn(B, T_Q, WIDTH), torch.randn(B, T_K, WIDTH)
    k[0, 4:] = math.nan
    lengths = torch.tensor([4, T_K])
    expected = layer(q, k, valid_lens=lengths)
    assert projected[-1].isfinite().all()
    with torch.no_grad():
        output = layer(q, k, valid_lens=lengths)
        assert projected[-1].data_ptr() == k.data_ptr()
        with torch.autocast("cpu", torch.bfloat16):
            layer(q, k, valid_lens=lengths)
        assert projected[-1].isfinite().all()
        layer.bfloat16()(q.bfloat16(), k.bfloat16(), valid_lens=lengths)
        assert projected[-1].isfinite().all()
    torch.testing.assert_close(output, expected.detach())
    layer.float().requires_grad_(False)
    layer(q, k.requires_grad_(), valid_lens=lengths)
    assert projected[-1].isfinite().all()
