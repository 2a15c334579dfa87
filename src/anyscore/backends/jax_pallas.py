"""Which tasks the Pallas kernels take: on NVIDIA GPUs, those of any pair."""

from __future__ import annotations

from typing import Any

import jax

from anyscore.backends.common import tensors, unfit, unpack
from anyscore.kernels.pallas import attention as pallas
from anyscore.ops import DTYPES, Array
from anyscore.task import Task


def usable(task: Task, dropout: float, return_lse: bool) -> str | None:
    """Why the kernels cannot run a task, None if they can."""
    if reason := unfit(task):
        return reason
    for x in tensors(unpack(task)[0]):
        if place := _elsewhere(x):
            return f"it runs on NVIDIA GPUs, Ampere or later, and the arrays are on {place}"
        if str(x.dtype) not in DTYPES:
            return f"a factor of the score is {x.dtype}"
    return pallas.problem()


def _elsewhere(x: Array) -> str | None:
    """What x is or will be on, None for CUDA."""
    if pallas.INTERPRET:
        return None
    device: Any = jax.devices()[0] if isinstance(x, jax.core.Tracer) else next(iter(x.devices()))
    if device.platform == "gpu":
        return None if pallas.has_device() else "another GPU"
    return "the CPU" if device.platform == "cpu" else str(device.platform)
