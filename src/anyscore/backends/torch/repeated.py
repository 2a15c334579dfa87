"""Calls of the core that come again: forward and backward look at memory alone.

The operators take 20 µs more, and 100 with gradients, to take records apart, to make views and to
check what was checked.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from anyscore.backends.torch import autograd as torch_autograd
from anyscore.backends.torch.modes import differentiable, is_plain, is_watched, wants_gradients
from anyscore.backends.torch.operators import Maybe
from anyscore.call.operands import Operands, Results, Settings
from anyscore.kernels import cpu

MOST = 64
"""Calls that are kept, beyond which all are forgotten."""

_calls: dict[Any, Callable[..., Tensor | None]] = {}
"""By kind, of settings, shapes and strides; `_once` and `_never` stand for some."""


class _Trained(torch.autograd.Function):
    """The function of a call that came before: what it gave, and of which arrays.

    The derivative of `torch_autograd` serves where its backward cannot be repeated, and gives
    those of higher orders.
    """

    @staticmethod
    def forward(
        ctx: Any, call: TrainedCall, made: tuple[Tensor, Tensor, Maybe], *arrays: Maybe
    ) -> Tensor:
        output, stats, scores = made
        ctx.call = call
        # The caller may write to the output that they are given.
        ctx.save_for_backward(*arrays, output.clone() if scores is None else scores, stats)
        return output

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Maybe, ...]:
        saved, call = ctx.saved_tensors, ctx.call
        found, own = None, (y for y in (*saved[:4], upstream) if y is not None)
        if not (is_watched(upstream) or differentiable(own)):
            found = call.core.backward(*saved, upstream, torch.get_num_threads())
        if found is None:
            found = call.gradients(saved, upstream)
        return None, None, *found, None


_APPLY: Any = super(torch.autograd.Function, _Trained).apply
"""Without what it does only for transforms, as `torch_modes.apply`."""


class TrainedCall:
    """A call of the core that came before, with gradients.

    (a, b, weight, value, packed, stop, threads) → the output, None where arrays are of another
    kind. All but packed are kept for the backward: PyTorch finds it out if they are written to.
    """

    def __init__(self, x: Operands, s: Settings) -> None:
        self.keeps_scores = torch_autograd.keeps_scores(x, s)
        self.core = cpu.train_again(x, s, Tensor.new_empty, self.keeps_scores)
        self.settings = s

    def __call__(
        self,
        a: Tensor,
        b: Tensor,
        weight: Any,
        value: Tensor,
        packed: Any,
        stop: Any,
        threads: int,
    ) -> Tensor | None:
        made = self.core.forward(a, b, weight, value, packed, stop, threads)
        if made is None:  # the arrays are of another kind
            return None
        output: Tensor = _APPLY(self, made, a, b, weight, value, stop)
        return output

    def gradients(self, saved: tuple[Any, ...], upstream: Tensor) -> tuple[Any, ...]:
        """Return the gradients of a, b, weight and value, differentiable if they are to be."""
        a, b, weight, value, stop, kept, stats = saved
        x = Operands(a, b, weight, value=value, stop=stop)
        results = Results(None, stats, kept) if self.keeps_scores else Results(kept, stats)
        of = torch_autograd.gradients(x, self.settings, results, Results(upstream, None))
        return *of[:3], of[4]


def _once(*_: Any) -> None:
    """Stand for a call that came once."""


def _never(*_: Any) -> None:
    """Stand for a call that no other can repeat."""


def run(x: Operands, s: Settings) -> Tensor | None:
    """Return the output of a call that is like one before it, None for others.

    Alike are plain tensors of the same shapes, strides and dtype, with the same settings.
    """
    if not (x.key_bias is x.bias is x.c is x.start is x.mask is x.seed is x.rowptr is None):
        return None
    a, b, weight, value, packed, stop = x.a, x.b, x.weight, x.value, x.packed, x.stop
    if value is None or s.scores or not a.is_cpu or a.dtype != value.dtype:
        return None
    wants = wants_gradients(a, b, value, weight)
    if wants is None or not (is_plain(a) and is_plain(b) and is_plain(value)):
        return None
    shapes = a.shape, b.shape, value.shape, None if stop is None else stop.shape
    strides = a.stride(), b.stride(), value.stride()
    kind = wants, s, shapes, strides, a.dtype, packed is None
    call = _calls.get(kind)  # other threads may add to them, and forget them
    if call is None:
        if len(_calls) >= MOST:
            _calls.clear()
        call = _calls[kind] = _once
    elif call is _once:
        call = _never
        with suppress(ValueError):  # an array has to be copied, or is of half precision
            call = TrainedCall(x, s) if wants else cpu.again(x, s, None, Tensor.new_empty)
        _calls[kind] = call
    return call(a, b, weight, value, packed, stop, torch.get_num_threads())
