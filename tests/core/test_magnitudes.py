"""The C++ core is within the budget for inputs from 1e-2 to 1e4, at any weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from core import literal
from core.call import PAIRS, Call
from core.draw import draw
from core.raw import WIDER, backward, check, with_compute
from helpers.budget import BAND, EPS

pytestmark = pytest.mark.sample

HEADS, QUERIES, KEYS, HIDDEN, WIDTH = 2, 33, 70, 37, 5
Random = np.random.Generator
Change = Callable[[np.ndarray, np.ndarray, Random], tuple[np.ndarray, np.ndarray]]


def _few_wide(a: np.ndarray, b: np.ndarray, rng: Random) -> tuple[np.ndarray, np.ndarray]:
    """Scale three features by 1e4 and one by 100, and shift one by 1e3; the others are normal."""
    factor, shift = np.ones(HIDDEN), np.zeros(HIDDEN)
    factor[[3, 16, 30]], factor[5], shift[7] = 1e4, 1e2, 1e3
    return a * factor - shift, b * factor + shift


def _some_small(a: np.ndarray, b: np.ndarray, rng: Random) -> tuple[np.ndarray, np.ndarray]:
    """Make features small, normal, or small and far from 0; queries saturate some of each kind."""
    factor, shift = np.full(HIDDEN, 1e-2), np.zeros(HIDDEN)
    factor[16:32], shift[32:] = 1, 1e3
    return a * np.where(np.arange(HIDDEN) % 5, factor, 20) - shift, b * factor + shift


def _few_tokens(a: np.ndarray, b: np.ndarray, rng: Random) -> tuple[np.ndarray, np.ndarray]:
    """Move one query and one key far from all others."""
    a[:, 4], b[:, 20] = a[:, 4] * 1e4, b[:, 20] * 1e4
    return a, b


CHANGES: dict[str, Change] = {
    "0.01": lambda a, b, rng: (a * 1e-2, b * 1e-2),
    "1": lambda a, b, rng: (a, b),
    "5": lambda a, b, rng: (a * 5, b * 5),
    "20": lambda a, b, rng: (a * 20, b * 20),
    "50": lambda a, b, rng: (a * 50, b * 50),
    "100": lambda a, b, rng: (a * 1e2, b * 1e2),
    "10000": lambda a, b, rng: (a * 1e4, b * 1e4),
    "wide queries": lambda a, b, rng: (a * 1e4, b * 1e-2),
    "wide keys": lambda a, b, rng: (a * 1e-2, b * 1e4),
    "few wide features": _few_wide,
    "some small features": _some_small,
    "few far tokens": _few_tokens,
    "opposite": lambda a, b, rng: (a * 0.1 + 50, b * 0.1 - 50),
    "constant": lambda a, b, rng: (a * 0 + 50, b * 0 - 50),
    "shifted": lambda a, b, rng: (a + 1e3, b + 1e3),
    "shifted apart": lambda a, b, rng: (a + 1e3, b - 1e3),
    "zero": lambda a, b, rng: (a * 0, b * 0),
}


def made(pair: str, change: Change, rng: Random, heads: int = HEADS, **given: Any) -> Call:
    tokens = [rng.standard_normal((heads, n, HIDDEN)) for n in (QUERIES, KEYS)]
    a, b = (x.astype(np.float32) for x in change(*tokens, rng))
    weight = rng.standard_normal((heads, HIDDEN)).astype(np.float32)
    fields: dict[str, Any] = {
        "queries": QUERIES, "keys": KEYS, "hidden": HIDDEN, "width": WIDTH, "lead": (heads,),
        "a": a, "b": b, "weight": weight, "scale": 1 / math.sqrt(HIDDEN), "dropout": 0.0,
        "key_bias": None, "d_lse": rng.standard_normal((heads, QUERIES)).astype(np.float32),
    }  # fmt: skip
    mask = given.pop("mask", "none")
    return draw(rng, pair, mask, "float32", **(fields | given))


@pytest.mark.parametrize(
    "mask", [pytest.param("none", marks=pytest.mark.slow), "interval and boolean"]
)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("pair", PAIRS)
def test_inputs(pair: str, change: str, mask: str) -> None:
    rng = np.random.default_rng([PAIRS.index(pair), len(change)])
    call = made(pair, CHANGES[change], rng, mask=mask)
    check(call, threads=2)
    check(with_compute(call, "float64"), threads=2)


@pytest.mark.parametrize("change", CHANGES)
def test_decoder_steps(change: str) -> None:
    """Prepared keys are within the budget for any query."""
    rng = np.random.default_rng(len(change))
    for queries in (1, 2):
        call = made("tanh", CHANGES[change], rng)
        step = {"queries": queries, "a": call.a[:, 3 : 3 + queries], "d_lse": None}
        fields = {"b": call.b, "lead": call.lead, "keys": KEYS, "hidden": HIDDEN}
        call = draw(rng, "tanh", "lengths", "float32", **fields, **step)
        check(call, prepared=True)
        check(call, prepared=False)


def rms(x: np.ndarray) -> np.ndarray:
    """Return the root mean square of each feature, over all but the last axis."""
    mean: np.ndarray = np.mean(np.square(x.astype(np.float64)), axis=tuple(range(x.ndim - 1)))
    return np.sqrt(mean)


@pytest.mark.parametrize(
    ("pair", "change"), [*((x, y) for x in PAIRS for y in ("0.01", "1")), ("tanh", "10000")]
)
def test_gradient_of_weight(pair: str, change: str) -> None:
    """The mean error is at most twice that of plain operations; 1 − 2r would lose a small tanh.

    The rounding of a log-sum-exp adds the same error to all weights of its query.
    """
    rng = np.random.default_rng([PAIRS.index(pair), len(change), 7])
    call = made(pair, CHANGES[change], rng, heads=6, d_lse=None)
    results = literal.run(call, np.float64)
    exact, largest = results["d_weight"], float(np.abs(results["lse"]).max())
    plain = literal.run(call, np.float32)["d_weight"]
    found = backward(call, threads=2)["d_weight"]
    errors = [float(np.sqrt(np.mean((x - exact) ** 2))) for x in (found, plain)]
    rounding = EPS["float32"] * (1 + largest / 2) * float(np.sqrt(np.mean(exact**2)))
    assert errors[0] <= 2 * errors[1] + rounding, errors


def _spread(rng: Random, low: float, high: float) -> np.ndarray:
    exponents = rng.permutation(np.linspace(low, high, HIDDEN))
    return rng.choice([-1, 1], HIDDEN) * 10.0**exponents


def _some_zero(rng: Random) -> np.ndarray:
    return rng.standard_normal(HIDDEN) * (rng.random(HIDDEN) < 0.5)


def _dominated(rng: Random) -> np.ndarray:
    weight = 1e-3 * rng.standard_normal(HIDDEN)
    weight[11] = -30
    return weight


WEIGHTS: dict[str, tuple[Callable[[Random], np.ndarray], float]] = {
    "all zero": (lambda rng: np.zeros(HIDDEN), 1.0),
    "some zero": (_some_zero, 1.0),
    "negative": (lambda rng: -np.abs(rng.standard_normal(HIDDEN)), 1.0),
    "small": (lambda rng: 1e-30 * rng.standard_normal(HIDDEN), 1e29),
    "large": (lambda rng: 1e30 * rng.standard_normal(HIDDEN), 1e-30),
    "from 1e-30 to 1": (lambda rng: _spread(rng, -30, 0), 1.0),
    "from 1e-12 to 1": (lambda rng: _spread(rng, -12, 0), 1.0),
    "from 1 to 1e30": (lambda rng: _spread(rng, 0, 30), 1e-30),
    "from 1e-30 to 1e30": (lambda rng: _spread(rng, -30, 30), 1e-30),
    "dominated by one": (_dominated, 0.1),
}
"""(weights, scale that makes the scores near 1)."""


@pytest.mark.parametrize(
    ("pair", "change"),
    [*((x, "1") for x in PAIRS), ("tanh", "few wide features"), ("absolute", "few wide features")],
)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_weights(pair: str, weights: str, change: str) -> None:
    """Gradients of a feature have the accuracy of that feature, at any size of the others."""
    rng = np.random.default_rng([PAIRS.index(pair), len(weights)])
    make, scale = WEIGHTS[weights]
    weight = np.stack([make(rng) for _ in range(HEADS)]).astype(np.float32)
    call = made(pair, CHANGES[change], rng, weight=weight, scale=scale)
    found = check(call, threads=2)
    exact = literal.run(call, WIDER["float32"])
    plain = literal.run(call, np.float32)
    terms = literal.backward(call, np.float64, absolute=True)
    for name in ("d_a", "d_b", "d_weight"):
        errors = [rms(x[name] - exact[name]) for x in (found, plain)]
        band = (BAND + literal.terms(call)) * rms(exact[name]) + rms(terms[name])
        smallest = 1e-37 if name != "d_weight" else 0.0  # smaller float32 have fewer digits
        within = errors[0] <= 2 * errors[1] + EPS["float32"] * band + smallest
        assert within.all(), f"{name}, features {np.flatnonzero(~within)}: {call}"


@pytest.mark.parametrize(
    ("pair", "huge"),
    [*((x, y) for x in ("tanh", "leaky_relu", "absolute") for y in (1e10, 1e30)), ("tanh", 3e38)],
)
def test_huge_tokens(pair: str, huge: float) -> None:
    """A huge finite feature in one query and one key keeps the budget."""
    rng = np.random.default_rng([PAIRS.index(pair), int(math.log10(huge))])
    call = made(pair, CHANGES["1"], rng, scale=1e-3 / (1 if pair == "tanh" else huge))
    call.a.flags.writeable = call.b.flags.writeable = True
    call.a[0, 3, 5], call.b[1, 7, 20], call.b[0, 9, 5] = huge, -huge, -huge / 2
    check(call, threads=2)
