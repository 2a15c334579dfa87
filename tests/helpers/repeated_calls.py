"""Helpers for tests of PyTorch's repeated calls: forget calls, and recognise a repeated one."""

from __future__ import annotations

from torch import Tensor

from anyscore.backends.torch import repeated
from anyscore.call.backend import REPEATED


def forget() -> None:
    """Forget all earlier calls."""
    for known in REPEATED.values():
        vars(known)["calls"].clear()
    repeated._calls.clear()


def is_repeated(output: Tensor) -> bool:
    """Return whether the call that gave this output, with gradients, was repeated."""
    return type(output.grad_fn).__name__ == "_TrainedBackward"
