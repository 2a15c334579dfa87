"""Biases in interpreted Pallas kernels agree with the literal formulas in a wider type."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from frameworks.jax.pallas.pallas_calls import Call, check, draw, run

LEAD, GROUPS, QUERIES, KEYS = (2, 4), 2, 33, 37
CASES = [
    ("product", (2, 4, QUERIES, KEYS), "", False),
    ("tanh", (1, 4, QUERIES, KEYS), "tanh", False),
    ("squared", (1, 1, QUERIES, KEYS), "sqrt", True),
    ("leaky_relu", (1, 4, 1, QUERIES + KEYS - 1), "tanh", True),
    ("absolute", (2, 1, 1, QUERIES + KEYS - 1), "", False),
]


def made(pair: str, shape: tuple[int, ...], outer: str, after: bool, mask: str) -> Call:
    rng = np.random.default_rng(len(pair))
    return draw(
        rng, pair, mask, "float64", lead=LEAD, groups=GROUPS, queries=QUERIES, keys=KEYS, hidden=5,
        width=3, scale=0.5, dropout=0.0, weight=None, key_bias=None, outer=outer, outer_scale=2.0,
        bias=rng.standard_normal(shape), diagonal=shape[-2] == 1, after=after,
    )  # fmt: skip


@pytest.mark.parametrize(("pair", "shape", "outer", "after"), CASES)
def test_values_and_gradients(pair: str, shape: tuple[int, ...], outer: str, after: bool) -> None:
    check(made(pair, shape, outer, after, "interval and boolean" if after else "none"))


def test_what_is_masked_is_not_read() -> None:
    call = made("product", (2, 4, QUERIES, KEYS), "", False, "none")
    stop = np.full((*LEAD, QUERIES), 20)
    clean = replace(call, stop=stop)
    bias = call.bias.copy()
    bias[..., 20:] = np.nan
    found = run(replace(clean, bias=bias))
    for name, x in run(clean).items():
        np.testing.assert_array_equal(found[name], x, err_msg=name)
    assert not found["d_bias"][..., 20:].any()


def test_minus_infinity() -> None:
    """A query whose scores are all −∞ has output 0, log-sum-exp −∞ and finite gradients."""
    call = made("squared", (1, 1, QUERIES, KEYS), "", False, "none")
    bias = call.bias.copy()
    bias[..., 3, :] = -np.inf
    found = run(replace(call, bias=bias, d_scores=None))
    assert not found["output"][..., 3, :].any()
    assert (found["lse"][..., 3] == -np.inf).all()
    assert all(np.isfinite(x).all() for name, x in found.items() if name.startswith("d_"))
