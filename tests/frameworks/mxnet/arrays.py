"""Conversions from NumPy's arrays to MXNet's and back, with computed values."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np


def to(x: Any, dtype: Any = None, kind: str = "np") -> Any:
    """Return `mx.np.ndarray`, or `mx.nd.NDArray` for kind "nd"; floats in `dtype` if given."""
    x = np.asarray(x)
    dtype = dtype if dtype is not None and x.dtype.kind == "f" else x.dtype
    array = mx.np.array if kind == "np" else mx.nd.array
    return array(x, dtype=dtype)


def numbers(x: Any) -> Any:
    return x.asnumpy()
