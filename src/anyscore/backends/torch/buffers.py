"""PyTorch: buffers of growing caches, written in place, also in compiled calls."""

from __future__ import annotations

import torch
from torch import Tensor

from anyscore.backends.torch.core import DTYPES_OF_KERNELS
from anyscore.backends.torch.modes import (
    is_compiling,
    is_forward_mode,
    is_plain,
    is_transforming,
    must_dispatch,
)
from anyscore.backends.torch.operators import acc_dtype, array, library
from anyscore.kernels import cpu


def _pack(pair: str, b: Tensor, packed: Tensor, start: Tensor | int, count: int) -> None:
    threads = torch.get_num_threads()
    cpu.append_keys(pair, array(b), array(packed), int(start), count, threads)


_OPERATOR = "append_keys(str pair, Tensor b, Tensor(a!) packed, Tensor start, SymInt count) -> ()"
library.define(_OPERATOR)  # type: ignore[no-untyped-call]
library.impl("append_keys", _pack, "CPU")  # type: ignore[no-untyped-call]
torch.library.register_fake("anyscore::append_keys", lambda *args: None, lib=library)


class TorchBuffers:
    """See `call.backend.Buffers`."""

    in_place = True

    def zeros(self, shape: tuple[int, ...], like: Tensor, dtype: str | None = None) -> Tensor:
        return like.new_zeros(shape, dtype=getattr(torch, dtype) if dtype else like.dtype)

    def empty_view(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        return like.new_zeros(()).expand(shape)

    def concrete_int(self, x: Tensor) -> int | None:
        return int(x) if self._is_known(x) else None

    def concrete_ints(self, x: Tensor) -> list[int] | None:
        return x.tolist() if self._is_known(x) else None

    def _is_known(self, x: Tensor) -> bool:
        return not (is_compiling() or is_transforming()) and x.is_cpu and is_plain(x)

    def why_not(self, *rows: Tensor) -> str | None:
        if torch.is_grad_enabled() and any(x.requires_grad for x in rows):
            return (
                "is written to in place, and keeps no graph: append under torch.no_grad() or "
                "torch.inference_mode(), or detached keys and values with a detached score"
            )
        return None

    def write_rows(self, x: Tensor, rows: Tensor, start: Tensor | int, wraps: bool) -> Tensor:
        count = rows.shape[-2]
        if isinstance(start, int) and start + count <= x.shape[-2]:
            x.narrow(-2, start, count).copy_(rows)
            return x
        places = start + torch.arange(count, device=x.device)
        return x.index_copy_(-2, places % max(x.shape[-2], 1) if wraps else places, rows)

    def add(self, x: Tensor, n: int) -> Tensor:
        return x.add_(n)

    def reorder_batch(self, x: Tensor, index: Tensor, rows: int | None) -> Tensor:
        some = x if rows is None else x[..., :rows, :]
        some.copy_(some.index_select(0, index))
        return x

    def pack(self, pair: str, b: Tensor, packed: Tensor, start: Tensor | int, count: int) -> Tensor:
        if must_dispatch(b, packed):
            start = torch.tensor(start) if isinstance(start, int) else start
            torch.ops.anyscore.append_keys(pair, b, packed, start, count)
        else:
            _pack(pair, b, packed, start, count)
        return packed

    def packed_buffer(self, b: Tensor) -> Tensor | None:
        if not b.is_cpu or b.dtype not in DTYPES_OF_KERNELS or not is_plain(b):
            return None
        if is_transforming() or is_forward_mode():
            return None
        *lead, keys, width = b.shape
        return b.new_zeros((*lead, keys + 1, width), dtype=acc_dtype(b))
