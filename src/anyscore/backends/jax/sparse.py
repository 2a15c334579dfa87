"""Sparsemax and entmax-1.5 in JAX: by the C++ core on the CPU, by the reference elsewhere.

The derivative is explicit, in operations that JAX can differentiate and transpose:

    dw_i = g_i (ds_i − Σ_j g_j ds_j / Σ_j g_j)        g = 1 where w > 0, or √w for entmax-1.5
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from anyscore.backends.jax.autograd import targets, vary_like
from anyscore.kernels.xla import attention as xla
from anyscore.modifiers.normalizers import POWERS, sparse
from anyscore.ops import Array, load
from anyscore.ops.jax_primitives import unless_exported

_xp = load("jax")
_NAMES = {power: name for name, power in POWERS.items()}


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def sparse_weights(scores: Array, power: int) -> Array:
    """Return `normalizers.sparse` of scores (..., T_q, T_k)."""
    made: Array = _compute(scores, power)
    return made


@sparse_weights.defjvp
def _jvp(power: int, primals: Any, tangents: Any) -> tuple[Array, Array]:
    w, d = sparse_weights(*primals, power), tangents[0]
    none = w == 0  # False for NaN
    g = jnp.where(none, 0.0, 1.0 + 0 * w if power == 1 else jnp.sqrt(jnp.where(none, 1.0, w)))
    d = jnp.where(none, 0.0, d)
    total = g.sum(-1, keepdims=True)
    mean = (g * d).sum(-1, keepdims=True) / jnp.where(total == 0, 1.0, total)
    return w, jnp.where(none, 0.0, g * (d - mean))


@partial(jax.jit, static_argnums=1, inline=True)
def _compute(scores: Array, power: int) -> Array:
    def by_core(s: Array) -> Array:
        return vary_like(xla.sparse(_NAMES[power], s), s)

    def defined(s: Array) -> Array:
        return sparse(_xp, s, power)

    def quickest(s: Array) -> Array:
        if xla.problem() or not s.size:
            return defined(s)
        if "cuda" not in targets():
            return by_core(s)
        made: Array = jax.lax.platform_dependent(s, cpu=by_core, cuda=defined)
        return made

    made: Array = unless_exported(quickest, defined, scores)
    return made
