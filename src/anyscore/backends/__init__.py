"""Backends: the kernels, derivatives, generators and autocasting of each framework."""

from __future__ import annotations

from anyscore.implementations import Backend


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
