"""What each framework adds to the shared path: generators, autocasting, its own fused attention."""

from __future__ import annotations

from typing import cast

from anyscore.routes import Seam


def load(name: str) -> Seam:
    """The seam of one framework, by its key in `anyscore.ops.FRAMEWORKS`."""
    # Plain import statements: torch.compile follows them, but not importlib.
    if name == "torch":
        from anyscore.seams import torch as seam
    elif name == "jax":
        from anyscore.seams import jax as seam  # type: ignore[no-redef]
    elif name == "tensorflow":
        from anyscore.seams import tensorflow as seam  # type: ignore[no-redef]
    elif name == "mxnet":
        from anyscore.seams import mxnet as seam  # type: ignore[no-redef]
    else:
        from anyscore.seams import numpy as seam  # type: ignore[no-redef]
    return cast(Seam, seam)
