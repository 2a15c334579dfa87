"""The Triton kernels for PyTorch; the operators run them on GPUs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from math import prod
from typing import Any, cast

import torch
from torch import Tensor

from anyscore.backends.record import factors, is_step, why_not, why_not_dtype
from anyscore.backends.torch import core, modes, operators
from anyscore.call.backend import FUSED, Implementation, Result
from anyscore.call.operands import N_DIFFERENTIABLE, Operands, Results, Settings
from anyscore.call.task import Options, Task
from anyscore.kernels import cpu, tried
from anyscore.score.factors import Factors
from anyscore.score.pairs import SEPARABLE_TANH, TANH, pair_named

_TRITON = 3, 4
_FLOAT64 = 3, 5  # the version with float64 products
_LEAST = 8, 0  # compute capability: tensor cores add in float32 from Ampere on


def why_not_device(device: torch.device) -> str | None:
    """Return why the kernels cannot run on a device, None if they can."""
    if device.type == "cpu":
        return "it runs on GPUs, and the tensors are on cpu"
    if device.type not in ("cuda", "xpu"):
        return f"there are no kernels for {device.type}"
    vendor = "Intel" if device.type == "xpu" else "AMD" if torch.version.hip else "NVIDIA"
    if not tried.may_run("triton", vendor):
        remedy = f"the environment variable {tried.SWITCH}=1 switches them on"
        return f"{_UNTRIED[vendor]}; {remedy}"
    return _problem() or (_why_not_capability(device.index) if vendor == "NVIDIA" else None)


_UNTRIED = {
    "AMD": "the kernels compile for AMD GPUs, and nobody ran them there",
    "Intel": "nobody compiled the kernels for Intel GPUs, or ran them there",
}


@cache
def _problem() -> str | None:
    """Return why no GPU of this machine can run the kernels, None if one may."""
    if find_spec("triton") is None:
        return "Triton is not installed: pip install triton"
    if found := _older_than(_TRITON):
        return f"it needs Triton 3.4, which PyTorch 2.8 brings along, and {found} is installed"
    return None


@cache
def _older_than(least: tuple[int, int]) -> str | None:
    """Return Triton's version if it is older than `least`, else None."""
    try:
        found = version("triton")
    except PackageNotFoundError:  # PyTorch's own build
        return None
    return found if tuple(map(int, found.split(".")[:2])) < least else None


@cache
def _why_not_capability(index: int) -> str | None:
    capability = torch.cuda.get_device_capability(index)
    if capability >= _LEAST:
        return None
    return f"it needs compute capability 8.0, and the device has {capability[0]}.{capability[1]}"


def _why_not(task: Task, options: Options) -> str | None:
    if reason := why_not(task, has_edges=True):
        return reason
    f = cast(Factors, task.score)
    if f.pair not in cpu.PAIRS and f.pair.triton is None and not f.pair.is_formula:
        return f"the pair {f.pair.name!r} has no functions for Triton: Pair(..., triton=...)"
    xs = factors(task)
    for x in xs:
        if reason := why_not_device(x.device):
            return reason
        if x.dtype not in core.DTYPES_OF_KERNELS:
            return why_not_dtype(str(x.dtype))
    values = [] if task.value is None else [task.value]
    if (found := _older_than(_FLOAT64)) and any(x.dtype == torch.float64 for x in xs + values):
        return f"float64 needs Triton 3.5, and {found} is installed"
    return modes.why_not() or core.why_not_wrapper(xs)


def _how(task: Task) -> str:
    """Return the reason of a plan, and the faster way of such a call that waits for the switch."""
    f = cast(Factors, task.score)
    if task.edges is not None or is_step(f) or f.a.dtype != f.b.dtype:
        return FUSED
    if f.pair == TANH and (task.has_outer or not _is_large(task)):
        return FUSED
    return FUSED + tried.remark("triton", f.pair.name, str(f.a.dtype)[6:])


KERNELS = Implementation("triton", _why_not, core.run, _how)


def _why_not_separable(task: Task, options: Options) -> str | None:
    """Return why rows of products cannot replace the tanh of a task, None if they can."""
    f = task.score
    if not isinstance(f, Factors) or f.pair != TANH:
        got = f"has the pair {f.pair.name!r}" if isinstance(f, Factors) else "is a callable"
        return f"it is for the scores Additive and Concat, and the score {got}"
    if task.has_outer:
        return "it has no outer function, and the call has one, such as a softcap"
    if task.edges is not None:
        return "it is for tokens, and the mask has the edges of a graph"
    if task.value is None:
        return "it is for calls with values"
    if options.return_scores:
        return "it returns no weights, and the call asks for them"
    for x in (f.a, f.b, task.value):
        if x.dtype not in (torch.bfloat16, torch.float16):
            return f"it takes bfloat16 and float16, and a tensor is {str(x.dtype)[6:]}"
    return _why_not_on_nvidia(task, options)


