"""The kernels under PyTorch, differentiable: by their backward, in higher orders by the reference.

The operators run what the device of the tensors has: the C++ core here, Triton in `torch_triton`.

Forward mode raises NotImplementedError, as in every autograd.Function without a `jvp`.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from anyscore.backends import torch_modes, torch_operators
from anyscore.backends.common import (
    call_of,
    factors,
    normalised,
    run_reference,
    why_not_core,
    why_not_dtype,
)
from anyscore.backends.torch_modes import (
    apply,
    differentiable,
    is_compiling,
    is_forward_mode,
    is_plain,
    is_transforming,
    is_wrapper,
)
from anyscore.backends.torch_operators import Maybe, acc_dtype, array
from anyscore.factors import Factors
from anyscore.implementations import Implementation, Result
from anyscore.kernels import cpu
from anyscore.operands import FACTORS, NEEDED, Operands, Results
from anyscore.ops import DTYPES, load
from anyscore.task import Options, Task

F = TypeVar("F", bound=Callable[..., Any])
_xp = load("torch")
_DTYPES = frozenset(getattr(torch, name) for name in DTYPES)


def _as_many_as(operator: Any) -> Callable[[F], F]:
    """Say how many arguments a `forward` has: torch.compile counts them, and *args would be one."""

    def mark(forward: F) -> F:
        names = (argument.name for argument in operator.operator._schema.arguments)
        kind = Parameter.POSITIONAL_ONLY
        vars(forward)["__signature__"] = Signature([Parameter(name, kind) for name in names])
        return forward

    return mark


class _Forward(torch.autograd.Function):
    """Arguments and results are those of the operator."""

    generate_vmap_rule = True

    @staticmethod
    @_as_many_as(torch_operators.forward)
    def forward(*args: Any) -> tuple[Tensor, Tensor]:
        output, lse = torch_operators.forward(*torch_operators.forward.record(*args))
        return output, lse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, s = torch_operators.forward.record(*inputs)
        results, lse = output
        if not is_compiling():  # the caller may write to what they are given
            is_given = results.dtype == x.value.dtype  # else they are given it in their dtype
            results, lse = results.clone() if is_given else results, lse.clone()
        ctx.save_for_backward(*x[:NEEDED], results, lse)
        ctx.settings = s

    @staticmethod
    def backward(ctx: Any, d_output: Tensor, d_lse: Tensor) -> tuple[Maybe, ...]:
        saved, s = ctx.saved_tensors, ctx.settings  # checkpointing allows but one look
        x, results = Operands(*saved[:NEEDED]), Results(*saved[NEEDED:])
        record = x, s, results, Results(d_output, d_lse)
        if differentiable([y for y in (*saved, d_output, d_lse) if y is not None]):
            found = apply(_Backward, *torch_operators.backward.args(*record))
        else:
            found = torch_operators.backward(*record)
        inputs = zip(saved, found, strict=False)
        rest = len(ctx.needs_input_grad) - 1 - FACTORS
        return None, *(None if x is None else d for x, d in inputs), *(None,) * rest


class _Backward(torch.autograd.Function):
    """The operator's own derivative is that of the reference, which recomputes its results."""

    generate_vmap_rule = True

    @staticmethod
    @_as_many_as(torch_operators.backward)
    def forward(*args: Any) -> tuple[Tensor, ...]:
        record = torch_operators.backward.record(*args)
        found: tuple[Tensor, ...] = torch_operators.backward(*record)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, ctx.settings, _, upstream = torch_operators.backward.record(*inputs)
        ctx.save_for_backward(*x[:NEEDED], *upstream)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Maybe, ...]:
        *operands, d_output, d_lse = ctx.saved_tensors
        x, s = Operands(*operands), ctx.settings
        dtype = str(acc_dtype(*x[:FACTORS])).removeprefix("torch.")
        names = [name for name, y in zip(x._fields[:FACTORS], x, strict=False) if y is not None]

        def run(*xs: Tensor) -> tuple[Tensor, Tensor]:
            given = x._replace(**dict(zip(names, xs, strict=True)))
            return tuple(run_reference(_xp, given, s, dtype))

        def gradients(d_output: Tensor, d_lse: Tensor, *xs: Tensor) -> Any:
            return torch.func.vjp(run, *xs)[1]((d_output, d_lse))

        with torch.autocast(x.a.device.type, enabled=False):
            xs = [d_output, d_lse, *(getattr(x, name) for name in names)]
            again = torch.func.vjp(gradients, *xs)[1]
            wanted = zip(x, grads, strict=False)
            d_output, d_lse, *found = again(tuple(d for y, d in wanted if y is not None))
        of_inputs = Operands(**{"a": None, "b": None, **dict(zip(names, found, strict=True))})
        return None, *of_inputs[:NEEDED], None, None, d_output, d_lse, *(None,) * (len(s) - 1)


def _why_not(task: Task, options: Options) -> str | None:
    if reason := why_not_core(task):
        return reason
    xs = factors(task)
    for x in xs:
        if not x.is_cpu:
            return f"it runs on the CPU, and the tensors are on {x.device}"
        if x.dtype not in _DTYPES:
            return why_not_dtype(_xp.dtype(x))
    return torch_modes.why_not() or why_not_made_of(xs)


def why_not_made_of(xs: list[Tensor]) -> str | None:
    """Return why kernels cannot reach the memory of these tensors, None if they can."""
    if not is_compiling() and any(map(is_wrapper, xs)):
        return "the tensors are made of other tensors"
    return None


def run(task: Task, dropout: float, seed: Any) -> Result:
    """Run a task by the operators, on whatever device its tensors are."""
    x, s = call_of(_xp, task, dropout, seed)
    if differentiable(y for y in x[:FACTORS] if y is not None):
        output, lse = apply(_Forward, *torch_operators.forward.args(x, s))
    else:
        output, lse = torch_operators.forward(x, s)
    dtype = task.value.dtype  # to ask costs less than to convert to what it is
    return Result(output if output.dtype == dtype else output.to(dtype), lse)


def weights_of(task: Task, lse: Tensor) -> Tensor:
    """Compute the weights (*lead, T_q, T_k) of a task in its dtype, by the operators."""
    weights: Tensor = torch_operators.weights(*call_of(_xp, task, 0.0), lse)
    return cast(Tensor, _xp.astype(normalised(_xp, weights), task.dtype))


CORE = Implementation("cpu", _why_not, run, weights_of)


def pack_keys(f: Factors) -> Tensor | None:
    """Return what the core wants to know of the keys of `f`, without a graph; None if nothing."""
    b: Tensor = f.b
    if not b.is_cpu or b.dtype not in _DTYPES:
        return None
    if is_compiling() or is_transforming() or is_forward_mode() or not is_plain(b):
        return None
    *lead, keys, width = b.shape
    packed = b.new_empty((*lead, keys + 1, width), dtype=acc_dtype(b))
    cpu.prepare_keys(f.pair.name, array(b), array(packed), torch.get_num_threads())
    return packed
