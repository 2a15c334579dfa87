"""The C++ core is as exact as plain operations up to width 4,096, without a band for score terms.

Plain operations sum pairwise, and their tanh(x) is off by a rounding of tanh(x). Kernels that sum
feature by feature, or compute tanh from exponentials, must be as exact.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from core import literal
from core.call import PAIRS, Call, numbers, stored
from core.draw import draw
from core.raw import WIDER, check, core, prepare, run
from helpers.budget import BAND, EPS, assert_near, error, size

pytestmark = pytest.mark.sample

KEYS = 50
CANCEL = ("d_a", "d_b", "d_weight")
"""Gradients with terms that may cancel: all of tanh, where arguments are small."""


def made(pair: str, width: int, value_width: int = 8, small: bool = False, **given: Any) -> Call:
    """Return a call with unit inputs and a layer's initial scores, or with small inputs."""
    rng = np.random.default_rng([PAIRS.index(pair), width, value_width])
    queries, dtype = given.pop("queries", 8), given.pop("dtype", "float32")
    size = 1 / math.sqrt(width) if small else 1.0
    a, b = (size * rng.standard_normal((1, n, width)) for n in (queries, KEYS))
    weighted = pair in ("tanh", "leaky_relu")
    scale = {"squared": -0.5 / width, "absolute": -1 / math.sqrt(width)}
    fields: dict[str, Any] = {
        "queries": queries, "keys": KEYS, "hidden": width, "width": value_width, "lead": (1,),
        "a": stored(a, dtype), "b": stored(b, dtype), "key_bias": None, "d_lse": None,
        "bias": None, "outer": "",
        "scale": 1.0 if small else scale.get(pair, 1 / math.sqrt(width)), "dropout": 0.0,
        "weight": stored(rng.standard_normal((1, width)), dtype) if weighted else None,
    }  # fmt: skip
    return draw(rng, pair, "none", dtype, **(fields | given))


def check_strictly(call: Call, **how: Any) -> None:
    """Assert at most twice plain operations' error plus BAND roundings, in each instruction set."""
    exact = literal.run(call, WIDER[call.compute])
    half = call.value.dtype.itemsize == 2  # the backward takes the rounded output
    plain = literal.run(call, np.dtype(call.compute).type, rounded=half)
    sums = literal.sizes(call) if call.pair == "tanh" else {}
    for isa in core.isas():
        core.use(isa)
        for name, x in run(call, **how).items():
            eps, of = EPS[call.compute], name.removesuffix(" kept")
            band = BAND * size(exact[of]) + (sums[of] if sums and of in CANCEL else 0)
            allowance = 2 * error(plain[of], exact[of]) + eps * band
            if name == "output" and half:
                allowance += EPS["bfloat16"] * size(exact[of])
            assert_near(numbers(x), exact[of], allowance, f"{isa}: {name}")


@pytest.mark.parametrize("queries", [1, 8])
@pytest.mark.parametrize("width", [128, 512, 1024, 2048, 4096])
@pytest.mark.parametrize("pair", PAIRS)
def test_widths(pair: str, width: int, queries: int) -> None:
    check_strictly(made(pair, width, queries=queries))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("pair", PAIRS)
def test_dtypes(pair: str, dtype: str) -> None:
    for queries in (1, 8):
        check_strictly(made(pair, 4096, queries=queries, dtype=dtype))


@pytest.mark.sanitize
@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("queries", [1, 8])
@pytest.mark.parametrize("width", [128, 509, 4096])
def test_small_arguments(width: int, queries: int, prepared: bool) -> None:
    check_strictly(made("tanh", width, small=True, queries=queries), prepared=prepared)


def test_small_arguments_in_float64() -> None:
    check_strictly(made("tanh", 4096, small=True, dtype="float64"))


@pytest.mark.parametrize("queries", [1, 8])
@pytest.mark.parametrize("value_width", [1024, 4096])
@pytest.mark.parametrize("pair", PAIRS)
def test_value_widths(pair: str, value_width: int, queries: int) -> None:
    """Wide values keep the strict budget: each dP is a sum over the width, and D a mean of dP."""
    d_output = np.ones((1, queries, value_width), np.float32)
    check_strictly(made(pair, 8, value_width, queries=queries, d_output=d_output))


@pytest.mark.sanitize
@pytest.mark.parametrize("queries", [1, 8])
def test_masked_keys_beside_small_ones(queries: int) -> None:
    """Masked keys of any size add nothing to the gradient of the weight."""
    call = made("tanh", 64, small=True, queries=queries, stop=np.full((1, 1), 20))
    call.a.flags.writeable = call.b.flags.writeable = True
    call.a[...] *= 8
    call.b[:, 20:] = np.where(call.b[:, 20:] > 0, 60, -60)
    for isa in core.isas():
        core.use(isa)
        check(call)


def test_prepared_keys_say_the_same_whatever_the_instructions() -> None:
    """Small features and centres of prepared keys are the same in every instruction set, so one set
    can read the keys of another.
    """
    call = made("tanh", 100, small=True)
    call.b.flags.writeable = True
    call.b[..., 20] += 3
    call.b[..., 50:] -= 40
    call.b[..., 70] *= 1e3
    made_by = []
    for isa in core.isas():
        core.use(isa)
        made_by.append(prepare(call)[0, 0])
    assert all(np.array_equal(x, made_by[0]) for x in made_by)
    assert len(set(made_by[0])) > 3
