"""Soft attention in chunks that end where a monotonic head stopped."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from anyscore.backends.torch_modes import check_reverse_mode
from anyscore.checks import check_size
from anyscore.torch.monotonic_recurrence import check_matrix


def chunkwise(alignment: Tensor, energies: Tensor, width: int) -> Tensor:
    """Compute the expected weights of a softmax over the `width` keys that end at each stop.

        β_ij = Σ_k α_ik e^u_ij / Σ_l e^u_il        j ≤ k < j + width,   k − width < l ≤ k

    Exponents are u_ij − log Σ_l e^u_il ≤ 0, so that it is right for energies of any size. The
    backward computes them again and keeps two matrices T_q × T_k.

    Args:
        alignment: α (..., T_q, T_k), as of `monotonic_alignment`; hard or soft.
        energies: u, of the same shape; −∞ for keys that may not be attended.
        width: the width w of the chunk.

    Returns (..., T_q, T_k). What α gives to chunks without keys is lost. Derivatives are of first
    order.

    Raises TypeError, ValueError: no tensors of one shape and of floating point, or a width that is
    no integer ≥ 1.

    Source: Chiu & Raffel 2018, Monotonic Chunkwise Attention, eq. 11 to 13.

    >>> import torch
    >>> chunkwise(torch.tensor([[0.0, 0.0, 1.0]]), torch.zeros(1, 3), 2)
    tensor([[0.0000, 0.5000, 0.5000]])
    """
    check_matrix(alignment=alignment, energies=energies)
    check_size(width=width)
    if alignment.shape != energies.shape:
        raise ValueError(
            f"alignment has shape {tuple(alignment.shape)}, but energies {tuple(energies.shape)}: "
            "both are (..., T_q, T_k)."
        )
    width = min(width, max(energies.shape[-1], 1))
    check_reverse_mode("chunkwise")
    found: Tensor = _Chunkwise.apply(alignment, energies, width)  # type: ignore[no-untyped-call]
    return found


class _Chunkwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, alignment: Tensor, energies: Tensor, width: int) -> Tensor:
        ctx.save_for_backward(alignment, energies)
        ctx.width = width
        totals = _log_sums(energies, width)
        found = torch.zeros_like(energies)
        for ahead in range(width):
            to, of = _pair(found, ahead), alignment[..., ahead:]
            to += of * _share(energies, totals, ahead)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, None]:
        alignment, energies = ctx.saved_tensors
        totals = _log_sums(energies, ctx.width)
        of_alignment, of_energies = torch.zeros_like(alignment), torch.zeros_like(energies)
        for ahead in range(ctx.width):
            of_alignment[..., ahead:] += _pair(slope, ahead) * _share(energies, totals, ahead)
        for ahead in range(ctx.width):
            difference = _pair(slope, ahead) - of_alignment[..., ahead:]
            weight = alignment[..., ahead:] * _share(energies, totals, ahead)
            _pair(of_energies, ahead).add_(weight * difference)
        return of_alignment, of_energies, None


def _pair(x: Tensor, ahead: int) -> Tensor:
    """The entries of x that have one so far ahead."""
    return x[..., : x.shape[-1] - ahead]


def _share(energies: Tensor, totals: Tensor, ahead: int) -> Tensor:
    """The weight of key j in the chunk that ends at j + ahead; totals: `_log_sums`."""
    return torch.exp(_pair(energies, ahead) - totals[..., ahead:])


def _log_sums(energies: Tensor, width: int) -> Tensor:
    """Log-sum-exp of the chunk that ends at each key; 0 if all of it is −∞."""
    top = energies.clone()
    for behind in range(1, width):
        top[..., behind:] = torch.maximum(top[..., behind:], _pair(energies, behind))
    top = torch.where(top == -math.inf, 0.0, top)
    total = torch.zeros_like(energies)
    for behind in range(width):
        total[..., behind:] += torch.exp(_pair(energies, behind) - top[..., behind:])
    return torch.where(total == 0, 0.0, top + torch.log(total))
