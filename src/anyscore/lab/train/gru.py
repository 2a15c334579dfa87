"""`torch.nn.GRU`, quick at small widths on the CPU.

    r = σ(W_ir x + b_ir + W_hr h + b_hr)
    z = σ(W_iz x + b_iz + W_hz h + b_hz)
    n = tanh(W_in x + b_in + r (W_hn h + b_hn))
    h ← (1 − z) n + z h

PyTorch's own GRU spends most of its time there on some twenty small operations per step and
direction, and as many in the backward. Here both directions run together, with six operations
forward and three backward. On GPUs PyTorch's kernel is used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def source_encoder(hidden: int) -> tuple[nn.GRU, nn.Linear]:
    """Make a GRU each way over embeddings of the width `hidden`, and the map of states to keys."""
    half = (hidden + 1) // 2
    gru = nn.GRU(hidden, half, batch_first=True, bidirectional=True)
    return gru, nn.Linear(2 * half, hidden)


def first_states(gru: nn.GRU, states: Tensor) -> Tensor:
    """Return the backward GRU's state at the first token, from the states of both directions."""
    return states[:, 0, gru.hidden_size :]


def read_forwards(gru: nn.GRU, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Run one direction over x (B, T, input).

    Args:
        state: before the first step (1, B, hidden); None is zeros.

    Returns:
        The states (B, T, hidden), and the last one (1, B, hidden).
    """
    if x.device.type != "cpu":
        states, state = gru(x, state)
        return states, state
    states = _run(gru, x.transpose(0, 1)[None], state)
    return states[0].transpose(0, 1), states[:, -1]


def read_both_ways(gru: nn.GRU, x: Tensor, lengths: Tensor) -> Tensor:
    """Run both directions over sequences x (B, T, input), padded on the right.

    Args:
        lengths: (B,) on the CPU, each at least 1: the second direction begins at each sequence's
            own end and never sees padding.

    Returns:
        The states (B, T, 2 · hidden); states at the padding have no meaning.
    """
    if x.device.type != "cpu":
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(gru(packed)[0], batch_first=True, total_length=x.shape[1])
        return states
    order = _turned(lengths, x.shape[1])
    steps = x.transpose(0, 1)
    forwards, backwards = _run(gru, torch.stack((steps, _permute(steps, order))), None)
    return torch.cat((forwards, _permute(backwards, order)), dim=-1).transpose(0, 1)


def _run(gru: nn.GRU, x: Tensor, state: Tensor | None) -> Tensor:
    """Return the states (D, T, B, hidden) of D directions, each over its own x (D, T, B, input)."""
    directions, steps, batch, _ = x.shape
    w_i, w_h, b_i, b_h = (
        torch.stack([getattr(gru, name + end) for end in ("", "_reverse")[:directions]])
        for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    )
    inputs = torch.baddbmm(b_i[:, None], x.flatten(1, 2), w_i.mT)
    inputs = inputs.view(directions, steps, batch, -1)
    if state is None:
        state = x.new_zeros(directions, batch, gru.hidden_size)
    states: Tensor = _Recurrence.apply(inputs, state, w_h, b_h[:, None])  # type: ignore[no-untyped-call]
    return states


class _Recurrence(torch.autograd.Function):
    """The recurrence of a GRU: inputs and a first state → states (D, T, B, H).

    Inputs are W_i x + b_i (D, T, B, 3H); state (D, B, H); w_h (D, 3H, H); b_h (D, 1, 3H). The
    backward needs three operations per step. The gradient of the gates is the gradient of the new
    state times a factor independent of it, computed for all steps at once.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, state: Tensor, w_h: Tensor, b_h: Tensor) -> Tensor:
        directions, steps, batch, _ = inputs.shape
        width = state.shape[-1]
        states = inputs.new_empty(directions, steps + 1, batch, width)
        states[:, 0] = state
        hidden = torch.empty_like(inputs)  # W_h h + b_h
        gates = inputs.new_empty(directions, steps, batch, 2 * width)  # r, z
        new = inputs.new_empty(directions, steps, batch, width)  # n
        transposed = w_h.mT
        h = state
        for inputs_rz, inputs_n, hidden_t, hidden_rz, hidden_n, gates_t, r, z, n, following in zip(
            inputs[..., : 2 * width].unbind(1),
            inputs[..., 2 * width :].unbind(1),
            hidden.unbind(1),
            hidden[..., : 2 * width].unbind(1),
            hidden[..., 2 * width :].unbind(1),
            gates.unbind(1),
            gates[..., :width].unbind(1),
            gates[..., width:].unbind(1),
            new.unbind(1),
            states[:, 1:].unbind(1),
            strict=True,
        ):
            torch.baddbmm(b_h, h, transposed, out=hidden_t)
            torch.add(inputs_rz, hidden_rz, out=gates_t).sigmoid_()
            torch.addcmul(inputs_n, r, hidden_n, out=n).tanh_()
            h = torch.lerp(n, h, z, out=following)
        ctx.save_for_backward(states, hidden[..., 2 * width :], gates, new, w_h)
        return states[:, 1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_states: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        states, hidden_n, gates, n, w_h = ctx.saved_tensors
        width = n.shape[-1]
        r, z = gates[..., :width], gates[..., width:]
        before = states[:, :-1]
        # d gate = factor · d state, of r, of z, and of W_h h's part of n; of n itself.
        factors = n.new_empty(*n.shape[:-1], 3, width)
        by_r, by_z, by_hidden = factors.unbind(-2)
        one_minus_z = 1 - z
        by_n = torch.addcmul(one_minus_z, one_minus_z * n, n, value=-1)  # (1 − z) (1 − n²)
        torch.mul(by_n, r, out=by_hidden)
        torch.mul(by_hidden, hidden_n, out=by_r).addcmul_(by_r, r, value=-1)  # … r (1 − r)
        torch.sub(before, n, out=by_z).mul_(z).mul_(one_minus_z)
        d_hidden = torch.empty_like(factors)  # (D, T, B, 3, H)
        d = torch.empty_like(states)
        d[:, 0] = 0
        d[:, 1:] = d_states
        flat = d_hidden.flatten(-2)
        for factor, z_t, d_t, d_before, d_hidden_t, flat_t in reversed(
            list(
                zip(
                    factors.unbind(1),
                    z.unbind(1),
                    d[:, 1:, :, None].unbind(1),
                    d[:, :-1].unbind(1),
                    d_hidden.unbind(1),
                    flat.unbind(1),
                    strict=True,
                )
            )
        ):
            torch.mul(d_t, factor, out=d_hidden_t)
            d_before.addcmul_(d_t[:, :, 0], z_t).baddbmm_(flat_t, w_h)
        d_inputs = torch.cat((flat[..., : 2 * width], d[:, 1:] * by_n), dim=-1)
        flat_steps = flat.flatten(1, 2)
        d_w = flat_steps.mT @ before.flatten(1, 2)
        return d_inputs, d[:, 0], d_w, flat_steps.sum(1, keepdim=True)


class _Permuted(torch.autograd.Function):
    """Permutes the tokens of x (T, B, d) by an order that is its own inverse."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor) -> Tensor:
        ctx.save_for_backward(order)
        return x.flatten(0, 1).index_select(0, order).view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None]:
        (order,) = ctx.saved_tensors
        return d.flatten(0, 1).index_select(0, order).view_as(d), None


def _permute(x: Tensor, order: Tensor) -> Tensor:
    permuted: Tensor = _Permuted.apply(x, order)  # type: ignore[no-untyped-call]
    return permuted


def _turned(lengths: Tensor, steps: int) -> Tensor:
    """Return where each token of (T, B) comes from when sequences are reversed, padding not."""
    t, batch = torch.arange(steps)[:, None], len(lengths)
    source = torch.where(t < lengths, lengths - 1 - t, t)
    return (source * batch + torch.arange(batch)).flatten()
