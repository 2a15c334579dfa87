"""The kernels under PyTorch, differentiable: first order by their backward, higher by definition.

The operators run what the device of the tensors has: the C++ core here, Triton in `torch_triton`.

Forward mode raises NotImplementedError, as in every autograd.Function without a `jvp`.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from anyscore.backends import torch_modes, torch_operators
from anyscore.backends.common import Settings, by_definition, obstacle, tensors, unpack
from anyscore.backends.torch_modes import (
    apply,
    differentiable,
    is_compiling,
    is_forward_mode,
    is_plain,
    is_transforming,
    is_wrapper,
)
from anyscore.backends.torch_operators import Maybe
from anyscore.factors import TANH, Factors
from anyscore.implementations import Implementation
from anyscore.intervals import LoweredMask
from anyscore.kernels import cpu
from anyscore.ops import DTYPES, load
from anyscore.task import Task

_xp = load("torch")
_DTYPES = frozenset(getattr(torch, name) for name in DTYPES)


class _Forward(torch.autograd.Function):
    """Arguments and results are those of the operator."""

    generate_vmap_rule = True

    @staticmethod
    def forward(  # torch.compile does not understand *args here
        pair: str, a: Tensor, b: Tensor, weight: Maybe, key_bias: Maybe, value: Tensor,
        start: Maybe, stop: Maybe, keep: Maybe, seed: Maybe, packed: Maybe,
        scale: float, groups: int, dropout: float, period: int, lead: tuple[int, ...],
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        output, lse = torch_operators.forward(
            pair, a, b, weight, key_bias, value, start, stop, keep, seed, packed,
            scale, groups, dropout, period, lead,
        )  # fmt: skip
        return output, lse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        results, lse = output
        if not is_compiling():  # the caller may write to what they are given
            is_given = results.dtype == inputs[5].dtype  # else they are given it in their dtype
            results, lse = results.clone() if is_given else results, lse.clone()
        ctx.save_for_backward(*inputs[1:10], results, lse)
        ctx.settings = (inputs[0], *inputs[11:])

    @staticmethod
    def backward(ctx: Any, d_output: Tensor, d_lse: Tensor) -> tuple[Maybe, ...]:
        saved = ctx.saved_tensors  # checkpointing allows but one look
        pair, *settings = ctx.settings
        args = pair, *saved, d_output, d_lse, *settings
        again = differentiable(x for x in args if isinstance(x, Tensor))
        found = apply(_Backward, *args) if again else torch_operators.backward(*args)
        inputs = zip(saved[:5], found, strict=True)
        return None, *(None if x is None else d for x, d in inputs), *(None,) * 10


class _Backward(torch.autograd.Function):
    """Its own derivative is that of the definition: log-sum-exp and output are recomputed there."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        pair: str, a: Tensor, b: Tensor, weight: Maybe, key_bias: Maybe, value: Tensor,
        start: Maybe, stop: Maybe, keep: Maybe, seed: Maybe,
        output: Tensor, lse: Tensor, d_output: Tensor, d_lse: Tensor,
        scale: float, groups: int, dropout: float, period: int, lead: tuple[int, ...],
    ) -> tuple[Tensor, ...]:  # fmt: skip
        found: tuple[Tensor, ...] = torch_operators.backward(
            pair, a, b, weight, key_bias, value, start, stop, keep, seed, output, lse, d_output,
            d_lse, scale, groups, dropout, period, lead,
        )  # fmt: skip
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[1:10], *inputs[12:14])
        ctx.settings = (inputs[0], *inputs[14:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Maybe, ...]:
        *inputs, start, stop, keep, seed, d_output, d_lse = ctx.saved_tensors
        pair, scale, groups, dropout, period, lead = ctx.settings
        told = Settings(pair, scale, groups, dropout, period, tuple(lead))
        mask = LoweredMask(start, stop, keep)
        dtype = str(torch_operators.accumulation(*inputs)).removeprefix("torch.")
        present = [i for i, x in enumerate(inputs) if x is not None]

        def run(*xs: Tensor) -> tuple[Tensor, Tensor]:
            given = dict(zip(present, xs, strict=True))
            return by_definition(_xp, told, [given.get(i) for i in range(5)], mask, seed, dtype)

        def gradients(d_output: Tensor, d_lse: Tensor, *xs: Tensor) -> Any:
            return torch.func.vjp(run, *xs)[1]((d_output, d_lse))

        with torch.autocast(inputs[0].device.type, enabled=False):
            xs = [d_output, d_lse, *(inputs[i] for i in present)]
            again = torch.func.vjp(gradients, *xs)[1]
            d_output, d_lse, *found = again(tuple(grads[i] for i in present))
        of_inputs = dict(zip(present, found, strict=True))
        return (
            None, *(of_inputs.get(i) for i in range(5)), *(None,) * 6, d_output, d_lse,
            *(None,) * 5,
        )  # fmt: skip


def _usable(task: Task, dropout: float, return_lse: bool) -> str | None:
    reason = obstacle(task)
    if reason is not None:
        return reason
    xs = tensors(cast(Factors, task.score))
    for x in xs:
        if not x.is_cpu:
            return f"it runs on the CPU, and the tensors are on {x.device}"
        if x.dtype not in _DTYPES:
            return f"a factor of the score is {_xp.dtype(x)}"
    if (reason := torch_modes.obstacle()) is not None:
        return reason
    if not is_compiling() and any(map(is_wrapper, xs)):
        return "the tensors are made of other tensors"
    return None


def run(task: Task, dropout: float, seed: Any) -> tuple[Tensor, Tensor]:
    (f, mask), sizes = unpack(task), task.sizes
    args = (
        f.pair.name, f.a, f.b, f.weight, f.key_bias, task.value, mask.start, mask.stop, mask.keep,
        _xp.seed(seed, like=task.value) if dropout else None, task.packed,
        float(f.scale), sizes.groups, float(dropout), math.prod(sizes.lead), sizes.lead,
    )  # fmt: skip
    if differentiable([*tensors(f), task.value]):
        output, lse = apply(_Forward, *args)
    else:
        output, lse = torch_operators.forward(*args)
    return output.to(task.value.dtype), lse


def weights_of(task: Task, lse: Tensor) -> Tensor:
    f, mask = unpack(task)
    weights: Tensor = torch_operators.weights(
        f.pair.name, f.a, f.b, f.weight, f.key_bias, mask.start, mask.stop, mask.keep, lse,
        float(f.scale), task.sizes.groups,
    )  # fmt: skip
    total = weights.sum(-1, keepdim=True)  # 1 but for the rounding of a large lse
    return (weights / torch.where(total == 0, 1.0, total)).to(getattr(torch, task.dtype))


ROUTE = Implementation("cpu", _usable, run, weights_of)


def pack_keys(f: Factors) -> Tensor | None:
    """What the core wants to know of the keys of `f`, without a graph."""
    b: Tensor = f.b
    if f.pair != TANH or cpu.problem() is not None or not b.is_cpu or b.dtype not in _DTYPES:
        return None
    if is_compiling() or is_transforming() or is_forward_mode() or not is_plain(b):
        return None
    *lead, keys, width = b.shape
    packed = b.new_empty((*lead, keys + 1, width), dtype=torch_operators.accumulation(b))
    array = torch_operators.array
    cpu.prepare_keys(f.pair.name, array(b), array(packed), torch.get_num_threads())
    return packed
