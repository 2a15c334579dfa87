"""Soft attention in chunks; each chunk ends at the key where a monotonic head stops."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from anyscore.backends.torch.modes import check_reverse_mode
from anyscore.ops.checks import check_size
from anyscore.torch.speech.monotonic_recurrence import check_matrix


def chunkwise(alignment: Tensor, energies: Tensor, width: int) -> Tensor:
    """Compute the expected weights of a softmax over the `width` keys up to each stop.

        β_ij = Σ_k α_ik e^u_ij / Σ_l e^u_il        j ≤ k < j + width,   k − width < l ≤ k

    Exponents are u_ij − max_l u_il ≤ 0, so that large energies do not overflow. The backward
    computes the exponents again and keeps two matrices T_q × T_k. Derivatives are of first order.

    Args:
        alignment: α (..., T_q, T_k), the result of `monotonic_alignment`, hard or soft.
        energies: u, of the same shape; −∞ for masked keys.
        width: the width w of the chunk, an integer ≥ 1.

    Returns:
        β (..., T_q, T_k). The weight α of a chunk without allowed keys is dropped.

    Raises:
        TypeError, ValueError: The tensors have unequal shapes or are not of floating point, or
            width is no integer ≥ 1.

    Source: Chiu & Raffel 2018, Monotonic Chunkwise Attention, eq. 11 to 13.

    >>> import torch
    >>> from anyscore.torch import chunkwise
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
        tops, inverse = _sums(energies, width)
        found, alignment = torch.zeros_like(energies), alignment * inverse
        for ahead in range(width):
            to, of = _pair(found, ahead), alignment[..., ahead:]
            to += of * _power(energies, tops, ahead)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, None]:
        alignment, energies = ctx.saved_tensors
        tops, inverse = _sums(energies, ctx.width)
        of_alignment, of_energies = torch.zeros_like(alignment), torch.zeros_like(energies)
        for ahead in range(ctx.width):
            of_alignment[..., ahead:] += _pair(slope, ahead) * _power(energies, tops, ahead)
        of_alignment, alignment = of_alignment * inverse, alignment * inverse
        for ahead in range(ctx.width):
            difference = _pair(slope, ahead) - of_alignment[..., ahead:]
            weight = alignment[..., ahead:] * _power(energies, tops, ahead)
            _pair(of_energies, ahead).add_(weight * difference)
        return of_alignment, of_energies, None


def _pair(x: Tensor, ahead: int) -> Tensor:
    """Return the entries j of the last axis of x for which j + ahead exists."""
    return x[..., : x.shape[-1] - ahead]


def _power(energies: Tensor, tops: Tensor, ahead: int) -> Tensor:
    """Return e^(u_ij − top) of key j in the chunk that ends at j + ahead. tops: of `_sums`."""
    return torch.exp(_pair(energies, ahead) - tops[..., ahead:])


def _sums(energies: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return (largest energy of the chunk that ends at each key, 1 / Σ e^(u − largest)).

    Both are 0 if all energies of a chunk are −∞.
    """
    tops = energies.clone()
    for behind in range(1, width):
        tops[..., behind:] = torch.maximum(tops[..., behind:], _pair(energies, behind))
    tops = torch.where(tops == -math.inf, 0.0, tops)
    total = torch.zeros_like(energies)
    for behind in range(width):
        total[..., behind:] += _power(energies, tops, behind)
    return tops, torch.where(total == 0, 0.0, 1 / total)
