"""Backends: the kernels, derivatives, generators and autocasting of each framework."""

from __future__ import annotations

from anyscore.again import KNOWN, Again
from anyscore.implementations import Backend
from anyscore.ops import Array


def load(name: str) -> Backend:
    """The backend of one framework, by its key in `anyscore.ops.FRAMEWORKS`."""
    # Plain import statements: torch.compile follows them, but not importlib.
    if name == "torch":
        from anyscore.backends.torch import BACKEND
    elif name == "jax":
        from anyscore.backends.jax import BACKEND  # type: ignore[assignment]
    elif name == "tensorflow":
        from anyscore.backends.tensorflow import BACKEND  # type: ignore[assignment]
    elif name == "mxnet":
        from anyscore.backends.mxnet import BACKEND  # type: ignore[assignment]
    else:
        from anyscore.backends.numpy import BACKEND  # type: ignore[assignment]
    return BACKEND


def repeats(x: Array) -> Again | None:
    """Find the object that repeats calls with x; None where there is none."""
    if hasattr(x, "__torch_function__"):  # a compiler would guard KNOWN, which others add to
        import anyscore.backends.torch

        return anyscore.backends.torch.AGAIN
    return KNOWN.get(type(x))
