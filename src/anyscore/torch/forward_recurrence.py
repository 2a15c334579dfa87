"""Forward alignments: weights that move by one key at most from query to query."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from anyscore.torch.monotonic_recurrence import check_matrix


def forward_alignment(
    energies: Tensor, transition: Tensor | float = 0.5, previous: Tensor | None = None
) -> Tensor:
    """Compute the weights of forward attention.

        m_ij = (1 − u_i) α_i−1,j + u_i α_i−1,j−1        α_i = softmax_j(e_ij + log m_ij)

    which is the published (m_ij · softmax_j e_ij), made to sum to 1 for each query, but does not
    underflow where the energies favour keys that cannot be reached. With u = ½ it is forward
    attention without a transition agent. The backward is the adjoint recurrence and keeps the
    weights alone.

    Args:
        energies: e (..., T_q, T_k); −∞ for keys that may not be attended.
        transition: u, the probability to move on before each query, (..., T_q) or a number, in
            [0, 1]. The u_i that is used for query i is what the paper's agent gave one before.
        previous: (..., T_k), the weights before the first query; by default all on the first key.

    Returns (..., T_q, T_k), 0 for a query none of whose reachable keys may be attended, and from
    there on. Derivatives are of first order.

    Raises TypeError, ValueError: no tensors of these shapes and of floating point.

    Source: Zhang et al. 2018, Forward Attention in Sequence-to-Sequence Acoustic Modeling, eq. 7
    to 9 and algorithms 1 and 2.

    >>> import torch
    >>> forward_alignment(torch.zeros(2, 3))
    tensor([[0.5000, 0.5000, 0.0000],
            [0.2500, 0.5000, 0.2500]])
    """
    check_matrix(energies=energies)
    *lead, queries, keys = energies.shape
    if previous is None:
        previous = energies.new_zeros(*lead, keys)
        previous[..., :1] = 1
    moves = torch.as_tensor(transition, dtype=energies.dtype, device=energies.device)
    for name, x, shape in (("previous", previous, (*lead, keys)), ("u", moves, (*lead, queries))):
        if tuple(x.shape) != shape and (name == "previous" or x.dim()):
            name = name if name == "previous" else "transition"
            raise ValueError(f"{name} has shape {tuple(x.shape)}, expected {shape}.")
    moves = moves.expand(*lead, queries).reshape(-1, queries)
    if not energies.numel():
        return energies * 1
    found: Tensor = _Forward.apply(  # type: ignore[no-untyped-call]
        energies.reshape(-1, queries, keys),
        moves,
        previous.reshape(-1, keys).to(energies.dtype),
    )
    return found.view(energies.shape)


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, energies: Tensor, moves: Tensor, previous: Tensor) -> Tensor:
        weights = torch.empty_like(energies)
        last = previous
        for i in range(energies.shape[1]):
            logits = energies[:, i] + _reach(last, moves[:, i]).log()
            nowhere = (logits == -math.inf).all(-1, keepdim=True)
            last = torch.softmax(logits.masked_fill(nowhere, 0.0), -1).masked_fill(nowhere, 0.0)
            weights[:, i] = last
        ctx.save_for_backward(weights, moves, previous)
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weights, moves, previous = ctx.saved_tensors
        of_energies, of_moves = torch.empty_like(weights), torch.empty_like(moves)
        of_last = torch.zeros_like(previous)
        for i in reversed(range(weights.shape[1])):
            last, now, u = weights[:, i - 1] if i else previous, weights[:, i], moves[:, i]
            total = slope[:, i] + of_last
            centred = total - (now * total).sum(-1, keepdim=True)
            of_energies[:, i] = now * centred
            reach = _reach(last, u)
            # where a key could not be reached, nothing that is learned could have changed that
            of_reach = torch.where(reach > 0, now / reach, 0.0) * centred
            of_last = of_reach * (1 - u[:, None])
            of_last[:, :-1] += of_reach[:, 1:] * u[:, None]
            of_moves[:, i] = (of_reach * (_shift(last) - last)).sum(-1)
        return of_energies, of_moves, of_last


def _reach(last: Tensor, u: Tensor) -> Tensor:
    """(1 − u) α_j + u α_j−1."""
    return torch.lerp(last, _shift(last), u[:, None])


def _shift(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x[:, :-1], (1, 0))
