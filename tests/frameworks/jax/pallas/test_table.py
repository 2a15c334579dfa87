"""Interpreted Pallas kernels agree with the literal formulas in a wider type.

Values and all gradients of pairs × masks × dtypes × sizes keep the budget of the C++ core.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from frameworks.jax.pallas.pallas_calls import (
    DTYPES,
    MASKS,
    PAIRS,
    Call,
    check,
    draw,
    literal,
    run,
    stored,
)
from helpers.budget import BAND, EPS, assert_near, error, size

pytestmark = pytest.mark.sample

INTERVALS = "none", "lengths", "causal", "window", "interval", "all masked"
"""Masks that are intervals. One compiled function takes all of these."""
SIZES = {"lead": (1, 2), "groups": 2, "queries": 67, "keys": 131, "hidden": 11, "width": 19}


FEW = {"queries": 5, "keys": 17, "hidden": 7, "width": 3}


def rng_of(*labels: str) -> np.random.Generator:
    return np.random.default_rng([len(x) * 131 + ord(x[0]) for x in labels])


BIASES = "", "matrix", "diagonals"


def alike(call: Call, cap: float, bias: str) -> Call:
    """Return the call with full-shape operands, equal for all calls of its pair and dtype."""
    rng, bounds = np.random.default_rng(5), (*call.lead, call.queries)
    keys, dtype = call.b.shape[:-1], str(call.a.dtype).replace("int16", "bfloat16")
    start = np.zeros((1, 1, 1), np.int64) if call.start is None else call.start
    stop = np.full((1, 1, 1), call.keys) if call.stop is None else call.stop
    shape = (call.queries, call.keys) if bias == "matrix" else (1, call.queries + call.keys - 1)
    return replace(
        call,
        bias=stored(rng.standard_normal((*call.lead, *shape)), dtype) if bias else None,
        diagonal=bias == "diagonals",
        after=bias == "diagonals" and cap > 0,
        start=np.broadcast_to(start, bounds),
        stop=np.broadcast_to(stop, bounds),
        mask=None,
        dropout=0.0,
        outer="tanh" if cap else "",
        outer_scale=cap,
        scale=0.5,
        a=stored(rng.standard_normal((*call.lead, *call.a.shape[-2:])), dtype),
        b=stored(rng.standard_normal((1, 1, *call.b.shape[-2:])), dtype),
        value=stored(rng.standard_normal((1, 1, *call.value.shape[-2:])), dtype),
        weight=stored(rng.standard_normal((1, 2, call.a.shape[-1])), dtype),
        key_bias=stored(rng.standard_normal((1, 1, keys[-1])), dtype),
        d_lse=rng.standard_normal(bounds).astype(call.compute),
        d_scores=rng.standard_normal((*bounds, call.keys)).astype(call.compute),
    )


HALVES = {"bfloat16": ("product", "tanh", "softsign"), "float16": ("leaky_relu", "absolute")}
ROWS = [(pair, "float32") for pair in PAIRS]
ROWS += [(pair, "float64") for pair in ("product", "squared", "softsign")]
ROWS += [(pair, dtype) for dtype, pairs in HALVES.items() for pair in pairs]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pair", "dtype"),
    [row if row[1] == "float32" else pytest.param(*row, marks=pytest.mark.weekly) for row in ROWS],
)
def test_intervals(pair: str, dtype: str) -> None:
    """Grouped heads agree, with a weight for each and a key bias. No tile divides the sizes.

    Each pair has a cap either in float32 or in its other dtypes, with another kind of bias.
    """
    number, wide = list(PAIRS).index(pair), dtype == "float32"
    cap = 2.0 if (number % 2 == 1) == wide else 0.0
    bias = BIASES[(number + wide) % len(BIASES)]
    for mask in INTERVALS if wide else ("interval",):
        check(alike(draw(rng_of(pair, mask), pair, mask, dtype, **SIZES), cap, bias))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pair", "dtype", "mask"),
    [("tanh", "float32", mask) for mask in MASKS if mask not in INTERVALS]
    + [
        ("product", "float32", "boolean"),
        ("product", "float16", "interval and boolean"),
        ("absolute", "bfloat16", "per key"),
        ("squared", "float64", "interval and boolean"),
    ],
)
def test_booleans(pair: str, dtype: str, mask: str) -> None:
    """Booleans agree beside other draws: dropout, broadcast dimensions, absent operands."""
    check(draw(rng_of(pair, mask), pair, mask, dtype, **SIZES))


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [x if x < 5 else pytest.param(x, marks=pytest.mark.weekly) for x in range(8)]
)
def test_drawn(number: int) -> None:
    """Small calls of any kind agree, of sizes down to 0."""
    rng = np.random.default_rng(number)
    pair, mask = list(PAIRS)[number % len(PAIRS)], MASKS[number * 7 % len(MASKS)]
    check(draw(rng, pair, mask, DTYPES[number % len(DTYPES)]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pair", "size"),
    [
        ("tanh", (1, 1, 1, 1)),
        ("product", (3, 2, 1, 150)),
        ("tanh", (1, 300, 70, 1)),
        ("product", (64, 32, 33, 65)),
    ],
    ids=str,
)
def test_sizes(pair: str, size: tuple[int, ...]) -> None:
    """Sizes (queries, keys, features, values) are one of each, whole tiles, several chunks."""
    given = dict(zip(("queries", "keys", "hidden", "width"), size, strict=True))
    check(draw(rng_of(pair), pair, "causal", "float32", lead=(), **given))


@pytest.mark.slow
def test_leading_dimensions() -> None:
    """Each operand is broadcast over other leading dimensions; two query heads share a key head."""
    call = draw(rng_of("lead"), "tanh", "none", "float32", lead=(2, 3, 4), groups=2, **FEW)
    rng, leads = np.random.default_rng(1), ((2, 1, 4), (2, 1, 2), (1, 3, 2), (1, 3, 4), (2, 3, 1))
    sizes = (5, 7), (17, 7), (17, 3), (7,), (17,)
    given = zip(("a", "b", "value", "weight", "key_bias"), leads, sizes, strict=True)
    operands = {n: rng.standard_normal((*lead, *own)).astype("f") for n, lead, own in given}
    stop = rng.integers(0, 18, (2, 1, 4, 1))
    check(replace(call, **operands, stop=stop, mask=rng.random((1, 3, 1, 5, 17)) < 0.7))


@pytest.mark.slow
def test_many_values() -> None:
    """Values may have more columns than one program takes."""
    given = {"queries": 5, "keys": 37, "hidden": 3, "width": 300, "lead": (2,)}
    check(draw(rng_of("parts"), "tanh", "none", "float32", **given))


FILLS = math.nan, math.inf, -math.inf
OPERANDS = "a", "b", "weight", "key_bias", "value", "d_output", "d_lse"


def small(pair: str, keep: np.ndarray | None = None, dropout: float = 0.0) -> Call:
    """Return a small call with every operand, in writable arrays."""
    rng = np.random.default_rng(3)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal((2, *shape)).astype(np.float32)

    return Call(
        pair, (2,), normal(6, 5), normal(70, 5), normal(70, 3), normal(6, 3), normal(5), normal(70),
        stop=np.broadcast_to(np.arange(3, 63, 10), (2, 6)), mask=keep, d_lse=normal(6), scale=0.3,
        dropout=dropout, seed=4,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("pair", ["product", "tanh", "absolute"])
def test_what_is_not_finite_and_attended(pair: str) -> None:
    """An entry reaches the queries that attend it, and the gradients of all keys of these queries.

    A product has no booleans here; other pairs have booleans that keep all keys.
    """
    keep = None if pair == "product" else np.ones((2, 6, 70), bool)
    for which in OPERANDS:
        for fill in FILLS:
            call = small(pair, keep)
            getattr(call, which)[(1, 3) if which != "a" else (1, 3, 2)] = fill
            seen = which != "weight" or math.isnan(fill)  # an infinite weight gives 0 · ∞
            check(call, alike=math.isinf(fill), gradients=seen)


@pytest.mark.slow
@pytest.mark.parametrize("pair", ["product", "tanh", "absolute"])
def test_what_is_not_finite_and_masked(pair: str) -> None:
    """Entries that some or all queries mask leave the other results the same."""
    keep = np.random.default_rng(0).random((2, 6, 70)) < 0.5
    keep[:, 2], keep[..., 11], keep[:, ::2, 5], keep[:, 1::2, 5] = False, False, False, True
    clean = run(small(pair, keep))
    attends, attended = (clean["weights"] > 0).any(-1), (clean["weights"] > 0).any(-2)
    for fill in FILLS:
        call = small(pair, keep)
        for name in ("b", "key_bias", "value"):
            getattr(call, name)[~attended] = fill
        for name in ("a", "d_output", "d_lse"):
            getattr(call, name)[~attends] = fill
        found = check(call)
        for name, x in found.items():
            np.testing.assert_allclose(x, clean[name], 1e-4, 1e-5, err_msg=name)
        for which in ("b", "value", "key_bias"):
            call = small(pair, keep)
            getattr(call, which)[:, 5] = fill
            found = check(call, alike=math.isinf(fill))
            for name in ("output", "lse", "weights", "d_a"):
                np.testing.assert_allclose(found[name][:, ::2], clean[name][:, ::2], 1e-5, 1e-6)


@pytest.mark.slow
def test_what_is_not_finite_and_dropped() -> None:
    """A key that dropout drops counts as attended."""
    for which in ("a", "b", "value"):
        call = small("tanh", dropout=0.4)
        getattr(call, which)[1, 3] = math.nan
        check(call)


@pytest.mark.slow
def test_tanh_near_zero() -> None:
    """A small tanh is exact relative to itself; the gradient of the weight is a sum of tanh."""
    call = small("tanh")
    call.a[:] *= 1e-6
    call.b[:] *= 1e-6
    found, exact = run(call)["d_weight"], literal.run(call, np.float64)["d_weight"]
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-5 * np.abs(exact).max())


@pytest.mark.weekly
@pytest.mark.parametrize("pair", ["leaky_relu", "absolute", "squared"])
def test_width(pair: str) -> None:
    """Sums of 2,048 features need no band for their terms at unit inputs, as layers begin."""
    rng, width = rng_of(pair, "width"), 2048
    scale = {"leaky_relu": 1 / math.sqrt(width), "absolute": -1 / math.sqrt(width)}
    given = {
        "key_bias": None,
        "d_lse": None,
        "dropout": 0.0,
        "outer": "",
        "lead": (1,),
        "queries": 8,
        "keys": 50,
    }
    if pair != "leaky_relu":
        given["weight"] = None
    call = draw(
        rng, pair, "none", "float32", hidden=width, width=8,
        scale=scale.get(pair, -0.5 / width), **given,
    )  # fmt: skip
    exact, plain = literal.run(call, np.float64), literal.run(call, np.float32)
    for name, x in run(call).items():
        allowance = 2 * error(plain[name], exact[name]) + BAND * EPS["float32"] * size(exact[name])
        assert_near(x, exact[name], allowance, name)
