"""Sparsemax and entmax-1.5 of PyTorch tensors by the C++ core, differentiable."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from anyscore.backends.torch.modes import apply, differentiable, is_forward_mode, must_dispatch
from anyscore.backends.torch.operators import array
from anyscore.kernels import cpu
from anyscore.modifiers.normalizers import sparse
from anyscore.ops import load

_xp = load("torch")


def sparse_weights(scores: Tensor, power: int) -> Tensor:
    """Return `normalizers.sparse` of scores; by the reference if a mode must see operations."""
    if not scores.is_cpu or cpu.problem() or is_forward_mode() or must_dispatch(scores):
        return cast(Tensor, sparse(_xp, scores, power))
    if differentiable([scores]):
        return cast(Tensor, apply(_Sparse, scores, power))
    return _weights(scores, power)


class _Sparse(torch.autograd.Function):
    """Sparse weights by the core, with its derivative; the reference has higher derivatives."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, power: int) -> Tensor:
        made = _weights(scores, power)
        ctx.save_for_backward(scores, made)
        ctx.power = power
        return made

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Tensor, None]:
        (scores, made), (d,) = ctx.saved_tensors, upstream
        if not differentiable([scores, d]):
            slopes = torch.empty_like(made)
            given, threads = array(d.contiguous()), torch.get_num_threads()
            cpu.sparse_backward(ctx.power, array(made), given, array(slopes), threads)
            return slopes, None
        with torch.enable_grad():
            defined = sparse(_xp, scores, ctx.power)
            (slopes,) = torch.autograd.grad(defined, scores, d, create_graph=True)
        return slopes, None


def _weights(scores: Tensor, power: int) -> Tensor:
    scores = scores.contiguous()
    made = torch.empty_like(scores)
    cpu.sparse(power, array(scores), array(made), torch.get_num_threads())
    return made
