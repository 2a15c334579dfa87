"""What a training step costs: time and memory."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def now(device: torch.device) -> float:
    """Seconds on a steady clock, once the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


def peak_memory_mib(step: Callable[[], object], device: torch.device) -> float | None:
    """The most that `step` holds at once, beyond what was held before it, in MiB.

    On a GPU this is what PyTorch's allocator says. On the CPU the growth of the process would be
    mostly chance (pages once had are reused), so the tensors themselves are counted: what every
    operation makes, for as long as it lives; buffers that a single operation uses inside are not
    seen. None for other devices.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before: int = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        torch.cuda.synchronize(device)
        peak: int = torch.cuda.max_memory_allocated(device)
        return float((peak - before) / 2**20)
    if device.type != "cpu":
        return None
    live = _LiveTensors()
    with live:
        step()
    return live.peak / 2**20


def parameters(module: nn.Module) -> int:
    """How many numbers a module learns."""
    return sum(parameter.numel() for parameter in module.parameters())


class _LiveTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the storages that operations make while it is entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0
        self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if _is_tensor(leaf)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if _is_tensor(leaf):
                storage = leaf.untyped_storage()
                key = storage._cdata
                if key not in given and key not in self._known:
                    self._known.add(key)
                    self.bytes += storage.nbytes()
                    weakref.finalize(storage, self._gone, key, storage.nbytes())
        self.peak = max(self.peak, self.bytes)
        return result

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.bytes -= size


def _is_tensor(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
