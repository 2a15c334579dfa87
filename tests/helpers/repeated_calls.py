"""Helpers for tests of PyTorch's calls that come again: forget them, and tell whether one was."""

from __future__ import annotations

from torch import Tensor

from anyscore.backends.torch import repeated
from anyscore.call.backend import REPEATED


def forget() -> None:
    """Forget all calls that came before."""
    for known in REPEATED.values():
        vars(known)["calls"].clear()
    repeated._calls.clear()


def is_repeated(output: Tensor) -> bool:
    """Return whether the call that gave this output, with gradients, was repeated."""
    return type(output.grad_fn).__name__ == "_TrainedBackward"
