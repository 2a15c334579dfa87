"""Softcap in the Pallas kernels, in the interpreter: c · tanh(s / c) of the scores before masks and
softmax, in values and all gradients, against the literal formula in float64."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_calls import PAIRS, QUICK, results

from anyscore import dropout
from anyscore.kernels.pallas.attention import StaticArgs
from anyscore.operands import FACTORS, Operands, Results, Settings
from anyscore.ops import load

LEAD, GROUPS, T_K, D, D_V = (2, 4), 2, 37, 5, 3
SEED = 11
VALUE: dict[str, Any] = {
    "product": lambda a, b: a * b,
    "tanh": lambda a, b: jnp.tanh(a + b),
    "leaky_relu": lambda a, b: jnp.where(a + b > 0, a + b, 0.2 * (a + b)),
    "absolute": lambda a, b: jnp.abs(a - b),
    "squared": lambda a, b: (a - b) ** 2,
    "softsign": lambda a, b: (a - b) / (1 + jnp.abs(a - b)),
}
"""The pairs, written once more."""
CASES: dict[str, tuple[int, float, float, tuple[str, ...]]] = {
    "small": (1, 0.5, 0.4, ("weight", "key_bias", "start", "stop")),
    "large": (65, 50.0, 0.3, ("weight", "key_bias", "mask")),
    "plain": (3, 2.0, 0.0, ()),
}
"""Queries, cap, rate of dropout, and the operands that there are beside a, b and value."""
ROWS = [
    ("product", "plain"), ("tanh", "large"), ("leaky_relu", "small"), ("absolute", "large"),
    ("softsign", "small"),
]  # fmt: skip
"""The pairs whose float64 has no cap in test_pallas_table.py, and one without other operands."""


def drawn(
    pair: str, queries: int, rate: float, names: tuple[str, ...], dtype: Any = np.float64
) -> tuple[Operands, Results]:
    """Operands and upstream gradients of a call: two query heads share a key head."""
    rng = np.random.default_rng(list(PAIRS).index(pair))
    keys = (LEAD[0], LEAD[1] // GROUPS, T_K)
    start = rng.integers(0, 9, (*LEAD, queries))
    mask = rng.random((*LEAD, queries, T_K)) < 0.6
    mask[..., queries // 2, :] &= queries == 1  # a query that attends nothing
    drawn: dict[str, Any] = {
        "weight": rng.standard_normal((1, LEAD[1], D)),
        "key_bias": rng.standard_normal(keys),
        "start": start,
        "stop": start + rng.integers(0, T_K, (*LEAD, queries)),
        "mask": mask,
    }
    given = {name: drawn[name] for name in names}
    floats = {
        "a": rng.standard_normal((*LEAD, queries, D)) * 2,
        "b": rng.standard_normal((*keys, D)),
        "value": rng.standard_normal((*keys, D_V)),
    }
    given |= floats
    made = {n: x.astype(dtype) if x.dtype == np.float64 else x for n, x in given.items()}
    if rate:
        xp = load("numpy")
        words = np.array(xp.words(xp.seed(SEED, floats["a"])), np.uint32)
        count = np.arange(np.prod(LEAD)).astype(np.uint32)
        made |= {"seed": words.reshape(1, 1, 2), "counter": count.reshape(LEAD)}
    upstream = rng.standard_normal((*LEAD, queries, D_V)), rng.standard_normal((*LEAD, queries))
    return Operands(**made), Results(*(x.astype(dtype) for x in upstream))


def static(pair: str, cap: float, rate: float = 0.0) -> StaticArgs:
    settings = Settings(pair, 0.7, GROUPS, rate, 8, LEAD, cap)
    return StaticArgs(settings, PAIRS[pair], ("interpret",))


def formula(x: Operands, s: Settings) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Output, log-sum-exp and weights as the formula is written, all scores at once."""
    b, value, bias = (
        None if y is None else jnp.repeat(y, GROUPS, 1) for y in (x.b, x.value, x.key_bias)
    )
    assert b is not None
    terms = VALUE[s.pair](x.a[..., :, None, :], b[..., None, :, :])
    terms = terms if x.weight is None else terms * x.weight[..., None, None, :]
    score = s.scale * terms.sum(-1) + (0 if bias is None else bias[..., None, :])
    score = s.softcap * jnp.tanh(score / s.softcap)
    j, mask = jnp.arange(T_K), jnp.ones(score.shape, bool)
    mask = mask if x.start is None else mask & (j >= x.start[..., None])
    mask = mask if x.stop is None else mask & (j < x.stop[..., None])
    mask = mask if x.mask is None else mask & x.mask
    e = jnp.where(mask, jnp.exp(score), 0)
    total = e.sum(-1)
    full = jnp.where(total == 0, 1, total)
    p, kept = e / full[..., None], jnp.ones_like(e)
    if s.dropout:
        xp, sizes = load("numpy"), score.shape[-2:]
        kept = dropout.keep(xp, xp.seed(SEED, np.zeros(1)), s.dropout, LEAD, *sizes)
        kept = kept / (1 - s.dropout)
    return (p * kept) @ value, jnp.where(total == 0, -jnp.inf, jnp.log(full)), p


