"""Calls as the tests of the C++ core draw them, computed by Pallas' interpreter."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.append(str(Path(__file__).parents[2] / "core"))

import literal
import raw
from call import DTYPES as DTYPES
from call import Call as Call
from call import stored as stored
from draw import MASKS as MASKS
from draw import draw as draw

from anyscore.backends import jax_autograd
from anyscore.backends.common import Settings
from anyscore.factors import ABSOLUTE, LEAKY_RELU, PRODUCT, SQUARED, TANH, Pair
from anyscore.ops import load

SOFTSIGN = Pair("softsign", lambda xp, a, b: (a - b) / (1 + xp.abs(a - b)))
"""A pair that the package does not have."""
literal.VALUE["softsign"] = lambda a, b: (a - b) / (1 + np.abs(a - b))
literal.SLOPES["softsign"] = lambda a, b: (
    (1 + np.abs(a - b)) ** -2.0,
    -((1 + np.abs(a - b)) ** -2.0),
)
literal.SIZE["softsign"] = lambda a, b: np.minimum(np.abs(a - b), 1)

PAIRS = {x.name: x for x in (PRODUCT, TANH, LEAKY_RELU, ABSOLUTE, SQUARED, SOFTSIGN)}


def run(call: Call) -> literal.Results:
    """output, lse, weights, and a gradient d_x for each operand x."""
    names = *literal.OF_FLOATS, "start", "stop", "keep"
    operands = {n: array(getattr(call, n)) for n in names if getattr(call, n) is not None}
    factors = {n: operands.pop(n) for n in literal.OF_FLOATS if n in operands}
    if call.dropout:
        xp = load("numpy")
        words = np.array(xp.words(xp.seed(call.seed, call.a)), np.uint32)
        operands["seed"] = jnp.asarray(words).reshape(*(1,) * len(call.lead), 2)
        count = np.arange(np.prod(call.lead, dtype=int)) % call.repeats
        operands["counter"] = jnp.asarray(count.astype(np.uint32)).reshape(call.lead)
    d_lse = np.zeros((*call.lead, call.queries)) if call.d_lse is None else call.d_lse
    before = array(call.d_output).astype(call.compute), jnp.asarray(d_lse, call.compute)
    settings = Settings(call.pair, call.scale, call.groups, call.dropout, call.repeats, call.lead)
    told = jax_autograd.Told(settings, PAIRS[call.pair], ("interpret",))
    found = {name: np.asarray(x) for name, x in _results(told, factors, operands, before).items()}
    return {n: x.view(np.int16) if x.dtype == jnp.bfloat16 else x for n, x in found.items()}


@partial(jax.jit, static_argnums=0)
def _results(told: Any, factors: Any, others: Any, before: Any) -> Any:
    (output, lse), backward = jax.vjp(lambda x: jax_autograd.attend(told, x, others), factors)
    (gradients,) = backward(before)
    unread = "value", "seed", "counter"
    operands = {n: x for n, x in (factors | others).items() if n not in unread} | {"lse": lse}
    results = {
        "output": output,
        "lse": lse,
        "weights": jax_autograd._computed(told, "weights", operands),
    }
    return results | {f"d_{name}": x for name, x in gradients.items()}


def array(x: np.ndarray) -> jax.Array:
    """In JAX; what is held as int16 is bfloat16."""
    x = np.ascontiguousarray(x)
    return jnp.asarray(x.view(jnp.bfloat16) if x.dtype == np.int16 else x)


def check(call: Call, **how: Any) -> literal.Results:
    """What `raw.check` asserts of the core, of what Pallas computes."""
    core, raw.run = raw.run, run
    try:
        return raw.check(call, **how)
    finally:
        raw.run = core
