"""The kernels in PyTorch: gradients by their backward, higher orders by the reference.

The operators run the C++ core on the CPU, and the kernels of `triton` on a GPU.

Forward mode raises NotImplementedError, as in every autograd.Function without a `jvp`.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, TypeVar

import torch
from torch import Tensor

from anyscore.backends.record import keeps_scores as core_keeps_scores
from anyscore.backends.record import run_reference
from anyscore.backends.torch import operators
from anyscore.backends.torch.modes import apply, differentiable, is_compiling
from anyscore.backends.torch.operators import Maybe
from anyscore.call.operands import N_BACKWARD, N_DIFFERENTIABLE, Operands, Results, Settings
from anyscore.ops import load

F = TypeVar("F", bound=Callable[..., Any])
_xp = load("torch")


def _with_signature_of(operator: Any) -> Callable[[F], F]:
    """Give `forward` the operator's signature: torch.compile would count *args as one."""

    def mark(forward: F) -> F:
        names = (argument.name for argument in operator.operator._schema.arguments)
        kind = Parameter.POSITIONAL_ONLY
        vars(forward)["__signature__"] = Signature([Parameter(name, kind) for name in names])
        return forward

    return mark


class _Forward(torch.autograd.Function):
    """Takes flat operator arguments; returns the results that are not None."""

    generate_vmap_rule = True

    @staticmethod
    @_with_signature_of(operators.forward)
    def forward(*args: Any) -> tuple[Tensor, ...]:
        results = operators.forward(*operators.forward.record(*args))
        return tuple(y for y in results if y is not None)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, s = operators.forward.record(*inputs)
        results, stats, scores = x.results_from(s, output)
        if s.scores and keeps_scores(x, s):
            results, scores = None, scores.clone()
        elif not is_compiling():
            # Clone an output that is returned without a cast: callers may modify it in place.
            is_returned = results is not None and results.dtype == x.value.dtype
            results, scores = results.clone() if is_returned else results, None
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*x[:N_BACKWARD], results, stats, scores)
        ctx.settings = s

    @staticmethod
    def backward(ctx: Any, *upstream: Maybe) -> tuple[Maybe, ...]:
        saved, s = ctx.saved_tensors, ctx.settings  # checkpointing allows one access
        x, results = Operands(*saved[:N_BACKWARD]), Results(*saved[N_BACKWARD:])
        found = x.results_from(s, upstream)
        if x.value is not None and found.output is None:
            shape = *s.lead, x.a.shape[-2], x.value.shape[-1]
            found = found._replace(output=results.stats.new_zeros(shape))
        rest = len(ctx.needs_input_grad) - 1 - N_DIFFERENTIABLE
        return None, *gradients(x, s, results, found), *(None,) * rest


def keeps_scores(x: Operands, s: Settings) -> bool:
    """Return `record.keeps_scores` for tensors of the core; False on other devices."""
    return x.a.is_cpu and not is_compiling() and core_keeps_scores(x, s)


def gradients(x: Operands, s: Settings, results: Results, upstream: Results) -> tuple[Maybe, ...]:
    """Return the gradients of a call's factors, differentiable if higher orders may follow."""
    record = x, s, results, upstream
    tensors = (*x[:N_BACKWARD], *results, *upstream)
    if differentiable(y for y in tensors if y is not None):
        args = operators.backward.args(*record)
        made = apply(_Backward, *args, tensors=operators.backward.tensors)
    else:
        made = operators.backward(*record)
    return tuple(None if y is None else d for y, d in zip(x, made, strict=False))


class _Backward(torch.autograd.Function):
    """Runs the backward operator; its derivative is the reference's, which recomputes results."""

    generate_vmap_rule = True

    @staticmethod
    @_with_signature_of(operators.backward)
    def forward(*args: Any) -> tuple[Tensor, ...]:
        record = operators.backward.record(*args)
        found: tuple[Tensor, ...] = operators.backward(*record)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, ctx.settings, _, upstream = operators.backward.record(*inputs)
        ctx.save_for_backward(*x[:N_BACKWARD], *upstream)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Maybe, ...]:
        saved, s = ctx.saved_tensors, ctx.settings
        x, upstream = Operands(*saved[:N_BACKWARD]), Results(*saved[N_BACKWARD:])
        names, reached = list(x.factors.present()), list(upstream.present())

        def run(*xs: Tensor) -> tuple[Tensor, ...]:
            given = x._replace(**dict(zip(names, xs, strict=True)))
            results = run_reference(_xp, given, s)
            return tuple(getattr(results, name) for name in reached)

        def gradients(*given: Tensor) -> Any:
            ds, xs = given[: len(reached)], given[len(reached) :]
            return torch.func.vjp(run, *xs)[1](ds)

        with torch.autocast(x.a.device.type, enabled=False):
            xs = [getattr(upstream, name) for name in reached] + [
                getattr(x, name) for name in names
            ]
            again = torch.func.vjp(gradients, *xs)[1]
            wanted = zip(x, grads, strict=False)
            found = again(tuple(d for y, d in wanted if y is not None))
        of_upstream = dict(zip(reached, found, strict=False))
        of_inputs = dict(zip(names, found[len(reached) :], strict=True))
        inputs = Operands(**{"a": None, "b": None, **of_inputs})[:N_BACKWARD]
        to_upstream = (of_upstream.get(name) for name in Results._fields)
        of_results = Results(None, None, None)
        return None, *inputs, *of_results, *to_upstream, *(None,) * (len(s) - 1)


def forward(x: Operands, s: Settings) -> Results:
    """Run the operator, differentiable."""
    given = s._replace(scores=s.scores or keeps_scores(x, s))
    args = operators.forward.args(x, given)
    found = x.results_from(given, apply(_Forward, *args, tensors=operators.forward.tensors))
    return found if s.scores else found._replace(scores=None)