def exact(x: Operands, s: StaticArgs, upstream: Results) -> dict[str, Any]:
    """Every result by name, with the gradients that JAX derives from the formula."""

    def forward(*factors: jax.Array | None) -> tuple[jax.Array, jax.Array, jax.Array]:
        return formula(Operands(*factors, *x[FACTORS:]), s.settings)

    (output, lse, p), backward = jax.vjp(forward, *x[:FACTORS])
    gradients = zip(Operands._fields, backward((*upstream, jnp.zeros_like(p))), strict=False)
    made = {f"d_{name}": d for name, d in gradients if d is not None}
    return {"output": output, "lse": lse, "weights": p, **made}


def compiled(function: Any) -> Any:
    return jax.jit(function, static_argnums=1, compiler_options=QUICK)


def agree(found: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        finite = np.isfinite(x)
        np.testing.assert_array_equal(np.isfinite(found[name]), finite, err_msg=name)
        most = float(np.abs(x[finite]).max(initial=1e-3))
        np.testing.assert_allclose(found[name], x, 0, tolerance * most, err_msg=name)


@pytest.mark.parametrize(("pair", "case"), ROWS)
def test_values_and_gradients(pair: str, case: str) -> None:
    queries, cap, rate, names = CASES[case]
    call, s = drawn(pair, queries, rate, names), static(pair, cap, rate)
    agree(compiled(results)(call[0], s, call[1]), compiled(exact)(call[0], s, call[1]), 1e-11)


@pytest.mark.parametrize("pair", ["product", "tanh"])
def test_what_is_masked_stays_masked(pair: str) -> None:
    """A cap makes a number of −∞ and of ∞: they are masked after it. NaN there is never read."""
    x, upstream = drawn(pair, 5, 0.0, ("key_bias", "stop"), np.float32)
    x = x._replace(stop=np.broadcast_to(np.arange(0, 50, 10), (*LEAD, 5)).clip(0, 30))
    s, of = static(pair, 0.5), compiled(results)
    clean = of(x, s, upstream)
    agree(clean, compiled(exact)(x, s, upstream), 2e-5)
    assert not np.any(clean["weights"][..., 30:])
    assert not np.any(clean["output"][..., 0, :])  # nothing is attended
    assert np.all(clean["lse"][..., 0] == -np.inf)
    for fill in (np.nan, np.inf):
        filled = x._replace(b=x.b.copy(), key_bias=np.copy(x.key_bias), value=np.copy(x.value))
        for y in (filled.b, filled.key_bias, filled.value):
            y[:, :, 30:] = fill
        agree(of(filled, s, upstream), clean, 1e-6)


def test_scores_beyond_the_cap() -> None:
    """Where all scores are far beyond the cap they are equal, and have no gradients."""
    x, upstream = drawn("product", 5, 0.0, (), np.float32)
    x = x._replace(a=np.full_like(x.a, 1e4), b=np.abs(x.b) + 1)
    found = compiled(results)(x, static("product", 3.0), upstream)
    np.testing.assert_allclose(found["weights"], 1 / T_K, 1e-6)
    np.testing.assert_allclose(found["lse"], 3 + np.log(T_K), 1e-6)
    assert not np.any(found["d_a"])
    assert not np.any(found["d_b"])
