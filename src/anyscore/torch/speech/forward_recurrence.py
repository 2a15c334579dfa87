"""Forward alignments: weights move by one key at most from query to query."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from anyscore.backends.torch.modes import check_reverse_mode
from anyscore.ops.checks import check_numbers
from anyscore.torch.speech.monotonic_recurrence import check_matrix, check_shape, first_key


def forward_alignment(
    energies: Tensor, transition: Tensor | float = 0.5, previous: Tensor | None = None
) -> Tensor:
    """Compute the weights of forward attention.

        m_ij = (1 − u_i) α_i−1,j + u_i α_i−1,j−1        α_i = softmax_j(e_ij + log m_ij)

    The formula is the published m_ij · softmax_j e_ij, normalised to sum to 1 for each query. The
    recurrence goes from log α_i−1 to log α_i, so that large energies of unreachable keys cause no
    underflow. With u = ½ there is no transition agent. The backward is the adjoint recurrence in
    logarithms; it keeps the logarithms alone. Derivatives are of first order.

    Args:
        energies: e (..., T_q, T_k); −∞ for masked keys.
        transition: u, the probability to move by one key before each query; (..., T_q) or a
            number, in [0, 1]. By default ½. The paper's agent computes u_i after query i − 1.
        previous: (..., T_k), the weights before the first query, ≥ 0. The gradient of a key that
            no weight reaches is 0. By default None, 1 at the first key.

    Returns:
        α (..., T_q, T_k). A query without reachable allowed keys has weights 0, and so have all
        later queries.

    Raises:
        TypeError, ValueError: A tensor has another shape or is not of floating point, or a number
            is outside [0, 1].

    Source: Zhang et al. 2018, Forward Attention in Sequence-to-Sequence Acoustic Modeling, eq. 7
    to 9 and algorithms 1 and 2.

    >>> import torch
    >>> from anyscore.torch import forward_alignment
    >>> forward_alignment(torch.zeros(2, 3))
    tensor([[0.5000, 0.5000, 0.0000],
            [0.2500, 0.5000, 0.2500]])
    """
    check_matrix(energies=energies)
    *lead, queries, keys = energies.shape
    if previous is None:
        previous = first_key(energies)
    check_shape((*lead, keys), previous=previous)
    if isinstance(transition, Tensor) and transition.dim():
        check_shape((*lead, queries), transition=transition)
    elif not isinstance(transition, Tensor):
        check_numbers(0, 1, transition=transition)
    weights, _ = forward_steps(energies, transition, previous, logarithms=False)
    return weights.to(energies.dtype)


def forward_steps(
    energies: Tensor, transition: Tensor | float, previous: Tensor, *, logarithms: bool
) -> tuple[Tensor, Tensor]:
    """Return (weights of `forward_alignment`, logarithms (..., T_k) of their last row).

    logarithms: True if `previous` holds logarithms, as from an earlier call. Both results are
    float32 or float64.
    """
    check_reverse_mode("forward attention")
    *lead, queries, keys = energies.shape
    dtype = torch.promote_types(energies.dtype, torch.float32)
    batch = math.prod(lead)
    moves = torch.as_tensor(transition, dtype=dtype, device=energies.device)
    weights, last = _Forward.apply(  # type: ignore[no-untyped-call]
        energies.reshape(batch, queries, keys).to(dtype),
        moves.expand(*lead, queries).reshape(batch, queries),
        previous.reshape(batch, keys).to(dtype),
        logarithms,
    )
    return weights.view(energies.shape), last.view(*lead, keys)


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, energies: Tensor, moves: Tensor, previous: Tensor, logarithms: bool
    ) -> tuple[Tensor, Tensor]:
        last = previous if logarithms else previous.log()
        rows, least, (stay, move) = [last], torch.finfo(last.dtype).min, _logs(moves)
        for i in range(energies.shape[1] if energies.shape[2] else 0):
            row = energies[:, i]
            reach = torch.logaddexp(*_ways(last, stay[:, i], move[:, i]))
            # Subtract the largest reachable energy: large energies would round log m away.
            top = row.masked_fill(reach == -math.inf, -math.inf).amax(-1, keepdim=True)
            # Without reachable keys all stay −∞.
            logits = (row - top.clamp(min=least)) + reach
            last = logits - logits.logsumexp(-1, keepdim=True).clamp(min=least)
            rows.append(last)
        found = torch.stack(rows, 1)
        ctx.save_for_backward(found, moves)
        ctx.logarithms = logarithms
        return found[:, 1:].exp(), last if len(rows) > 1 else last.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor, of_last: Tensor) -> Any:
        found, moves = ctx.saved_tensors
        weights, before = found[:, 1:].exp(), found[:, :-1]
        stay, move = _ways(before, *_logs(moves))
        # Shares of staying and moving in m. NaN becomes 0: an unreached key has no gradient.
        of_stay, of_move = (
            (x - y).sigmoid().nan_to_num(0.0) for x, y in ((stay, move), (move, stay))
        )
        of_weights, of_logits = weights * slope, torch.empty_like(weights)
        for i in reversed(range(moves.shape[1])):
            total = of_weights[:, i] + of_last  # the gradient of log α
            row = torch.addcmul(total, weights[:, i], total.sum(-1, keepdim=True), value=-1)
            of_last = row * of_stay[:, i]
            of_last[:, :-1] += (row * of_move[:, i])[:, 1:]
            of_logits[:, i] = row
        reach, of_moves = torch.logaddexp(stay, move), None
        if ctx.needs_input_grad[1]:
            of_u = _over(of_logits, _shift(before), reach) - _over(of_logits, before, reach)
            of_moves = of_u.sum(-1)
        if ctx.needs_input_grad[2] and not ctx.logarithms and moves.shape[1]:
            u, first, reach = moves[:, :1], of_logits[:, 0], reach[:, 0]
            of_last = _over(first, (1 - u).log(), reach)
            of_last[:, :-1] += _over(first, u.log(), reach)[:, 1:]
        return of_logits, of_moves, of_last, None


def _logs(u: Tensor) -> tuple[Tensor, Tensor]:
    """Return (log(1 − u), log u), each with an axis for keys."""
    return (1 - u).log()[..., None], u.log()[..., None]


def _ways(last: Tensor, stay: Tensor, move: Tensor) -> tuple[Tensor, Tensor]:
    """Return (log((1 − u) α_j), log(u α_j−1)). last: log α. stay, move: of `_logs`."""
    return last + stay, _shift(last) + move


def _shift(last: Tensor) -> Tensor:
    return torch.nn.functional.pad(last[..., :-1], (1, 0), value=-math.inf)


def _over(x: Tensor, above: Tensor, below: Tensor) -> Tensor:
    """Return x · e^(above − below) without overflow of either exponential; 0 for x = 0."""
    return torch.where(x == 0, 0.0, x.sign() * (x.abs().log() + above - below).exp())
