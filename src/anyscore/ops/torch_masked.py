"""PyTorch: products that read no masked entries, and the modes in which they run."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

from anyscore.ops import load, masked


def is_jit_tracing() -> bool:
    """Return whether torch.jit.trace, or the ONNX exporter that builds on it, is active."""
    return torch._C._get_tracing_state() is not None


def is_functionalizing() -> bool:
    """Return whether torch.func.functionalize is active."""
    functorch = torch._C._functorch
    if functorch.peek_interpreter_stack() is None or torch.compiler.is_compiling():
        return False
    kind = functorch.TransformType.Functionalize
    return any(level.key() == kind for level in functorch.get_interpreter_stack())


def is_forward_mode() -> bool:
    """Return whether forward-mode differentiation is active."""
    return forward_ad._current_level >= 0


# torch.compile takes the result at compile time as constant, and guards the level itself.
is_forward_mode._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _loses_tangents() -> bool:
    """Return whether PyTorch would lose tangents of an autograd.Function, of any order.

    A compiler takes such tangents as 0, and so does forward mode around another transform.
    """
    if not is_forward_mode():
        return False
    functorch = torch._C._functorch
    if torch.compiler.is_compiling() or functorch.peek_interpreter_stack() is None:
        return torch.compiler.is_compiling()
    kind = functorch.TransformType.Jvp
    return [level.key() for level in functorch.get_interpreter_stack()].count(kind) > 1


def _has_no_functions() -> bool:
    """Return whether no autograd.Function can be recorded; NaN may then reach derivatives."""
    return is_jit_tracing() or is_functionalizing() or _loses_tangents()


def masked_scores(a: Tensor, b: Tensor, mask: Tensor) -> Tensor:
    if _has_no_functions():
        return cast(Tensor, masked.scores(load("torch"), a, b, mask))
    function = _Scores if torch.compiler.is_compiling() else _ScoresBothWays
    return cast(Tensor, function.apply(a, b, mask))  # type: ignore[no-untyped-call]


def masked_sum(p: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    if _has_no_functions():
        return cast(Tensor, masked.sum(load("torch"), p, v, mask))
    function = _Sum if torch.compiler.is_compiling() else _SumBothWays
    return cast(Tensor, function.apply(p, v, mask))  # type: ignore[no-untyped-call]


class _Scores(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor, mask: Tensor) -> Tensor:
        return cast(Tensor, masked.scores(load("torch"), a, b, mask))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        (ds,), (a, b, mask) = grads, ctx.saved_tensors
        da, db = masked.scores_slopes(load("torch"), a, b, mask, ds)
        return da.sum_to_size(a.shape), db.sum_to_size(b.shape), None


class _Sum(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(p: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return cast(Tensor, masked.sum(load("torch"), p, v, mask))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        (do,), (p, v, mask) = grads, ctx.saved_tensors
        dp, dv = masked.sum_slopes(load("torch"), p, v, mask, do)
        return dp.sum_to_size(p.shape), dv.sum_to_size(v.shape), None


class _BothWays:
    """An autograd.Function with tangents too; compilers do not support it."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)


class _ScoresBothWays(_BothWays, _Scores):
    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        (a, b, mask), (da, db, _) = ctx.saved_tensors, tangents
        return masked_scores(da, b, mask) + masked_scores(a, db, mask)


class _SumBothWays(_BothWays, _Sum):
    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        (p, v, mask), (dp, dv, _) = ctx.saved_tensors, tangents
        return masked_sum(dp, v, mask) + masked_sum(p, dv, mask)
