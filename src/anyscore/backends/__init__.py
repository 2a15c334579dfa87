"""What each framework adds to the shared path: generators, autocasting, its own fused attention."""

from __future__ import annotations

from typing import cast

from anyscore.implementations import Backend


def load(name: str) -> Backend:
    """The backend of one framework, by its key in `anyscore.ops.FRAMEWORKS`."""
    # Plain import statements: torch.compile follows them, but not importlib.
    if name == "torch":
        from anyscore.backends import torch as backend
    elif name == "jax":
        from anyscore.backends import jax as backend  # type: ignore[no-redef]
    elif name == "tensorflow":
        from anyscore.backends import tensorflow as backend  # type: ignore[no-redef]
    elif name == "mxnet":
        from anyscore.backends import mxnet as backend  # type: ignore[no-redef]
    else:
        from anyscore.backends import numpy as backend  # type: ignore[no-redef]
    return cast(Backend, backend)
