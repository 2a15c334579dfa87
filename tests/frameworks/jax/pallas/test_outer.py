"""Interpreted Pallas kernels apply outer functions to scores, before masks and softmax.

Values and all gradients agree with the literal formulas in a wider type.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from frameworks.jax.pallas.pallas_calls import PAIRS, Call, check, draw, run
from helpers.budget import size

LEAD, GROUPS, T_K, D, D_V = (2, 4), 2, 37, 5, 3


def cap(c: float) -> dict[str, Any]:
    return {"outer": "tanh", "outer_scale": c}


CASES: dict[str, dict[str, Any]] = {
    "small": {"queries": 1, **cap(0.5), "dropout": 0.4, "seed": 11},
    "large": {"queries": 65, **cap(50.0), "dropout": 0.3, "seed": 11},
    "plain": {"queries": 3, **cap(2.0), "dropout": 0.0, "weight": None, "key_bias": None},
}
ROWS = [
    ("product", "plain"), ("tanh", "large"), ("leaky_relu", "small"), ("absolute", "large"),
    ("softsign", "small"),
]  # fmt: skip
"""Pairs whose float64 has no cap in test_table.py; "plain" has no weight and no key bias."""


def drawn(pair: str, mask: str, dtype: str, queries: int, **given: Any) -> Call:
    """Return a call with a weight, a key bias and gradients of all results.

    Pairs of query heads share a key head.
    """
    rng = np.random.default_rng(list(PAIRS).index(pair))
    fields = {
        "weight": rng.standard_normal((1, LEAD[1], D)).astype(dtype),
        "key_bias": rng.standard_normal((LEAD[0], LEAD[1] // GROUPS, T_K)).astype(dtype),
        "d_lse": rng.standard_normal((*LEAD, queries)).astype(dtype),
        "lead": LEAD, "groups": GROUPS, "queries": queries, "keys": T_K, "hidden": D, "width": D_V,
        "scale": 0.7, "dropout": 0.0,
    }  # fmt: skip
    return draw(rng, pair, mask, dtype, **(fields | given))


@pytest.mark.parametrize(("pair", "case"), ROWS)
def test_values_and_gradients(pair: str, case: str) -> None:
    """Large calls have booleans and a query without keys; small calls have intervals."""
    mask = {"small": "interval", "large": "none", "plain": "none"}[case]
    call = drawn(pair, mask, "float64", **CASES[case])
    if case == "large":
        keep = np.random.default_rng(0).random((*LEAD, call.queries, T_K)) < 0.6
        keep[..., call.queries // 2, :] = False
        call = replace(call, mask=keep)
    check(call)


@pytest.mark.parametrize(
    ("pair", "outer"),
    [("squared", "sqrt"), ("squared", "log1p"), ("squared", "arcosh"), ("absolute", "log1p")],
)
def test_of_distances(pair: str, outer: str) -> None:
    """Sums are not negative, and gradients are finite at 0, where a query is a key."""
    call = drawn(pair, "interval", "float64", 5, outer=outer, outer_scale=1.5, key_bias=None)
    a = call.a.copy()
    a[..., 2, :] = call.b.repeat(GROUPS, 1)[..., 4, :] if a.shape[:2] == LEAD else a[..., 2, :]
    found = check(replace(call, a=a, weight=np.abs(call.weight)))
    assert all(np.isfinite(x).all() for name, x in found.items() if name.startswith("d_"))


@pytest.mark.parametrize("pair", ["product", "tanh"])
def test_what_is_masked_stays_masked(pair: str) -> None:
    """Masks follow the cap, which makes numbers of ±∞. NaN in masked keys is never read."""
    stop = np.broadcast_to(np.arange(0, 50, 10).clip(0, 30), (*LEAD, 5))
    call = drawn(pair, "none", "float32", 5, **cap(0.5), weight=None, stop=stop)
    clean = check(call)
    assert not np.any(clean["weights"][..., 30:])
    assert not np.any(clean["output"][..., 0, :])  # query 0 has no keys
    assert np.all(clean["lse"][..., 0] == -np.inf)
    for fill in (np.nan, np.inf):
        filled = replace(call, **{n: getattr(call, n).copy() for n in ("b", "key_bias", "value")})
        for x in (filled.b[..., 30:, :], filled.key_bias[..., 30:], filled.value[..., 30:, :]):
            x[...] = fill
        for name, x in run(filled).items():
            most = size(clean[name])
            np.testing.assert_allclose(x, clean[name], 0, 1e-6 * most, err_msg=name)


def test_scores_beyond_the_cap() -> None:
    """Scores far beyond the cap are all equal, and have no gradients."""
    none = {"weight": None, "key_bias": None}
    call = drawn("product", "none", "float32", 5, **cap(3.0), **none)
    found = run(replace(call, a=np.full_like(call.a, 1e4), b=np.abs(call.b) + 1))
    np.testing.assert_allclose(found["weights"], 1 / T_K, 1e-6)
    np.testing.assert_allclose(found["lse"], 3 + np.log(T_K), 1e-6)
    assert not np.any(found["d_a"])
    assert not np.any(found["d_b"])
