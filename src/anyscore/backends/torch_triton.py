"""The Triton kernels for PyTorch on NVIDIA GPUs: what the operators run there."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import Tensor

from anyscore.backends import torch_autograd, torch_modes, torch_operators
from anyscore.backends.common import tensors, unfit, unpack
from anyscore.backends.torch_modes import is_compiling, is_wrapper
from anyscore.backends.torch_operators import Maybe
from anyscore.factors import pair_named
from anyscore.implementations import Implementation
from anyscore.kernels import cpu
from anyscore.ops import DTYPES
from anyscore.task import Task

_DTYPES = frozenset(getattr(torch, name) for name in DTYPES)
_TRITON = 3, 4
_LEAST = 8, 0  # compute capability: Ampere, from which the tensor core adds in float32


@cache
def _problem() -> str | None:
    """Why no GPU of this machine runs the kernels, None if some may."""
    if torch.version.hip:
        return "it is for NVIDIA GPUs"
    if find_spec("triton") is None:
        return "Triton is not installed: pip install triton"
    try:
        found = version("triton")
    except PackageNotFoundError:  # a build of PyTorch's own
        return None
    if tuple(map(int, found.split(".")[:2])) < _TRITON:
        return f"it needs Triton 3.4, which PyTorch 2.8 brings along, and {found} is installed"
    return None


@cache
def _device_problem(index: int) -> str | None:
    capability = torch.cuda.get_device_capability(index)
    if capability >= _LEAST:
        return None
    return f"it needs compute capability 8.0, and the device has {capability[0]}.{capability[1]}"


def _usable(task: Task, dropout: float, return_lse: bool) -> str | None:
    if reason := unfit(task):
        return reason
    f, _ = unpack(task)
    if f.pair not in cpu.PAIRS and f.pair.triton is None:
        return f"the pair {f.pair.name!r} has no functions for Triton: Pair(..., triton=...)"
    xs = tensors(f)
    for x in xs:
        if not x.is_cuda:
            return f"it runs on GPUs, and the tensors are on {x.device}"
        if x.dtype not in _DTYPES:
            return f"a factor of the score is {x.dtype}"
    if _problem() is not None:
        return _problem()
    if (reason := torch_modes.obstacle()) is not None:
        return reason
    if not is_compiling() and any(map(is_wrapper, xs)):
        return "the tensors are made of other tensors"
    return _device_problem(f.a.device.index)


ROUTE = Implementation("triton", _usable, torch_autograd.run, torch_autograd.weights_of)


def _device_of(x: Tensor) -> AbstractContextManager[None]:
    """Triton launches on the current device."""
    return cast(Any, torch.cuda.device_of)(x)  # type: ignore[no-any-return]


def _functions(name: str) -> Any:
    pairs = import_module("anyscore.kernels.triton.pairs")
    own = pair_named(name).triton
    return pairs.BY_NAME[name] if own is None else pairs.Functions(*own)


def _kernels() -> Any:
    return import_module("anyscore.kernels.triton.attention")


def forward(
    pair: str, a: Tensor, b: Tensor, weight: Maybe, key_bias: Maybe, value: Tensor,
    start: Maybe, stop: Maybe, keep: Maybe, seed: Maybe, packed: Maybe,
    scale: float, groups: int, dropout: float, period: int, lead: list[int],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    sums = torch_operators.accumulation(a, b, weight, key_bias, value)
    with _device_of(a):
        found: tuple[Tensor, Tensor] = _kernels().forward(
            _functions(pair), a, b, weight, key_bias, value, start, stop, keep, seed, scale, groups,
            dropout, period, tuple(lead), sums,
        )  # fmt: skip
    return found


def backward(
    pair: str, a: Tensor, b: Tensor, weight: Maybe, key_bias: Maybe, value: Tensor,
    start: Maybe, stop: Maybe, keep: Maybe, seed: Maybe,
    output: Tensor, lse: Tensor, d_output: Tensor, d_lse: Tensor,
    scale: float, groups: int, dropout: float, period: int, lead: list[int],
) -> tuple[Tensor, ...]:  # fmt: skip
    with _device_of(a):
        found = _kernels().backward(
            _functions(pair), a, b, weight, key_bias, value, start, stop, keep, seed,
            output.contiguous(), lse.contiguous(), d_output, d_lse, scale, groups, dropout, period,
            tuple(lead),
        )  # fmt: skip
    inputs = a, b, weight, key_bias, value
    return tuple(
        lse.new_empty(0) if x is None or d is None else d.to(x.dtype)
        for x, d in zip(inputs, found, strict=True)
    )


def weights(
    pair: str, a: Tensor, b: Tensor, weight: Maybe, key_bias: Maybe,
    start: Maybe, stop: Maybe, keep: Maybe, lse: Tensor, scale: float, groups: int,
) -> Tensor:  # fmt: skip
    with _device_of(a):
        found: Tensor = _kernels().weights(
            _functions(pair), a, b, weight, key_bias, start, stop, keep, lse, scale, groups
        )
    return found
