"""Repeated calls of PyTorch, with gradients by one node of autograd; see `backends.repeated`.

The operators take 20 µs more, and 100 µs with gradients, to convert records, to make views and to
repeat checks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from anyscore.backends.repeated import CoreArrays, KnownCall, Lowered
from anyscore.backends.torch import autograd
from anyscore.backends.torch.modes import (
    differentiable,
    must_dispatch,
    wants_gradients,
)
from anyscore.backends.torch.operators import Maybe
from anyscore.call.backend import Backend, Implementation
from anyscore.call.operands import Operands, Results
from anyscore.ops import load

_xp = load("torch")


class _Repeated(torch.autograd.Function):
    """Autograd node of a repeated call; saves inputs, statistics, and output or kept scores.

    The output of a call without values is its scores, which are not saved.
    `autograd` computes the derivatives if the backward cannot be repeated, and higher orders.
    """

    @staticmethod
    def forward(
        ctx: Any,
        call: KnownCall,
        seed: int | None,
        made: tuple[Tensor, Tensor, Maybe],
        *arrays: Maybe,
    ) -> Tensor:
        output, stats, scores = made
        ctx.call, ctx.seed = call, seed
        if scores is None and arrays[_VALUE] is not None:
            scores = output.clone()  # the caller may write to the output
        ctx.save_for_backward(*arrays, scores, stats)
        return output

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Maybe, ...]:
        saved, call = ctx.saved_tensors, ctx.call
        found, own = None, (y for y in (*saved[:N_FACTORS], upstream) if y is not None)
        if not (must_dispatch(upstream) or differentiable(own)):
            *tensors, start, stop, mask, kept, stats = saved
            operands = *tensors, None, start, stop, mask, ctx.seed
            upstream = upstream.contiguous() if tensors[_VALUE] is None else upstream
            threads = torch.get_num_threads()
            found = call.core.backward(operands, kept, stats, upstream, threads)
        if found is None:
            found = _gradients(call, ctx.seed, saved, upstream)
        return None, None, None, *found, None, None, None


N_FACTORS, _VALUE = 5, 4
"""The number of tensors with gradients: a, b, weight, key_bias and value; and the last one's place.
"""
_APPLY: Any = super(torch.autograd.Function, _Repeated).apply
"""`apply` without its work for transforms, as in `modes.apply`."""


def _gradients(
    call: KnownCall, seed: int | None, saved: tuple[Any, ...], upstream: Tensor
) -> tuple[Any, ...]:
    """Return the gradients of the factors and the value, differentiable in grad mode."""
    a, b, weight, key_bias, value, start, stop, mask, kept, stats = saved
    x = Operands(a, b, weight, key_bias, value, start=start, stop=call.clamped(stop), mask=mask)
    x = x if seed is None else x._replace(seed=_xp.seed(seed, like=a))
    results = Results(None, stats, kept) if call.keeps_scores else Results(kept, stats)
    given = Results(None, None, upstream) if value is None else Results(upstream, None)
    return autograd.gradients(x, call.settings, results, given)[:N_FACTORS]


def _train(
    call: KnownCall,
    lowered: Lowered,
    value: Maybe,
    packed: Maybe,
    bounds: tuple[Maybe, Maybe, Maybe],
    lengths: Any,
    seed: int | None,
) -> Tensor | None:
    """See `CoreArrays.train`. All arrays but packed are saved: PyTorch detects writes to them."""
    threads = torch.get_num_threads()
    made = call.core.forward((*lowered, value, packed, *bounds, seed), threads)
    if made is None:
        return None
    arrays = *lowered, value, *kept_bounds(bounds, lengths)
    output: Tensor = _APPLY(call, seed, made, *arrays)
    return output


def kept_bounds(bounds: tuple[Maybe, Maybe, Maybe], lengths: Any) -> tuple[Maybe, Maybe, Maybe]:
    """Return the bounds of a call to keep: the caller may write to lengths."""
    start, stop, mask = bounds
    return (start, stop.clone(), mask) if stop is not None and stop is lengths else bounds


def _may_write(x: Tensor) -> bool:
    return torch.is_inference_mode_enabled() or not x.is_inference()


def _layout(x: Tensor) -> Any:
    return type(x), x.shape, x.dtype, x.device


def _mark_written(arrays: tuple[Maybe, ...]) -> None:
    """Increment version counters, by which autograd detects writes to saved tensors."""
    increment_version([x for x in arrays if x is not None])


def core_arrays(backend: Backend, core: Implementation) -> CoreArrays:
    """Return tensors as arrays whose calls are repeated."""
    return CoreArrays(
        (Tensor, nn.Parameter),
        backend,
        core,
        _layout,
        wants_gradients,
        torch.get_num_threads,
        Tensor.new_empty,
        _may_write,
        _mark_written,
        train=_train,
    )
