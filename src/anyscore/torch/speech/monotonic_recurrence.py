"""Monotonic alignments: probabilities that a head, which moves to the right, stops at a key."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from anyscore.backends.torch.modes import check_reverse_mode
from anyscore.ops.checks import brief


def monotonic_alignment(p: Tensor, previous: Tensor | None = None) -> Tensor:
    """Compute the probabilities of a head's stops, if it inspects keys from its last stop on.

        x_ij = (1 − p_i,j−1) x_i,j−1 + α_i−1,j        α_ij = p_ij x_ij

    x_ij is the probability that the head inspects key j for query i; p_ij is the probability that
    it then stops. The recurrence neither divides nor subtracts terms, so it is exact for any p and
    any number of keys. The published cumulative products divide by vanishing products, and clip.
    With p of 0 and 1 alignments are hard. A head may pass the last key: rows sum to 1 or less.

    Diagonals of queries and keys are computed one after another. Few queries are computed one by
    one with a parallel scan. The backward is the adjoint recurrence and keeps two matrices T_q ×
    T_k. Derivatives are of first order.

    Args:
        p: (..., T_q, T_k), in [0, 1]; 0 for masked keys.
        previous: (..., T_k), the alignment before the first query. By default None, 1 at the first
            key.

    Returns:
        α (..., T_q, T_k).

    Raises:
        TypeError, ValueError: A tensor has another shape or is not of floating point.

    Source: Raffel et al. 2017, Online and Linear-Time Attention by Enforcing Monotonic Alignments,
    eq. 8 to 10.

    >>> import torch
    >>> from anyscore.torch import monotonic_alignment
    >>> monotonic_alignment(torch.full((2, 3), 0.5))
    tensor([[0.5000, 0.2500, 0.1250],
            [0.2500, 0.2500, 0.1875]])
    """
    check_matrix(p=p)
    *lead, queries, keys = p.shape
    if previous is None:
        previous = first_key(p)
    check_shape((*lead, keys), previous=previous)
    if not p.numel():
        return p * 1
    check_reverse_mode("monotonic_alignment")
    few = 3 * queries * math.log2(keys + 1) < 2 * (queries + keys)
    solve = _Rows if few else _Diagonals
    flat, before = p.reshape(-1, queries, keys), previous.reshape(-1, keys)
    found: Tensor = solve.apply(flat, before.to(p.dtype))  # type: ignore[no-untyped-call]
    return found.view(p.shape)


def check_matrix(**tensors: Any) -> None:
    """Check that tensors are of floating point and (..., T_q, T_k).

    Raises:
        TypeError, ValueError: another dtype, or fewer than two axes.
    """
    for name, x in tensors.items():
        _check_floats(name, x)
        if x.dim() < 2:
            raise ValueError(f"{name} has shape {tuple(x.shape)}, expected (..., T_q, T_k).")


def _check_floats(name: str, x: Any) -> None:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        got = x.dtype if isinstance(x, Tensor) else brief(x)
        raise TypeError(f"{name} must be a tensor of floating point, got {got}.")


def check_shape(shape: tuple[int, ...], **tensors: Any) -> None:
    """Check that tensors are of floating point and have a shape.

    Raises:
        TypeError, ValueError: another dtype or shape.
    """
    for name, x in tensors.items():
        _check_floats(name, x)
        if tuple(x.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}, expected {shape}.")


def first_key(of: Tensor) -> Tensor:
    """Return the alignment (..., T_k) before the first query of (..., T_q, T_k): 1 at key 0."""
    alignment = of.new_zeros(*of.shape[:-2], of.shape[-1])
    alignment[..., :1] = 1
    return alignment


class _Diagonals(torch.autograd.Function):
    """All queries together, by diagonals: key d − i of query i, for d = 0, 1, …"""

    @staticmethod
    def forward(ctx: Any, p: Tensor, previous: Tensor) -> Tensor:
        p = _skew(p)
        steps, batch, queries = p.shape
        keep = 1 - p
        x = torch.empty_like(p)
        # before[d] is α of diagonal d − 1, after the entry of the query before the first.
        before = p.new_zeros(steps + 1, batch, queries + 1)
        before[: previous.shape[1], :, 0] = previous.T
        for d in range(steps):
            if d == 0:
                x[d] = before[d, :, :-1]
            else:
                x[d] = torch.addcmul(before[d, :, :-1], keep[d - 1], x[d - 1])
            before[d + 1, :, 1:] = p[d] * x[d]
        ctx.save_for_backward(p, x)
        ctx.keys = previous.shape[1]
        return _unskew(before[1:, :, 1:], ctx.keys)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor]:
        p, x = ctx.saved_tensors
        steps, batch, queries = p.shape
        of_alpha = _skew(slope)
        of_x = p.new_zeros(steps + 1, batch, queries + 1)  # the last query has none after it
        for d in reversed(range(steps)):
            of_alpha[d] += of_x[d + 1, :, 1:]
            of_x[d, :, :-1] = torch.lerp(of_x[d + 1, :, :-1], of_alpha[d], p[d])
        of_p = x * (of_alpha - of_x[1:, :, :-1])
        return _unskew(of_p, ctx.keys), of_x[: ctx.keys, :, 0].T


class _Rows(torch.autograd.Function):
    """One query after the other, each by a scan over keys."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, previous: Tensor) -> Tensor:
        rows = []
        for i in range(p.shape[1]):
            keep = torch.nn.functional.pad(1 - p[:, i, :-1], (1, 0))
            rows.append(_scan(keep, previous))
            previous = p[:, i] * rows[i]
        x = torch.stack(rows, 1)
        ctx.save_for_backward(p, x)
        return p * x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor]:
        p, x = ctx.saved_tensors
        of_p, of_x = torch.empty_like(p), torch.zeros_like(p[:, 0])
        for i in reversed(range(p.shape[1])):
            of_alpha = slope[:, i] + of_x
            of_x = _scan((1 - p[:, i]).flip(-1), (p[:, i] * of_alpha).flip(-1)).flip(-1)
            after = torch.nn.functional.pad(of_x[:, 1:], (0, 1))
            of_p[:, i] = x[:, i] * (of_alpha - after)
        return of_p, of_x


def _scan(a: Tensor, b: Tensor) -> Tensor:
    """Solve x_j = a_j x_j−1 + b_j over the last axis, in log₂ of its length steps."""
    length, reach = b.shape[-1], 1
    while reach < length:
        head, tail = b[..., :reach], b[..., reach:]
        b = torch.cat([head, torch.addcmul(tail, a[..., reach:], b[..., :-reach])], -1)
        a = torch.cat([a[..., :reach], a[..., reach:] * a[..., :-reach]], -1)
        reach *= 2
    return b


def _skew(x: Tensor) -> Tensor:
    """Lay x (B, T_q, T_k) out by diagonals (T_q + T_k − 1, B, T_q), padded with 0."""
    batch, queries, keys = x.shape
    flat = torch.nn.functional.pad(x, (0, queries)).reshape(batch, -1)
    skewed = flat[:, : flat.shape[1] - queries].view(batch, queries, queries + keys - 1)
    return skewed.permute(2, 0, 1).contiguous()


def _unskew(x: Tensor, keys: int) -> Tensor:
    """Undo `_skew`."""
    _, batch, queries = x.shape
    flat = x.permute(1, 2, 0).reshape(batch, -1)
    padded = torch.nn.functional.pad(flat, (0, queries))
    return padded.view(batch, queries, queries + keys)[..., :keys].contiguous()
