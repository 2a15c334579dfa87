"""Split pairs (docs/numerics.md) are as exact as the plain sum, also where the
parts cancel. Forward and backward have the same scores.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from core import literal
from core.call import Call
from core.draw import draw
from core.raw import WIDER, backward, check, forward, run, same
from helpers.budget import BAND, EPS, assert_near, error, size

pytestmark = pytest.mark.sample

SPLIT = "leaky_relu", "absolute", "squared"
HEADS, QUERIES, KEYS, HIDDEN, WIDTH = 2, 70, 150, 48, 17
UNIT = {"leaky_relu": 1 / math.sqrt(HIDDEN), "absolute": -1 / math.sqrt(HIDDEN), "squared": -0.05}

NEAR = {
    # offset of all tokens, spread of tokens, distance of each key from a query
    "normal": (0.0, 1.0, 1.5),
    "wide": (0.0, 4.0, 1.5),
    "the same": (0.0, 1.0, 0.0),
    "twins": (0.0, 2.0, 1e-3),
    "a cluster": (1.0, 0.1, 1e-3),
    "a cluster far off": (5.0, 0.1, 1e-2),
    "a loose cluster": (2.0, 0.1, 0.1),
    "far off": (300.0, 1.0, 1.5),
}


def made(pair: str, near: str, dtype: str = "float32", **given: Any) -> Call:
    rng = np.random.default_rng([len(near), SPLIT.index(pair)])
    offset, spread, distance = NEAR[near]
    a = rng.standard_normal((HEADS, QUERIES, HIDDEN)) * spread
    b = np.concatenate([a] * 3, axis=1)[:, :KEYS]
    b = b + rng.standard_normal(b.shape) * spread * distance
    fields: dict[str, Any] = {
        "lead": (HEADS,), "a": (a + offset).astype(dtype), "b": (b + offset).astype(dtype),
        "scale": UNIT[pair], "weight": None, "key_bias": None, "bias": None, "dropout": 0.0,
        "outer": "", "d_lse": None, "d_scores": None, "width": WIDTH,
        "value": rng.standard_normal((HEADS, KEYS, WIDTH)).astype(dtype),
    }  # fmt: skip
    fields |= {"queries": QUERIES, "keys": KEYS, "hidden": HIDDEN} | given
    return draw(rng, pair, fields.pop("kind", "none"), dtype, **fields)


def signs(mixed: bool) -> np.ndarray:
    """Return a weight for each feature, of both signs or positive."""
    x = np.random.default_rng(1).standard_normal((1, HIDDEN)).astype(np.float32)
    return x if mixed else np.abs(x)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "weights", [pytest.param("none", marks=SLOW), pytest.param("positive", marks=SLOW), "mixed"]
)
@pytest.mark.parametrize("near", NEAR)
@pytest.mark.parametrize("pair", SPLIT)
def test_as_exact_as_the_plain_sum(pair: str, near: str, weights: str) -> None:
    """The budget is twice the error of plain operations, plus BAND roundings and the log-sum-exp's;
    it has no band for parts that cancel.
    """
    weight = None if weights == "none" else signs(weights == "mixed")
    call = made(pair, near, weight=weight)
    exact = literal.run(call, WIDER["float32"])
    plain = literal.run(call, np.float32, rounded=True)
    found = run(call)
    for name in ("output", "d_value", "d_a", "d_b", "d_weight"):
        if name in found:
            allowed = 2 * error(plain[name], exact[name])
            band = (BAND + 2 * size(exact["lse"])) * size(exact[name])
            if name.startswith("d_"):
                band += literal.sizes(call)[name] / 16
            assert_near(found[name], exact[name], allowed + EPS["float32"] * band, name)


@pytest.mark.parametrize("outer", ["sqrt", "log1p", "arcosh"])
@pytest.mark.parametrize("near", NEAR)
@pytest.mark.parametrize("pair", ["absolute", "squared"])
def test_functions_of_small_distances(pair: str, near: str, outer: str) -> None:
    """Outer functions of small distances keep the budget, though a root enlarges a rounding."""
    call = made(pair, near, outer=outer, outer_scale=1.5, scale=abs(UNIT[pair]))
    found, exact = forward(call), literal.run(call, WIDER["float32"])
    plain = literal.run(call, np.float32, rounded=True)
    for name in ("output", "scores"):
        allowed = 2 * error(plain[name], exact[name]) + EPS["float32"] * BAND * size(exact[name])
        assert_near(found[name], exact[name], allowed, name)


@pytest.mark.parametrize("pair", ["absolute", "squared"])
def test_no_distance_has_the_wrong_sign(pair: str) -> None:
    for near in NEAR:
        for scale in (1, -1):
            call = made(pair, near, scale=scale * abs(UNIT[pair]))
            assert (forward(call)["scores"] * scale >= 0).all(), near


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("pair", SPLIT)
def test_the_backward_sees_the_scores_of_the_forward(pair: str, dtype: str) -> None:
    """The weight of a single attended key is exactly 1 beside masked keys of any size."""
    rng = np.random.default_rng(5)
    start = rng.integers(0, 100, (1, QUERIES))
    call = made(pair, "normal", dtype, start=start, stop=start + 1, groups=1, lead=(HEADS,))
    b = np.array(call.b)
    b[:, 101:] *= 1e4  # masked keys in the tile of attended ones, beyond all bounds
    call = replace(call, b=b)
    lse = forward(call)["lse"]
    s = literal.run(call, WIDER[dtype])["scores"]
    assert_near(lse, np.take_along_axis(s, start[..., None], -1)[..., 0], 1e-4, "log-sum-exp")
    ones = replace(call, d_output=np.ones_like(call.d_output))
    d_value = backward(ones)["d_value"]
    counts = np.bincount(start[0], minlength=KEYS)
    assert np.array_equal(d_value, np.broadcast_to(counts[None, :, None], d_value.shape))


@pytest.mark.parametrize("pair", SPLIT)
def test_the_same_bits_for_any_number_of_threads(pair: str) -> None:
    for near in ("normal", "wide"):
        call = made(pair, near, kind="window")
        assert same(run(call, threads=1), run(call, threads=3))


@pytest.mark.parametrize("pair", SPLIT)
def test_few_far_tokens(pair: str) -> None:
    """A few far tokens keep the budget; only their tiles are computed without splitting."""
    call = made(pair, "normal")
    a, b = np.array(call.a), np.array(call.b)
    a[:, 66], b[:, 130] = 1e18, -1e18
    check(replace(call, a=a, b=b), alike=True)


def test_a_tie_has_no_slope() -> None:
    call = made("absolute", "the same")
    call = replace(
        call, b=np.repeat(call.a[:, :1], KEYS, 1), a=np.repeat(call.a[:, :1], QUERIES, 1)
    )
    found = backward(call)
    assert not found["d_a"].any()
    assert not found["d_b"].any()


@pytest.mark.parametrize("queries", [1, 3, QUERIES])
def test_zeros_of_either_sign_are_ties(queries: int) -> None:
    """Zeros of either sign are ties: slopes come from the sign's bit, which −0 has too."""
    rng = np.random.default_rng(7)
    zeros = [rng.choice([0.0, -0.0], (HEADS, n, HIDDEN)).astype("float32") for n in (queries, KEYS)]
    call = made("absolute", "normal", a=zeros[0], b=zeros[1], queries=queries)
    found = backward(call)
    assert not found["d_a"].any()
    assert not found["d_b"].any()
    check(made("leaky_relu", "normal", a=zeros[0], b=zeros[1], queries=queries))
