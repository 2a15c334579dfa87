"""The kernels as an implementation for PyTorch: supported tensors, and the run of a task."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyscore.backends.record import (
    how_core,
    operands_of,
    why_not_core,
    with_edges_by_key,
)
from anyscore.backends.torch import autograd, modes, operators
from anyscore.backends.torch.modes import (
    differentiable,
    is_compiling,
    is_forward_mode,
    is_plain,
    is_transforming,
    is_wrapper,
)
from anyscore.backends.torch.operators import acc_dtype, array
from anyscore.call.backend import Implementation, Result
from anyscore.call.operands import N_DIFFERENTIABLE
from anyscore.call.task import Options, Task
from anyscore.kernels import cpu
from anyscore.ops import DTYPES, load
from anyscore.score.factors import Factors

_xp = load("torch")
DTYPES_OF_KERNELS = frozenset(getattr(torch, name) for name in DTYPES)


def _why_not(task: Task, options: Options) -> str | None:
    return why_not_core(_xp, task, _why_not_on_cpu, _why_not_now)


def _why_not_now(xs: list[Tensor]) -> str | None:
    return modes.why_not() or why_not_wrapper(xs)


def _why_not_on_cpu(x: Tensor) -> str | None:
    return None if x.is_cpu else f"it runs on the CPU, and the tensors are on {x.device}"


def why_not_wrapper(xs: list[Tensor]) -> str | None:
    """Return why kernels cannot reach the memory of these tensors, None if they can."""
    if not is_compiling() and any(map(is_wrapper, xs)):
        return "the tensors are made of other tensors"
    return None


def run(task: Task, options: Options, seed: Any) -> Result:
    """Run a task by the operators, on the device of its tensors."""
    x, s = operands_of(_xp, task, options, seed)
    if differentiable(y for y in x[:N_DIFFERENTIABLE] if y is not None):
        output, stats, scores = autograd.forward(with_edges_by_key(x, task), s)
    else:
        output, stats, scores = operators.forward(x, s)
    if output is not None and output.dtype != x.value.dtype:  # a comparison is cheaper than `to`
        output = output.to(x.value.dtype)
    return Result(output, stats, scores)


CORE = Implementation("cpu", _why_not, run, how_core)


def pack_keys(f: Factors) -> Tensor | None:
    """Return packed keys for the core, detached; None if the core has no format for them."""
    b: Tensor = f.b
    if not b.is_cpu or b.dtype not in DTYPES_OF_KERNELS:
        return None
    if is_compiling() or is_transforming() or is_forward_mode() or not is_plain(b):
        return None
    *lead, keys, width = b.shape
    packed = b.new_empty((*lead, keys + 1, width), dtype=acc_dtype(b))
    cpu.prepare_keys(f.pair.name, array(b), array(packed), torch.get_num_threads())
    return packed
