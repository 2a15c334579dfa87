"""The weighted sum of values, for many steps over the same values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from anyscore.backends.torch.modes import (
    apply,
    is_forward_mode,
    must_dispatch,
    without_autocast,
)

Spans = list[tuple[int, int]]
"""The keys start ≤ j < stop that each item of the batch may attend."""


def weighted_sum(
    weights: Tensor, values: Tensor, spans: Spans | None = None
) -> tuple[Tensor, Tensor]:
    """Compute Σ_j weights_j value_j (B, d_v) from weights (B, T_k) and values (B, T_k, d_v).

    spans: ranges that hold all weights ≠ 0. If they leave out most keys, other values are not read.

    Return (output, values for the next step alone). Gradients of all steps flow back through the
    returned values and are added in place, so that T_q steps need one such tensor. Under autocast
    the output has the dtype of autocast, as matrix products have.
    """
    device = values.device.type
    dtype = values.dtype
    if torch.is_autocast_enabled(device) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
    with without_autocast(device):
        # Compilers add gradients themselves, and forward mode has no gradients to add.
        if torch.compiler.is_compiling() or is_forward_mode():
            return torch.bmm(weights.to(values.dtype)[:, None], values)[:, 0].to(dtype), values
        if spans is not None and 2 * sum(b - a for a, b in spans if b > a) > weights.numel():
            spans = None
        if torch.is_grad_enabled() or must_dispatch(weights, values):
            output, passed_on = apply(_WeightedSum, weights, values, spans, tensors=slice(2))
        else:
            output, passed_on = _sum(weights, values, spans), values
    return output.to(dtype), passed_on if torch.is_grad_enabled() else values


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, values: Tensor, spans: Spans | None
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(weights, values)
        ctx.spans = spans
        ctx.set_materialize_grads(False)
        return _sum(weights, values, spans), values.view_as(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor | None, of_values: Tensor | None) -> Any:
        if slope is None:
            return None, of_values, None
        weights, values = ctx.saved_tensors
        rows = weights.to(values.dtype)
        if ctx.needs_input_grad[1] and of_values is None:
            of_values = torch.zeros_like(values)
        if ctx.spans is None:
            of_weights = torch.bmm(values, slope[:, :, None])[:, :, 0]
            if of_values is not None:
                of_values.baddbmm_(rows[:, :, None], slope[:, None])
        else:
            of_weights = torch.zeros_like(rows)
            for b, (start, stop) in enumerate(ctx.spans):
                if start < stop:
                    of_weights[b, start:stop] = values[b, start:stop] @ slope[b]
                    if of_values is not None:
                        of_values[b, start:stop].addr_(rows[b, start:stop], slope[b])
        return of_weights.to(weights.dtype), of_values, None


def _sum(weights: Tensor, values: Tensor, spans: Spans | None) -> Tensor:
    rows = weights.to(values.dtype)
    if spans is None:
        return torch.bmm(rows[:, None], values)[:, 0]
    output = values.new_zeros(len(values), values.shape[2])
    for b, (start, stop) in enumerate(spans):
        if start < stop:
            output[b] = rows[b, start:stop] @ values[b, start:stop]
    return output
