"""JAX: the C++ core, and on NVIDIA GPUs the Pallas kernels.

JAX has no random state for seeds, and does not tell whether derivatives are wanted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from anyscore.backends.jax import autograd
from anyscore.backends.jax.buffers import JAXBuffers, device
from anyscore.backends.jax.sparse import sparse_weights
from anyscore.backends.record import (
    factors,
    how_core,
    operands_of,
    why_not,
    why_not_arrays,
    why_not_core,
    why_not_dtype,
    with_edges_by_key,
)
from anyscore.backends.reference.run import reference_in
from anyscore.call.backend import FUSED, Backend, Implementation, Result
from anyscore.call.operands import (
    N_DIFFERENTIABLE,
    TRAILING_NDIM,
    Operands,
    Results,
    Settings,
)
from anyscore.call.shards import Exchange, Part, Scheme, Sharded
from anyscore.call.task import Options, Task
from anyscore.kernels import tried
from anyscore.kernels.pallas import attention as pallas
from anyscore.kernels.xla import attention as xla
from anyscore.ops import Array, acc_dtype, load
from anyscore.ops.pytrees import register_pytrees
from anyscore.score.factors import Factors
from anyscore.score.pairs import pair_named

register_pytrees()

_xp = load("jax")

_OWN_RANK = TRAILING_NDIM._replace(seed=1)
"""The number of axes of each operand after its leading dimensions; a seed is two words."""


class JAX(Backend):
    """The C++ core or Pallas, else the reference."""

    xp = _xp
    reference = reference_in(_xp)
    buffers = JAXBuffers()

    def fused(self, task: Task) -> tuple[Implementation, ...]:
        return _FUSED[::-1] if pallas.INTERPRET else _FUSED

    def lacks_kernels(self, task: Task) -> bool:
        return bool(_why_not_on_cpu(task.first) and _why_not_on_gpu(task.first))

    def differentiable(self, tensors: Iterable[Array]) -> bool:
        return any(isinstance(x, jax.core.Tracer) for x in tensors)

    def draw_seed(self, query: Array) -> Array:
        raise ValueError(
            "dropout needs a dropout_seed in JAX, which keeps no generator: pass a key, such as "
            "jax.random.key(0), or an integer."
        )

    def sparse(self, scores: Array, power: int) -> Array:
        return sparse_weights(scores, power)

    def exchange(self, over: Any) -> Exchange:
        from anyscore.backends.jax.exchange import exchange_of

        return exchange_of(over)

    def attend_sharded(self, part: Part, sharded: Sharded, scheme: Scheme, fused: bool) -> Results:
        from anyscore.backends.jax.sharded import attend

        static = autograd.static_args(part.s, pair_named(part.s.pair))
        return attend(static, part._replace(x=_ready(part.x, part.s)), sharded, scheme, fused)

    def pack_keys(self, f: Factors) -> Array | None:
        if xla.problem() or _why_not_on_cpu(f.b) or why_not_dtype(str(f.b.dtype)):
            return None
        return autograd.prepare_keys(f.pair.name, jax.lax.stop_gradient(f.b))


def _why_not_core(task: Task, options: Options) -> str | None:
    """Return why the C++ core cannot run a task, None if it can."""
    return why_not_core(_xp, task, lambda x: xla.problem() or _why_not_on_cpu(x))


def _why_not_pallas(task: Task, options: Options) -> str | None:
    """Return why the Pallas kernels cannot run a task, None if they can."""
    return why_not(task) or why_not_arrays(_xp, factors(task), _why_not_on_gpu) or pallas.problem()


def _how_pallas(task: Task) -> str:
    """Return the reason of a plan, and the faster way that waits for the switch."""
    f = cast(Factors, task.score)
    return FUSED + tried.remark("pallas", f.pair.name, _xp.dtype(f.a))


def _why_not_on_cpu(x: Array) -> str | None:
    """Return why the core cannot read x: its device or the lowering platform; None on the CPU."""
    platform = device(x).platform
    return None if platform == "cpu" else f"it runs on the CPU, and the arrays are on {platform}"


def _why_not_on_gpu(x: Array) -> str | None:
    """Return why the Pallas kernels cannot read x, by its device or platform; None on CUDA."""
    if pallas.INTERPRET:
        return None
    platform = device(x).platform
    if platform == "gpu" and pallas.has_device():
        return None
    place = {"gpu": "another GPU", "cpu": "the CPU"}.get(platform, platform)
    return f"it runs on NVIDIA GPUs, Ampere or later, and the arrays are on {place}"


def _run(task: Task, options: Options, seed: Any) -> Result:
    x, s = operands_of(_xp, task, options, seed)
    if x.packed is not None and x.packed.dtype != acc_dtype(_xp, *x[:N_DIFFERENTIABLE]):
        x = x._replace(packed=None)
    x = with_edges_by_key(x, task)  # JAX does not tell whether gradients follow
    static = autograd.static_args(s, cast(Factors, task.score).pair)
    output, stats, scores = autograd.attend(_ready(x, s), static)
    return Result(None if output is None else output.astype(x.value.dtype), stats, scores)


def _ready(x: Operands, s: Settings) -> Operands:
    """Return operands of full rank: axes of size 1 before them; with the counter of dropout."""
    lead = s.lead
    if s.dropout:
        words = jnp.stack(_xp.words(x.seed))
        counter = jnp.arange(math.prod(lead), dtype=np.uint32).reshape(lead)
        x = x._replace(seed=words, counter=counter)

    def reshaped(y: Array | None, own: int) -> Array | None:
        missing = 0 if y is None else len(lead) + own - y.ndim
        return y.reshape((1,) * missing + y.shape) if y is not None and missing else y

    return Operands(*map(reshaped, x, _OWN_RANK))


_FUSED = (
    Implementation("cpu", _why_not_core, _run, how_core),
    Implementation("pallas", _why_not_pallas, _run, _how_pallas),
)
BACKEND = JAX()