def _why_not_on_nvidia(task: Task, options: Options) -> str | None:
    device = cast(Factors, task.score).a.device
    if device.type != "cuda" or torch.version.hip:
        where = "on AMD's" if device.type == "cuda" else f"on {device}"
        return f"it is for NVIDIA GPUs, and the tensors are {where}"
    return _why_not(task, options)


def _run_separable(task: Task, options: Options, seed: Any) -> Result:
    """Run a task by the operators, with the pair that only these kernels know."""
    f = cast(Factors, task.score)
    return core.run(task._replace(score=f._replace(pair=SEPARABLE_TANH)), options, seed)


SEPARABLE = Implementation(
    "separable",
    _why_not_separable,
    _run_separable,
    lambda task: "tanh as products of rows, where the device finds them exact enough; else exact",
)


LEAST_ELEMENTS, LEAST_TOKENS = 2**32, 512
"""The least elements (a query, a key and a feature), and the least queries and keys, of calls that
take products by the switch alone. An H200 computes so many elements exactly in a millisecond.
"""
COMPILED = (8, 0), (9, 0)
"""The compute capabilities for which tests compile products, and count their shared memory."""


def prefers_separable(task: Task, options: Options) -> bool:
    """Return whether a call without `impl` takes products of rows: one of known, large sizes.

    No GPU has run them, so the switch of `tried` must be on.
    """
    f = task.score
    if not tried.is_switched_on() or not isinstance(f, Factors) or task.sharded is not None:
        return False
    if not _is_large(task) or _why_not_separable(task, options) is not None:
        return False
    return torch.cuda.get_device_capability(f.a.device) in COMPILED


def _is_large(task: Task) -> bool:
    """Return whether a task has known sizes, and so many tokens and elements that products pay."""
    shape, width = task.sizes.scores_shape, cast(Factors, task.score).a.shape[-1]
    if not all(isinstance(n, int) for n in shape) or min(shape[-2:]) < LEAST_TOKENS:
        return False
    return bool(prod(shape) * width >= LEAST_ELEMENTS)


def _device_of(x: Tensor) -> AbstractContextManager[None]:
    """Return a context with the device of x current, on which Triton launches."""
    module: Any = torch.xpu if x.is_xpu else torch.cuda
    return cast(AbstractContextManager[None], module.device_of(x))


def _functions(name: str) -> Any:
    """Return the Triton functions of the pair of a name, from the user if the pair has them."""
    from anyscore.kernels.triton import formula, pairs

    if name == SEPARABLE_TANH.key:
        return pairs.TANH

    pair = pair_named(name)
    if pair.triton is not None:
        return pairs.Functions(*pair.triton)
    if pair.is_formula:
        return formula.of_formula(pair.value)
    return (pairs.UNTRIED if tried.is_switched_on() else pairs.BY_NAME)[name]


def _kernels(x: Operands, pair: str) -> Any:
    """Import and return the module of kernels for these operands, and with it Triton."""
    from anyscore.kernels.triton import attention, graphs
    from anyscore.kernels.triton.untried import separable

    if pair == SEPARABLE_TANH.key:
        return separable
    return attention if x.rowptr is None else graphs


def forward(x: Operands, s: Settings) -> Results:
    """Return the results in the accumulation dtype."""
    acc_dtype = operators.acc_dtype(*x[:N_DIFFERENTIABLE])
    with _device_of(x.a):
        found: Results = _kernels(x, s.pair).forward(_functions(s.pair), x, s, acc_dtype)
    return found


def _wide_backward(
    x: Operands, s: Settings, results: Results, upstream: Results
) -> tuple[operators.Maybe, ...]:
    stats: Tensor = results.stats.contiguous()
    output = results.output
    results = Results(None if output is None else output.contiguous(), stats)
    with _device_of(x.a):
        found = _kernels(x, s.pair).backward(_functions(s.pair), x, s, results, upstream)
    made: tuple[operators.Maybe, ...] = tuple(found[:N_DIFFERENTIABLE])
    return made + (None,) * (N_DIFFERENTIABLE - len(made))


def backward(x: Operands, s: Settings, results: Results, upstream: Results) -> tuple[Tensor, ...]:
    """Return the gradients of the factors, each in the dtype of its operand, or empty."""
    return operators.narrow(x, results, _wide_backward(x, s, results, upstream))


for _type in ("cuda", "xpu"):
    operators.forward.run_on(_type, forward)
    operators.backward.run_on(_type, backward)
    operators.WIDE[_type] = _wide_backward
