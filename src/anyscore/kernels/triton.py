"""The Triton kernels on PyTorch tensors: forward, backward and weights."""

from __future__ import annotations

import torch
from torch import Tensor

from anyscore.kernels import triton_forward
from anyscore.kernels.triton_call import HALF, Call, blocks_of, columns_of
from anyscore.kernels.triton_pairs import Functions


def forward(
    pair: Functions,
    a: Tensor,
    b: Tensor,
    weight: Tensor | None,
    key_bias: Tensor | None,
    value: Tensor,
    start: Tensor | None,
    stop: Tensor | None,
    keep: Tensor | None,
    seed: Tensor | None,
    scale: float,
    groups: int,
    dropout: float,
    period: int,
    lead: tuple[int, ...],
    sums: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The output (*lead, T_q, d_v) and the log-sum-exp (*lead, T_q), in the dtype of sums.

    Arguments are those of `kernels.cpu.forward`; the seed is a tensor.
    """
    rows, d_v = (*lead, a.shape[-2]), value.shape[-1]
    output, lse = a.new_zeros((*rows, d_v), dtype=sums), a.new_full(rows, -torch.inf, dtype=sums)
    if lse.numel() == 0 or b.shape[-2] == 0:
        return output, lse
    call = Call(pair, a, b, weight, key_bias, start, stop, keep, scale, groups, lead, sums)
    finite = call.rows(call.lead.two(value, 2), value.dtype if value.dtype in HALF else sums)
    of_value = {"D_V": d_v, "COLUMNS": columns_of(d_v)}
    grid = (call.lead.problems * call.query_tiles * blocks_of(d_v),)
    triton_forward.forward[grid](
        call.of_queries, call.of_keys, call.weights, call.bias, finite, call.mask,
        call.dropout(dropout, seed, period), output, lse, call.sizes, scale, 0.0, blocks_of(d_v),
        **call.options(), **of_value, PRECISION=call.precision,
    )  # fmt: skip
    triton_forward.forward_odd[grid](
        call.lead.operand(value, 2), finite, call.mask, output, call.sizes, **of_value
    )
    return output, lse
