"""PyTorch's calls that come again, and those whose gradients are wanted too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from anyscore.backends import torch_autograd
from anyscore.backends.again import CoreAgain
from anyscore.backends.torch_modes import (
    differentiable,
    is_compiling,
    is_watched,
    wants_gradients,
)
from anyscore.factors import Factors
from anyscore.implementations import Backend
from anyscore.kernels import cpu
from anyscore.operands import Operands, Results, Settings
from anyscore.task import Task


class _Trained(torch.autograd.Function):
    """The function of a call that came before: what it gave, and of which arrays.

    The derivative of `torch_autograd` serves where its backward cannot be repeated, and gives
    those of higher orders.
    """

    @staticmethod
    def forward(
        ctx: Any, call: Call, made: tuple[Tensor, Tensor], *arrays: Tensor | None
    ) -> Tensor:
        output, lse = made
        ctx.call = call
        # The caller may write to the output that they are given.
        ctx.save_for_backward(*arrays, output.clone(), lse)
        return output

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        saved, call = ctx.saved_tensors, ctx.call
        found, own = None, (y for y in (*saved[:4], upstream) if y is not None)
        if not (is_watched(upstream) or differentiable(own)):
            found = call.core.backward(*saved, upstream, torch.get_num_threads())
        if found is None:
            found = call.gradients(saved, upstream)
        return None, None, *found, None


_APPLY: Any = super(torch.autograd.Function, _Trained).apply
"""Without what it does only for transforms, as `torch_modes.apply`."""


class Call:
    """A call of the core that came before, with gradients.

    (a, b, weight, value, packed, lengths, threads) → the output, None where arrays are of another
    kind.
    """

    def __init__(self, x: Operands, s: Settings, lengths: Tensor | None) -> None:
        self.core = cpu.train_again(x, s, lengths, Tensor.new_empty)
        self.settings, self.stop = s, None if x.stop is None else x.stop.shape

    def __call__(
        self,
        a: Tensor,
        b: Tensor,
        weight: Any,
        value: Tensor,
        packed: Any,
        lengths: Any,
        threads: int,
    ) -> Tensor | None:
        made = self.core.forward(a, b, weight, value, packed, lengths, threads)
        if made is None:  # the arrays are of another kind
            return None
        output: Tensor = _APPLY(self, made, a, b, weight, value, lengths)
        return output

    def gradients(self, saved: tuple[Any, ...], upstream: Tensor) -> tuple[Any, ...]:
        """Return the gradients of a, b, weight and value, differentiable if they are to be."""
        a, b, weight, value, lengths, output, lse = saved
        stop = None if lengths is None else lengths.reshape(self.stop)
        x = Operands(a, b, weight, value=value, stop=stop)
        upstreams = Results(upstream, None)
        of = torch_autograd.gradients(x, self.settings, Results(output, lse), upstreams)
        return *of[:3], of[4]


def _written(arrays: tuple[Tensor | None, ...]) -> None:
    """Count up the versions, by which a backward finds that what it kept was written to."""
    increment_version([x for x in arrays if x is not None])


class TorchAgain(CoreAgain):
    """Repeat calls that no compiler traces."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(
            Tensor,
            backend,
            torch_autograd.CORE,
            wants_gradients,
            torch.get_num_threads,
            Tensor.new_empty,
            _written,
            Call,
        )

    def run(
        self, query: Tensor, key: Any, value: Tensor, score: Any, valid_lens: Any = None
    ) -> Tensor | None:
        return None if is_compiling() else super().run(query, key, value, score, valid_lens)

    def learn(
        self, query: Tensor, key: Any, value: Tensor, score: Any, valid_lens: Any, task: Task
    ) -> None:
        if not is_compiling():
            super().learn(query, key, value, score, valid_lens, task)

    def append(self, cache: Any, key: Tensor, value: Tensor, score: Any) -> bool:
        return not is_compiling() and super().append(cache, key, value, score)

    def learn_append(self, cache: Any, key: Tensor, value: Tensor, score: Any, f: Factors) -> None:
        if not is_compiling():
            super().learn_append(cache, key, value, score, f)
