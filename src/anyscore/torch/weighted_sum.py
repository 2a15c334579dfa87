"""The sum of values by weights, for one step after another over the same values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def weighted_sum(weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Compute Σ_j weights_j value_j, (B, d_v), of weights (B, T_k) and values (B, T_k, d_v).

    Returns it, and the values for the next step: their gradients come back through them and are
    added in place, so that T_q steps make one tensor of that size, and T_q passes over it.
    """
    with torch.autocast(values.device.type, enabled=False):
        output, values = _WeightedSum.apply(weights, values)  # type: ignore[no-untyped-call]
    return output, values


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(weights, values)
        ctx.set_materialize_grads(False)
        return torch.bmm(weights.to(values.dtype)[:, None], values)[:, 0], values.view_as(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor | None, of_values: Tensor | None) -> Any:
        if slope is None:
            return None, of_values
        weights, values = ctx.saved_tensors
        of_weights = torch.bmm(values, slope[:, :, None])[:, :, 0].to(weights.dtype)
        if ctx.needs_input_grad[1]:
            if of_values is None:
                of_values = torch.zeros_like(values)
            of_values.baddbmm_(weights.to(values.dtype)[:, :, None], slope[:, None])
        return of_weights, of_values
