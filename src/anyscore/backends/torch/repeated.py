"""Repeated calls of PyTorch: `run` repeats the core, `RepeatedTorchCalls` calls of `attention`.

Repeated calls compare memory layouts alone. The operators take 20 µs more, and 100 µs with
gradients, to convert records, to make views and to repeat checks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from anyscore.backends.repeated import RepeatedCoreCalls
from anyscore.backends.torch import autograd
from anyscore.backends.torch.modes import (
    differentiable,
    is_compiling,
    is_plain,
    must_dispatch,
    wants_gradients,
    wants_gradients_eagerly,
)
from anyscore.backends.torch.operators import Maybe
from anyscore.call.backend import Backend, Implementation
from anyscore.call.operands import Operands, Results, Settings
from anyscore.call.task import Task
from anyscore.kernels import cpu
from anyscore.score.factors import Factors

MAX_CALLS = 64
"""The most kept calls; one more drops all of them."""

_calls: dict[Any, Callable[..., Tensor | None]] = {}
"""Repeated calls by settings, shapes and strides; or `_seen_once` or `_unrepeatable`."""


class _Trained(torch.autograd.Function):
    """Autograd node of a repeated call; saves inputs and output (or scores) and statistics.

    `autograd` computes the derivatives if the backward cannot be repeated, and higher orders.
    """

    @staticmethod
    def forward(
        ctx: Any, call: TrainedCall, made: tuple[Tensor, Tensor, Maybe], *arrays: Maybe
    ) -> Tensor:
        output, stats, scores = made
        ctx.call = call
        # The caller may write to the output.
        ctx.save_for_backward(*arrays, output.clone() if scores is None else scores, stats)
        return output

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Maybe, ...]:
        saved, call = ctx.saved_tensors, ctx.call
        found, own = None, (y for y in (*saved[:4], upstream) if y is not None)
        if not (must_dispatch(upstream) or differentiable(own)):
            found = call.core.backward(*saved, upstream, torch.get_num_threads())
        if found is None:
            found = call.gradients(saved, upstream)
        return None, None, *found, None


_APPLY: Any = super(torch.autograd.Function, _Trained).apply
"""`apply` without its work for transforms, as in `modes.apply`."""


class TrainedCall:
    """A repeated call of the core with gradients.

    (a, b, weight, value, packed, stop, threads) → the output; None if arrays have another layout.
    All but packed are saved for the backward, and PyTorch detects writes to them.
    """

    def __init__(self, x: Operands, s: Settings) -> None:
        self.keeps_scores = autograd.keeps_scores(x, s)
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
        if made is None:  # the arrays have another layout
            return None
        output: Tensor = _APPLY(self, made, a, b, weight, value, stop)
        return output

    def gradients(self, saved: tuple[Any, ...], upstream: Tensor) -> tuple[Any, ...]:
        """Return the gradients of a, b, weight and value, differentiable in grad mode."""
        a, b, weight, value, stop, kept, stats = saved
        x = Operands(a, b, weight, value=value, stop=stop)
        results = Results(None, stats, kept) if self.keeps_scores else Results(kept, stats)
        of = autograd.gradients(x, self.settings, results, Results(upstream, None))
        return *of[:3], of[4]


def _seen_once(*_: Any) -> None:
    """Mark a call that was seen once."""


def _unrepeatable(*_: Any) -> None:
    """Mark a call that cannot be repeated."""


def run(x: Operands, s: Settings) -> Tensor | None:
    """Return the output of a call like an earlier one, None for others.

    Like calls have plain tensors of the same shapes, strides and dtype, and the same settings.
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
    call = _calls.get(kind)  # other threads may add and drop calls
    if call is None:
        if len(_calls) >= MAX_CALLS:
            _calls.clear()
        call = _calls[kind] = _seen_once
    elif call is _seen_once:
        call = _unrepeatable
        with suppress(ValueError):  # an array needs a copy, or has half precision
            call = TrainedCall(x, s) if wants else cpu.again(x, s, None, Tensor.new_empty)
        _calls[kind] = call
    return call(a, b, weight, value, packed, stop, torch.get_num_threads())


def _mark_written(arrays: tuple[Tensor | None, ...]) -> None:
    """Increment version counters, by which autograd detects writes to saved tensors."""
    increment_version([x for x in arrays if x is not None])


_run = RepeatedCoreCalls.run  # faster than `super()`


class RepeatedTorchCalls(RepeatedCoreCalls):
    """Repeats calls outside of compilers."""

    def __init__(self, backend: Backend, core: Implementation) -> None:
        super().__init__(
            Tensor,
            backend,
            core,
            wants_gradients_eagerly,
            torch.get_num_threads,
            Tensor.new_empty,
            _mark_written,
            TrainedCall,
        )

    def run(
        self, query: Tensor, key: Any, value: Tensor, score: Any, valid_lens: Any = None
    ) -> Tensor | None:
        if type(query) is not Tensor or is_compiling() or query.is_nested:
            return None
        return _run(self, query, key, value, score, valid_lens)

    def remember(
        self, query: Tensor, key: Any, value: Tensor, score: Any, valid_lens: Any, task: Task
    ) -> None:
        if not is_compiling():
            super().remember(query, key, value, score, valid_lens, task)

    def append(self, cache: Any, key: Tensor, value: Tensor, score: Any) -> bool:
        return not is_compiling() and super().append(cache, key, value, score)

    def remember_append(
        self, cache: Any, key: Tensor, value: Tensor, score: Any, f: Factors
    ) -> None:
        if not is_compiling():
            super().remember_append(cache, key, value, score, f)
