"""JAX: the C++ core and Pallas; no state to draw seeds from, and no way to ask for derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from anyscore.backends import jax_autograd, jax_pallas
from anyscore.backends.common import obstacle, tensors, unpack
from anyscore.factors import TANH, Factors
from anyscore.implementations import Implementation
from anyscore.kernels.pallas import attention as pallas
from anyscore.kernels.xla import attention as xla
from anyscore.ops import DTYPES, Array, load
from anyscore.task import Task

_xp = load("jax")


def precision(query: Array) -> tuple[Callable[[], AbstractContextManager[Any]], str | None]:
    return nullcontext, None


def draw_seed(query: Array) -> Array:
    raise ValueError(
        "dropout needs a dropout_seed in JAX, which keeps no generator: pass a key, such as "
        "jax.random.key(0), or an integer."
    )


def differentiable(tensors: Iterable[Array]) -> bool:
    return any(isinstance(x, jax.core.Tracer) for x in tensors)


def pack_keys(f: Factors) -> Array | None:
    if (
        f.pair != TANH
        or xla.problem() is not None
        or _elsewhere(f.b)
        or str(f.b.dtype) not in DTYPES
    ):
        return None
    return jax_autograd.prepare_keys(f.pair.name, jax.lax.stop_gradient(f.b))


def _usable(task: Task, dropout: float, return_lse: bool) -> str | None:
    reason = obstacle(task) or xla.problem()
    if reason is not None:
        return reason
    for x in tensors(cast(Factors, task.score)):
        if place := _elsewhere(x):
            return f"it runs on the CPU, and the arrays are on {place}"
        if str(x.dtype) not in DTYPES:
            return f"a factor of the score is {x.dtype}"
    return None


def _elsewhere(x: Array) -> str | None:
    """The platform that x is or will be on, None for the CPU."""
    if isinstance(x, jax.core.Tracer):
        platform = jax.default_backend()
    else:
        platform = next(iter(x.devices())).platform
    return None if platform == "cpu" else platform


def _run(task: Task, dropout: float, seed: Any) -> tuple[Array, Array]:
    factors, others = _operands(task)
    factors["value"] = _filled(task, task.value, 2)
    if dropout:
        lead = task.sizes.lead
        words = jnp.stack(_xp.words(_xp.seed(seed, like=task.value)))
        others["seed"] = words.reshape((1,) * len(lead) + (2,))
        others["counter"] = jnp.arange(math.prod(lead), dtype=np.uint32).reshape(lead)
    sums = np.result_type(np.float32, *(x.dtype for x in factors.values() if x.dtype == np.float64))
    if task.packed is not None and task.packed.dtype == sums:
        others["packed"] = _filled(task, task.packed, 2)
    output, lse = jax_autograd.attend(jax_autograd.told(task, dropout), factors, others)
    return output.astype(task.value.dtype), lse


def _weights(task: Task, lse: Array) -> Array:
    factors, others = _operands(task)
    found = jax_autograd.weights(jax_autograd.told(task, 0.0), factors | others | {"lse": lse})
    return found.astype(task.dtype)


def _operands(task: Task) -> tuple[dict[str, Array], dict[str, Array]]:
    """Factors and bounds that are given, of full rank, by name."""
    f, m = unpack(task)
    factors = {"a": (f.a, 2), "b": (f.b, 2), "weight": (f.weight, 1), "key_bias": (f.key_bias, 1)}
    bounds = {"start": (m.start, 1), "stop": (m.stop, 1), "keep": (m.keep, 2)}

    def filled(named: dict[str, Any]) -> dict[str, Array]:
        return {name: _filled(task, x, own) for name, (x, own) in named.items() if x is not None}

    return filled(factors), filled(bounds)


def _filled(task: Task, x: Array, own: int) -> Array:
    """x with leading dimensions of 1 to those of the task; `own` others are its own."""
    missing = len(task.sizes.lead) + own - x.ndim
    return x.reshape((1,) * missing + x.shape) if missing else x


_ROUTES = (
    Implementation("cpu", _usable, _run, _weights),
    Implementation("pallas", jax_pallas.usable, _run, _weights),
)


def routes(task: Task) -> tuple[Implementation, ...]:
    return _ROUTES[::-1] if pallas.INTERPRET else _ROUTES
