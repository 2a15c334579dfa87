"""NaN and ±∞ reach the rows of the formulas in the C++ core, and no others."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from core.call import PAIRS, Call, stored
from core.draw import draw
from core.raw import check, run, same

pytestmark = pytest.mark.sample

FILLS = [math.nan, math.inf, -math.inf]
FILL = pytest.mark.parametrize("fill", FILLS, ids=str)
PAIR = pytest.mark.parametrize("pair", PAIRS)
OPERANDS = "a", "b", "weight", "key_bias", "value", "d_output", "d_lse"
HEADS, QUERIES, KEYS, HIDDEN, WIDTH = 2, 6, 70, 19, 5


def made(pair: str, mask: str, number: int, dtype: str = "float32", /, **given: Any) -> Call:
    """Return a call of two heads with dense, writable operands."""
    rng = np.random.default_rng([PAIRS.index(pair), number])
    given = {"queries": QUERIES, "keys": KEYS, "hidden": HIDDEN, "width": WIDTH} | given
    queries, keys, hidden, width = (given[n] for n in ("queries", "keys", "hidden", "width"))

    def normal(*shape: int) -> np.ndarray:
        return stored(rng.standard_normal(shape), dtype)

    compute = "float64" if dtype == "float64" else "float32"
    fields = {
        "a": normal(HEADS, queries, hidden), "b": normal(HEADS, keys, hidden),
        "weight": normal(HEADS, hidden), "key_bias": normal(HEADS, keys),
        "value": normal(HEADS, keys, width), "d_output": normal(HEADS, queries, width),
        "d_lse": rng.standard_normal((HEADS, queries)).astype(compute),
        "lead": (HEADS,), "dropout": 0.0, "scale": 0.3,
    }  # fmt: skip
    call = draw(rng, pair, mask, dtype, **(fields | given))
    for name in OPERANDS:
        getattr(call, name).flags.writeable = True
    return call


@FILL
@pytest.mark.parametrize("which", OPERANDS)
@PAIR
def test_attended(pair: str, which: str, fill: float) -> None:
    """One entry or a whole token of NaN or ±∞ reaches the rows of the formulas, with any mask."""
    for number, mask in enumerate(["none", "interval", "boolean", "causal"]):
        for whole in (False, True):
            call = made(pair, mask, number)
            x = getattr(call, which)
            if which == "weight":
                x[1, ...] = fill if whole else x[1]
                x[1, 4] = fill
            elif x.ndim == 2:
                x[1, 3] = fill
            else:
                x[1, 3, slice(None) if whole else 2] = fill
            check(call, threads=2, **compared(which, fill))


def compared(which: str, fill: float) -> dict[str, bool]:
    """Return options of `check`: after an infinite weight, gradients may be 0 or 0 · ∞."""
    return {"alike": math.isinf(fill), "gradients": which != "weight" or math.isnan(fill)}


# Sizes with copied rows, and sizes with rows that are read in place.
SIZES = pytest.mark.parametrize(("hidden", "width"), [(HIDDEN, WIDTH), (32, 272)])


@FILL
@SIZES
@PAIR
def test_decoder_steps(pair: str, hidden: int, width: int, fill: float) -> None:
    """NaN in a query, in prepared keys or in values reaches the rows of the formulas."""
    sizes = {"hidden": hidden, "width": width}
    for number, which in enumerate(["a", "b", "value", "key_bias", "weight"]):
        call = made(pair, "lengths", number, queries=1, **sizes)
        getattr(call, which)[1, 0, ...] = fill
        for prepared in (False, pair == "tanh"):
            check(call, prepared=prepared, **compared(which, fill))


@pytest.mark.sanitize
@FILL
@SIZES
@pytest.mark.parametrize("queries", [1, 2])
@PAIR
def test_decoder_steps_masked(
    pair: str, queries: int, hidden: int, width: int, fill: float
) -> None:
    """NaN in masked keys of a tile changes nothing; NaN in an attended key reaches its queries."""
    keep = np.ones((HEADS, queries, KEYS), bool)
    keep[..., ::7] = keep[..., -3:] = False
    call = made(pair, "none", 2, queries=queries, mask=keep, hidden=hidden, width=width)
    call.b[:, ::7, 3] = call.b[:, -3:] = fill
    assert np.isfinite(check(call)["output"]).all()
    call.b[1, 1, 2] = fill
    check(call, **compared("b", fill))


@pytest.mark.sanitize
@FILL
@pytest.mark.parametrize("mask", ["lengths", "window", "interval", "per key", "per query", "mixed"])
@PAIR
def test_masked(pair: str, mask: str, fill: float) -> None:
    """NaN in unattended keys, values and biases, and in queries without keys, is not read."""
    keep = np.random.default_rng(0).random((HEADS, QUERIES, KEYS)) < 0.5
    keep[:, 2], keep[..., 11], keep[1, :, 16:64] = False, False, False
    for dtype in ("float32", "float64", "float16"):
        given = {"mask": keep} if mask == "mixed" else {}
        call = made(pair, "none" if given else mask, 1, dtype, **given)
        weights = np.asarray(run(call)["weights"])
        attends, attended = (weights > 0).any(-1), (weights > 0).any(-2)
        assert not (attends.all() and attended.all())
        for name in ("b", "key_bias", "value"):
            getattr(call, name)[~attended] = fill
        for name in ("a", "d_output", "d_lse"):
            getattr(call, name)[~attends] = fill
        found = check(call, threads=2)
        assert all(
            np.isfinite(x).all()
            for name, x in found.items()
            if name not in ("stats", "lse", "scores")
        )
        for name, rows in (("d_a", attends), ("d_b", attended), ("d_value", attended)):
            assert not found[name][~rows].any()


@FILL
@PAIR
def test_attended_by_some(pair: str, fill: float) -> None:
    """NaN in a key reaches only the queries that attend it."""
    keep = np.random.default_rng(0).random((HEADS, QUERIES, KEYS)) < 0.5
    keep[:, ::2, 11], keep[:, 1::2, 11], keep[1] = False, True, keep[1] & (np.arange(KEYS) != 11)
    for which in ("b", "value", "key_bias"):
        call = made(pair, "none", 2, mask=keep)
        getattr(call, which)[:, 11] = fill
        found = check(call, threads=2, alike=math.isinf(fill))
        clean = run(made(pair, "none", 2, mask=keep))
        for name in ("output", "lse", "weights", "d_a"):
            np.testing.assert_allclose(found[name][:, ::2], clean[name][:, ::2], 1e-4, 1e-5)
            np.testing.assert_allclose(found[name][1], clean[name][1], 1e-4, 1e-5)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@FILL
@PAIR
def test_other_dtypes(pair: str, fill: float, dtype: str) -> None:
    for which in ("a", "b", "value"):
        call = made(pair, "causal", 3, dtype)
        getattr(call, which)[0, 2, 1] = stored(np.array(fill), dtype)
        check(call, threads=2, alike=math.isinf(fill))


@PAIR
def test_infinities_of_both_signs(pair: str) -> None:
    """∞ and −∞ may meet in a value column, in a key, or in one feature of query and key."""
    call = made(pair, "causal", 4)
    call.value[0, 1, 2], call.value[0, 4, 2] = math.inf, -math.inf
    check(call, alike=True)
    call = made(pair, "causal", 5)
    call.b[0, 2, :2] = math.inf, -math.inf
    check(call, alike=True)
    call = made(pair, "causal", 6)
    call.a[0, 5, 7], call.b[0, 3, 7] = math.inf, -math.inf
    check(call, alike=True)


@PAIR
def test_with_dropout(pair: str) -> None:
    """A key that dropout drops is attended: its NaN reaches the query."""
    for which in ("a", "b", "value"):
        call = made(pair, "none", 7, dropout=0.3, seed=5)
        getattr(call, which)[1, 2, 3] = math.nan
        check(call, threads=2)


@PAIR
def test_inputs_are_left_alone(pair: str) -> None:
    call = made(pair, "interval and boolean", 8)
    copied: dict[str, Any] = {name: np.array(getattr(call, name)) for name in OPERANDS}
    first = run(call, threads=2, prepared=pair == "tanh")
    for name, x in copied.items():
        assert getattr(call, name).tobytes() == x.tobytes()
    assert same(first, run(replace(call, **copied), threads=2, prepared=pair == "tanh"))
