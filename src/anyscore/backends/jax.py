"""JAX: the C++ core and Pallas; no state to draw seeds from, and no way to ask for derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anyscore.backends import jax_autograd, jax_pallas
from anyscore.backends.common import obstacle as why_not  # at the merge: common.why_not
from anyscore.backends.common import unpack
from anyscore.backends.jax_autograd import operands  # at the merge: common.operands
from anyscore.backends.jax_pallas import why_not_arrays
from anyscore.factors import TANH, Factors
from anyscore.implementations import Implementation
from anyscore.kernels.pallas import attention as pallas
from anyscore.kernels.xla import attention as xla
from anyscore.kernels.xla.call import acc_dtype
from anyscore.operands import Operands
from anyscore.ops import DTYPES, Array, load
from anyscore.task import Task

_xp = load("jax")

_OWN_RANK = Operands(
    a=2, b=2, weight=1, key_bias=1, value=2, start=1, stop=1, mask=2, seed=1, packed=2, counter=0
)
"""The number of axes of each operand that are not leading dimensions."""


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
        or _why_not_here(f.b)
        or str(f.b.dtype) not in DTYPES
    ):
        return None
    return jax_autograd.prepare_keys(f.pair.name, jax.lax.stop_gradient(f.b))


def _why_not_core(task: Task, dropout: float, return_lse: bool) -> str | None:
    """Return why the C++ core cannot run a task, None if it can."""
    reason = why_not(task) or xla.problem()
    return reason or why_not_arrays(unpack(task)[0], _why_not_here)


def _why_not_here(x: Array) -> str | None:
    """Return why the core cannot read x: where it is or will be, None for the CPU."""
    platform = jax_pallas.device(x).platform
    return None if platform == "cpu" else f"it runs on the CPU, and the arrays are on {platform}"


def _run(task: Task, dropout: float, seed: Any) -> tuple[Array, Array]:
    lead, x = task.sizes.lead, operands(task)
    if dropout:
        words = jnp.stack(_xp.words(_xp.seed(seed, like=task.value)))
        counter = jnp.arange(math.prod(lead), dtype=np.uint32).reshape(lead)
        x = x._replace(seed=words, counter=counter)
    if task.packed is not None and task.packed.dtype == acc_dtype(jax.tree.leaves(x)):
        x = x._replace(packed=task.packed)
    output, lse = jax_autograd.attend(_full_rank(x, lead), jax_autograd.static_args(task, dropout))
    return output.astype(task.value.dtype), lse


def _weights(task: Task, lse: Array) -> Array:
    x = _full_rank(operands(task)._replace(value=None), task.sizes.lead)
    return jax_autograd.weights(x, jax_autograd.static_args(task, 0.0), lse).astype(task.dtype)


def _full_rank(x: Operands, lead: tuple[int, ...]) -> Operands:
    """Prepend axes of size 1 to each operand until it has len(lead) axes and its own."""

    def reshaped(y: Array | None, own: int) -> Array | None:
        missing = 0 if y is None else len(lead) + own - y.ndim
        return y.reshape((1,) * missing + y.shape) if y is not None and missing else y

    return Operands(*map(reshaped, x, _OWN_RANK))


_ROUTES = (
    Implementation("cpu", _why_not_core, _run, _weights),
    Implementation("pallas", jax_pallas.why_not, _run, _weights),
)


def routes(task: Task) -> tuple[Implementation, ...]:
    return _ROUTES[::-1] if pallas.INTERPRET else _ROUTES
