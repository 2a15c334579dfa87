"""PyTorch."""

from __future__ import annotations

import math
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.jit._trace import TracerWarning

from anyscore.ops import DTYPES
from anyscore.ops.torch_masked import (  # noqa: F401 (of Ops)
    is_jit_tracing,
    masked_scores,
    masked_sum,
)
from anyscore.ops.words import WORD, add_word, signed, words  # noqa: F401 (of Ops)

_NAMES = {getattr(torch, name): name for name in (*DTYPES, "int64", "bool")}

# Under torch.jit.trace sizes are tensors, and each comparison of sizes warns, also in checks.
warnings.filterwarnings("ignore", category=TracerWarning, module=r"anyscore\.")

where = torch.where
logical_and = torch.logical_and
logical_not = torch.logical_not
isfinite = torch.isfinite
exp = torch.exp
log = torch.log
expm1 = torch.expm1
log1p = torch.log1p
sin = torch.sin
cos = torch.cos
erf = torch.erf
tanh = torch.tanh
sqrt = torch.sqrt
abs = torch.abs
ceil = torch.ceil
broadcast_to = torch.broadcast_to
reshape = torch.reshape


def index_dtype() -> str:
    return "int64"


def array(x: Any, like: Tensor) -> Tensor:
    if isinstance(x, Tensor) and x.device == like.device:
        return x
    if isinstance(x, np.ndarray):
        x = x.copy()  # PyTorch warns of read-only arrays and refuses negative strides
    return torch.as_tensor(x, device=like.device)


def matmul(x: Tensor, y: Tensor) -> Tensor:
    # For one column, or strides of 0, BLAS adds hundreds of terms in sequence; not for one row.
    if y.shape[-1] != 1 or not x.is_cpu or x.dtype.itemsize == 2:
        return torch.matmul(x, y)
    row = y.transpose(-2, -1)
    if y.dim() == 2:
        return torch.nn.functional.linear(x, row.contiguous())
    return (x * row).sum(-1, keepdim=True)


def tensor(x: Tensor, like: Tensor) -> Tensor:
    return x


def copy(x: Tensor) -> Tensor:
    return x.clone()


def device(x: Tensor) -> Any:
    return x.device


def placement(x: Tensor) -> Any:
    return x.device, x.layout, x.is_nested


def layout_problem(x: Tensor) -> str | None:
    if x.is_nested:
        return (
            "a nested tensor: pass torch.nested.to_padded_tensor(x, 0.0), and the lengths as "
            "valid_lens="
        )
    if type(x).__name__ == "MaskedTensor":
        return "a MaskedTensor: pass x.get_data(), and which keys to attend as mask=Keys(keep)"
    if x.layout == torch.strided:
        return None
    return f"of layout {x.layout}: pass x.to_dense()"


def shape(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)


def dtype(x: Tensor) -> str:
    return _NAMES.get(x.dtype) or str(x.dtype).removeprefix("torch.")


def astype(x: Tensor, dtype: str) -> Tensor:
    return x.to(getattr(torch, dtype))


def arange(n: int, like: Tensor) -> Tensor:
    return torch.arange(n, device=like.device)


def transpose(x: Tensor) -> Tensor:
    return x.transpose(-1, -2) if is_jit_tracing() else x.mT  # faster, but absent from ONNX


def swapaxes(x: Tensor, one: int, other: int) -> Tensor:
    return x.transpose(one, other)


def stack(xs: list[Tensor], axis: int) -> Tensor:
    return torch.stack(xs, dim=axis)


def concat(xs: list[Tensor], axis: int) -> Tensor:
    return torch.cat(xs, dim=axis)


def minimum(x: Tensor, y: Any) -> Tensor:
    return torch.minimum(x, y) if isinstance(y, Tensor) else torch.clamp(x, max=y)


def maximum(x: Tensor, y: Any) -> Tensor:
    return torch.maximum(x, y) if isinstance(y, Tensor) else torch.clamp(x, min=y)


def clip(x: Tensor, low: int, high: int) -> Tensor:
    return torch.clamp(x, low, high)


def sum(x: Tensor, axis: int, keepdims: bool = False) -> Tensor:
    return torch.sum(x, dim=axis, keepdim=keepdims)


def add_pair(x: Tensor) -> Tensor:
    return x.sum(-2)  # a third of the time of two parts and their sum


def max(x: Tensor, axis: int, keepdims: bool = False) -> Tensor:
    return torch.amax(x, dim=axis, keepdim=keepdims)


def any(x: Tensor, axis: int, keepdims: bool = False) -> Tensor:
    return torch.any(x, dim=axis, keepdim=keepdims)


def cumsum(x: Tensor) -> Tensor:
    return torch.cumsum(x, dim=-1)


def count(x: Tensor, n: int) -> Tensor:
    return x.new_zeros((*x.shape[:-1], n)).scatter_add(-1, x, torch.ones_like(x))


def take(x: Tensor, index: Tensor) -> Tensor:
    if x.dim() == index.dim() == 1:
        return torch.gather(x, 0, index)
    # torch.broadcast_shapes would load SymPy, which takes a second.
    both = torch.broadcast_tensors(x[..., :1], index[..., :1])  # type: ignore[no-untyped-call]
    lead = both[0].shape[:-1]
    return torch.gather(x.expand(*lead, -1), -1, index.expand(*lead, -1))


def index_select(x: Tensor, places: list[int], axis: int) -> Tensor:
    return x.index_select(axis, torch.tensor(places, device=x.device))


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    return x.index_select(-2, index)


def argsort(x: Tensor) -> Tensor:
    return torch.argsort(x, stable=True)


def segment_sum(x: Tensor, index: Tensor, n: int) -> Tensor:
    return x.new_zeros((*x.shape[:-2], n, x.shape[-1])).index_add(-2, index, x)


def segment_max(x: Tensor, index: Tensor, n: int) -> Tensor:
    most = x.new_full((*x.shape[:-1], n), -math.inf)
    return most.scatter_reduce(-1, index.expand(x.shape), x.detach(), "amax")


def outside_inference() -> AbstractContextManager[Any]:
    # A backward may not save tensors of inference mode, not even integers.
    leaves = not torch.compiler.is_compiling() and torch.is_inference_mode_enabled()
    return torch.inference_mode(False) if leaves else nullcontext()


def stop_gradient(x: Tensor) -> Tensor:
    return x.detach()


def seed(x: Any, like: Tensor) -> Tensor:
    x = signed(x) if isinstance(x, int) else x
    return array(x, like=like).to(torch.int64)


def multiply_words(x: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    # int64 products wrap around; their low 64 bits are those of the unsigned product.
    product = x * factor
    return (product >> 32) & WORD, product & WORD


def is_tracing() -> bool:
    return torch.compiler.is_compiling() or is_jit_tracing()
