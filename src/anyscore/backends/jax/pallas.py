"""The tasks that the Pallas kernels take: on NVIDIA GPUs, those of any pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from anyscore.backends import record as common
from anyscore.call.task import Options, Task
from anyscore.kernels.pallas import attention as pallas
from anyscore.ops import Array


def why_not(task: Task, options: Options) -> str | None:
    """Return why the kernels cannot run a task, None if they can."""
    reason = common.why_not(task) or why_not_arrays(task, _why_not_here)
    return reason or pallas.problem()


def why_not_arrays(task: Task, why_not_here: Callable[[Array], str | None]) -> str | None:
    """Return why kernels cannot read the factors: where they are, or their dtype; None if they can.

    why_not_here: says so of one array.
    """
    for x in common.factors(task):
        if reason := why_not_here(x) or common.why_not_dtype(str(x.dtype)):
            return reason
    return None


def device(x: Array) -> Any:
    """Return the device that x is on; the default device, if x is traced."""
    return jax.devices()[0] if isinstance(x, jax.core.Tracer) else next(iter(x.devices()))


def _why_not_here(x: Array) -> str | None:
    """Return why the kernels cannot read x: where it is or will be, None for CUDA."""
    if pallas.INTERPRET:
        return None
    platform = device(x).platform
    if platform == "gpu" and pallas.has_device():
        return None
    place = {"gpu": "another GPU", "cpu": "the CPU"}.get(platform, platform)
    return f"it runs on NVIDIA GPUs, Ampere or later, and the arrays are on {place}"
