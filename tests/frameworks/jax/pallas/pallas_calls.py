"""Helpers run calls drawn by the tests of the C++ core in Pallas' interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anyscore.backends.jax import autograd
from anyscore.call.operands import N_DIFFERENTIABLE, Operands, Results, Settings
from anyscore.kernels import tried
from anyscore.kernels.pallas.attention import StaticArgs
from anyscore.ops import load
from anyscore.score.pairs import ABSOLUTE, LEAKY_RELU, PRODUCT, SQUARED, TANH, Pair
from core import literal, raw
from core.call import DTYPES as DTYPES
from core.call import Call as Call
from core.call import stored as stored
from core.draw import MASKS as MASKS
from core.draw import draw as draw

SOFTSIGN = Pair("softsign", lambda xp, a, b: (a - b) / (1 + xp.abs(a - b)))
"""A pair that the package lacks."""
literal.VALUE["softsign"] = lambda a, b: (a - b) / (1 + np.abs(a - b))
literal.SLOPES["softsign"] = lambda a, b: (
    (1 + np.abs(a - b)) ** -2.0,
    -((1 + np.abs(a - b)) ** -2.0),
)
literal.SIZE["softsign"] = lambda a, b: np.minimum(np.abs(a - b), 1)

PAIRS = {x.name: x for x in (PRODUCT, TANH, LEAKY_RELU, ABSOLUTE, SQUARED, SOFTSIGN)}


def run(call: Call, **settings: Any) -> literal.Results:
    """Return output, stats, lse, scores, weights, and a gradient d_x for each operand x.

    settings: settings that a `Call` lacks.
    """
    return numbers(_results(*arguments(call, **settings)))


def arguments(call: Call, **settings: Any) -> tuple[Operands, StaticArgs, Results]:
    """Return operands, static arguments and upstream gradients of a call."""
    names = *literal.OF_FLOATS, "start", "stop"
    x = Operands(**{n: array(getattr(call, n)) for n in names}, mask=array(call.mask))
    if call.dropout:
        xp = load("numpy")
        words = np.array(xp.words(xp.seed(call.seed, call.a)), np.uint32)
        seed = jnp.asarray(words).reshape(*(1,) * len(call.lead), 2)
        count = np.arange(np.prod(call.lead, dtype=int)) % call.repeats
        x = x._replace(seed=seed, counter=jnp.asarray(count.astype(np.uint32)).reshape(call.lead))
    d_stats = raw.d_stats(call)
    d_stats = np.zeros((*call.lead, 2, call.queries)) if d_stats is None else d_stats
    scores = *call.lead, call.queries, call.keys
    d_scores = np.zeros(scores) if call.d_scores is None else call.d_scores
    upstream = Results(
        array(call.d_output).astype(call.compute),
        *(jnp.asarray(d, call.compute) for d in (d_stats, d_scores)),
    )
    same = {"outer": call.outer, "outer_scale": call.outer_scale}
    same |= {"bias_is_diagonal": call.diagonal, "bias_after_outer": call.after}
    s = Settings(
        call.pair, call.scale, call.groups, call.dropout, call.repeats, call.lead,
        **{**same, "scores": True, **settings},
    )  # fmt: skip
    return x, StaticArgs(s, PAIRS[call.pair], ("interpret",), tried.is_switched_on()), upstream


def results(x: Operands, s: StaticArgs, upstream: Results) -> dict[str, Any]:
    """Return all results of the kernels by name."""

    def forward(*factors: jax.Array | None) -> Results:
        return autograd.attend(Operands(*factors, *x[N_DIFFERENTIABLE:]), s)

    found, backward = jax.vjp(forward, *x[:N_DIFFERENTIABLE])
    gradients = zip(Operands._fields, backward(upstream), strict=False)
    made = {f"d_{name}": d for name, d in gradients if d is not None}
    lse = found.stats.sum(-2)
    stats = jnp.where(jnp.isnan(lse)[..., None, :], jnp.nan, found.stats)  # NaN in both
    return {
        **found._asdict(),
        "stats": stats,
        "lse": lse,
        "weights": raw.weights_of(jnp, found.scores, found.stats),
        **made,
    }


_results = jax.jit(results, static_argnums=1)


def numbers(found: dict[str, Any]) -> literal.Results:
    """Return results as NumPy arrays, bfloat16 as int16."""
    arrays = {name: np.asarray(x) for name, x in found.items()}
    return {n: x.view(np.int16) if x.dtype == jnp.bfloat16 else x for n, x in arrays.items()}


def array(x: np.ndarray | None) -> Any:
    """Return a JAX array; int16 holds bfloat16."""
    if x is None:
        return None
    x = np.ascontiguousarray(x)
    return jnp.asarray(x.view(jnp.bfloat16) if x.dtype == np.int16 else x)


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yield all equations of a program, those of its kernels, loops and branches as well."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(inner, "eqns"):
                yield from equations(getattr(inner, "jaxpr", inner))


def check(call: Call, **how: Any) -> literal.Results:
    """Apply `raw.check`, the assertions on the core, to the Pallas kernels."""
    core, raw.run = raw.run, run
    try:
        return raw.check(call, **how)
    finally:
        raw.run = core
