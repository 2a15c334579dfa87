"""Attention over the processes of a group, differentiable once."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyscore.backends import ring
from anyscore.backends.record import run_reference
from anyscore.backends.torch import operators
from anyscore.backends.torch.modes import differentiable
from anyscore.backends.torch.operators import Maybe
from anyscore.call.operands import N_BACKWARD, N_DIFFERENTIABLE, Operands, Results, Settings
from anyscore.call.shards import Chunk, Part, Scheme, Sharded
from anyscore.ops import load

_xp = load("torch")


class _Kernels:
    """The operators of the core and of Triton, as `ring.Kernels`."""

    def forward(self, x: Operands, s: Settings) -> Results:
        found: Results = operators.forward(x, s)
        return found

    def backward(self, x: Operands, s: Settings, results: Results, upstream: Results) -> Operands:
        made = operators.wide_backward(x, s, results, upstream)
        pairs = zip(x[:N_DIFFERENTIABLE], made, strict=False)
        return Operands(*(None if y is None else d for y, d in pairs))

    def add(self, to: Tensor, x: Tensor) -> Tensor:
        return to.add_(x)

    def scale(self, x: Tensor, by: Tensor) -> Tensor:
        return x.mul_(by)

    def zeros(self, shape: tuple[int, ...], x: Operands) -> Tensor:
        zeros: Tensor = x.a.new_zeros(shape, dtype=operators.acc_dtype(*x[:N_DIFFERENTIABLE]))
        return zeros

    def add_columns(self, to: Tensor, start: int, x: Tensor) -> Tensor:
        to[..., start : start + x.shape[-1]] += x
        return to

    def origin(self, query: int, key: int, x: Operands) -> Tensor:
        return torch.tensor([query, key], device=x.a.device)


class _Reference(_Kernels):
    """The definition, for devices and pairs without kernels."""

    def add(self, to: Tensor, x: Tensor) -> Tensor:
        return to + x  # the gradients of a + b may be one tensor

    def scale(self, x: Tensor, by: Tensor) -> Tensor:
        return x * by

    def forward(self, x: Operands, s: Settings) -> Results:
        with torch.no_grad():
            return run_reference(_xp, x, s)

    def backward(self, x: Operands, s: Settings, results: Results, upstream: Results) -> Operands:
        """Differentiate the definition of the block."""
        with torch.enable_grad():
            xs = [None if y is None else y.detach() for y in x[:N_DIFFERENTIABLE]]
            given = [y.requires_grad_() for y in xs if y is not None]
            found = run_reference(_xp, Operands(*xs, *x[N_DIFFERENTIABLE:]), s)
        block = Results(*(None if y is None else y.detach() for y in found))
        ups = ring.upstream_of_block(_xp, s, block, results, upstream).present()
        reached = [found.present()[name] for name in ups]
        made = iter(torch.autograd.grad(reached, given, [*ups.values()], allow_unused=True))
        ds = (None if y is None else next(made) for y in xs)
        pairs = zip(xs, ds, strict=True)
        return Operands(
            *(torch.zeros_like(y) if y is not None and d is None else d for y, d in pairs)
        )


_KERNELS, _REFERENCE = _Kernels(), _Reference()


class _Call(NamedTuple):
    """A call across ranks without its tensors: settings, chunks of queries, shards, kernels."""

    s: Settings
    chunks: list[Chunk]
    sharded: Sharded
    scheme: Scheme
    kernels: _Kernels

    def part(self, tensors: tuple[Maybe, ...]) -> Part:
        """Return the part with these tensors: operands, then biases."""
        return Part(Operands(*tensors[:N_BACKWARD]), self.s, self.chunks, tensors[N_BACKWARD:])

    def forward(self, tensors: tuple[Maybe, ...]) -> tuple[Results, Results]:
        """Return `ring.forward` of a part with these tensors."""
        return ring.forward(_xp, self.kernels, self.part(tensors), self.sharded, self.scheme)


class _Attend(torch.autograd.Function):
    """Takes a call and its tensors; returns output, empty without values, and statistics."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Maybe) -> tuple[Tensor, Tensor]:
        found, kept = call.forward(tensors)
        # Callers may change an output in place, and gradients need it as it was.
        output = None if kept.output is None else kept.output.clone()
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, output, kept.stats)
        return found.stats.new_empty(0) if found.output is None else found.output, found.stats

    @staticmethod
    def backward(ctx: Any, d_output: Maybe, d_stats: Maybe) -> tuple[Maybe, ...]:
        if torch.is_grad_enabled():
            raise NotImplementedError(
                "attention across ranks has no second derivatives: leave out create_graph, or "
                "compute it on one rank."
            )
        *tensors, output, stats = ctx.saved_tensors
        call: _Call = ctx.call
        part = call.part(tuple(tensors))
        if output is None:
            d_output = None
        elif d_output is None:
            rows = part.x.a.shape[-2]
            d_output = output.new_zeros(*call.s.lead, rows, output.shape[-1])
        found = ring.backward(
            _xp, call.kernels, part, call.sharded, call.scheme,
            Results(output, stats), Results(d_output, d_stats),
        )  # fmt: skip
        made = (*found.x[:N_DIFFERENTIABLE], *(None,) * (N_BACKWARD - N_DIFFERENTIABLE))
        pairs = zip(tensors, (*made, *found.biases), strict=True)
        return None, *(None if y is None or d is None else d.to(y.dtype) for y, d in pairs)


def attend(part: Part, sharded: Sharded, scheme: Scheme, fused: bool) -> Results:
    """Return the results of this rank's part of a call, differentiable once."""
    call = _Call(part.s, part.chunks, sharded, scheme, _KERNELS if fused else _REFERENCE)
    tensors = (*part.x[:N_BACKWARD], *part.biases)
    if not differentiable(y for y in tensors if y is not None):
        return call.forward(tensors)[0]
    output, stats = _Attend.apply(call, *tensors)  # type: ignore[no-untyped-call]
    return Results(None if part.x.value is None else output, stats)
