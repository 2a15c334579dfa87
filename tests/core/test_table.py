"""The C++ core on a table of pairs, masks and dtypes, with random shapes, strides and heads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from core.call import DTYPES, PAIRS, stored
from core.draw import MASKS, draw
from core.raw import check, compare, run_alone

pytestmark = pytest.mark.sample

DRAWN = 2
"""Number of calls in each cell of the table."""

PAIR = pytest.mark.parametrize("pair", PAIRS)
DTYPE = pytest.mark.parametrize("dtype", DTYPES)


@pytest.mark.sanitize
@DTYPE
@pytest.mark.parametrize("mask", MASKS)
@PAIR
def test_table(pair: str, mask: str, dtype: str) -> None:
    rng = np.random.default_rng([PAIRS.index(pair), MASKS.index(mask), DTYPES.index(dtype)])
    for _ in range(DRAWN):
        check(draw(rng, pair, mask, dtype), threads=int(rng.integers(1, 4)))


@pytest.mark.sanitize
@pytest.mark.parametrize("prepared", [False, True])
@DTYPE
@PAIR
def test_decoder_steps(pair: str, dtype: str, prepared: bool) -> None:
    """Calls with few queries keep the budget, with and without prepared keys."""
    rng = np.random.default_rng([PAIRS.index(pair), DTYPES.index(dtype), prepared])
    for queries in (1, 2, 1, 2, 5):
        mask = str(rng.choice(MASKS))
        call = draw(rng, pair, mask, dtype, queries=queries)
        check(call, threads=2, prepared=prepared and pair == "tanh")


@pytest.mark.sanitize
@pytest.mark.parametrize("given", [("d_scores",), ("d_lse",), ("d_scores", "d_lse"), ()])
@PAIR
def test_without_values(pair: str, given: tuple[str, ...]) -> None:
    """Scores, log-sum-exp and gradients without values are those with values and d_output = 0."""
    rng = np.random.default_rng([PAIRS.index(pair), len(given)])
    for queries in (1, 5, 70):
        for mask in ("none", "lengths", "causal", "interval and boolean"):
            call = draw(rng, pair, mask, "float32", queries=queries, dropout=0.0)
            drawn = {
                "d_scores": (*call.lead, call.queries, call.keys),
                "d_lse": (*call.lead, call.queries),
            }
            upstream: dict[str, Any] = {
                name: rng.standard_normal(shape).astype(np.float32) if name in given else None
                for name, shape in drawn.items()
            }
            call = replace(call, **upstream, d_output=np.zeros_like(call.d_output))
            compare(call, run_alone(call))


SIZES = [
    (130, 130, 65, 64), (65, 64, 64, 65), (64, 130, 16, 17), (17, 1, 130, 1), (1, 130, 63, 130),
    (63, 65, 1, 130), (129, 257, 17, 16), (2, 300, 64, 33), (30, 50, 256, 256), (75, 70, 128, 128),
]  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=str)
@PAIR
def test_around_the_tiles(pair: str, size: tuple[int, ...]) -> None:
    """Sizes at, below and above a vector and a tile keep the budget, and so do powers of two."""
    rng = np.random.default_rng([PAIRS.index(pair), *size])
    given = dict(zip(("queries", "keys", "hidden", "width"), size, strict=True))
    mask = str(rng.choice(["none", "causal", "interval and boolean"]))
    check(draw(rng, pair, mask, "float32", lead=(2,), **given), threads=2)


@pytest.mark.sanitize
@pytest.mark.parametrize("empty", ["queries", "keys", "hidden", "width", "lead", "none of them"])
@PAIR
def test_nothing(pair: str, empty: str) -> None:
    """Each size may be 0: without hidden features, only biases contribute to scores."""
    rng = np.random.default_rng(PAIRS.index(pair))
    given: dict[str, Any] = {"queries": 3, "keys": 5, "hidden": 7, "width": 2, "lead": (2, 2)}
    if empty in given:
        given[empty] = (2, 0) if empty == "lead" else 0
    for mask in ("none", "interval", "boolean"):
        for dtype in DTYPES:
            check(draw(rng, pair, mask, dtype, **given), threads=2)


@PAIR
def test_mixed_dtypes(pair: str) -> None:
    """Each operand may have its own dtype; sums have the dtype of the log-sum-exp."""
    rng = np.random.default_rng(PAIRS.index(pair))
    for _ in range(12):
        mask = str(rng.choice(MASKS))
        shape = {"queries": 5, "keys": 19, "hidden": 17, "width": 6, "lead": (2, 4), "groups": 2}
        drawn = {
            name: str(rng.choice(DTYPES)) for name in ("a", "b", "weight", "key_bias", "value")
        }
        operands = {
            "a": (2, 4, 5, 17), "b": (2, 2, 19, 17), "weight": (1, 4, 17), "key_bias": (2, 2, 19),
            "value": (2, 2, 19, 6),
        }  # fmt: skip
        arrays = {
            name: stored(rng.standard_normal(operands[name]), dtype)
            for name, dtype in drawn.items()
        }
        d_output = stored(rng.standard_normal((2, 4, 5, 6)), drawn["value"])
        compute = str(rng.choice(["float32", "float64"]))
        d_lse = rng.standard_normal((2, 4, 5)).astype(compute)
        made = {**shape, **arrays, "d_output": d_output, "d_lse": d_lse, "compute": compute}
        check(draw(rng, pair, mask, "float32", **made))


@PAIR
def test_strides_of_zero(pair: str) -> None:
    """Rows repeated by a stride of 0 are read like any others, and each has its own gradient."""
    rng = np.random.default_rng(PAIRS.index(pair))
    one = draw(rng, pair, "none", "float32", queries=1, keys=1, hidden=9, width=4, lead=(1, 1))
    full = {"queries": 6, "keys": 20, "hidden": 9, "width": 4, "lead": (2, 3)}
    shapes = {"a": (2, 3, 6, 9), "b": (2, 3, 20, 9), "value": (2, 3, 20, 4)}
    arrays = {name: np.broadcast_to(getattr(one, name), shape) for name, shape in shapes.items()}
    masks = {
        "mask": np.broadcast_to(np.array([[[[True]], [[False]], [[True]]]]), (2, 3, 6, 20)),
        "stop": np.broadcast_to(np.int64(13), (2, 3, 6)),
        "key_bias": np.broadcast_to(np.float32(0.5), (2, 3, 20)),
        "d_output": np.broadcast_to(np.array([1, 2, 3, 4], np.float32), (2, 3, 6, 4)),
    }
    check(draw(rng, pair, "none", "float32", **full, **arrays, **masks), threads=2)


@pytest.mark.parametrize("period", [1, 3, 6])
def test_dropout_repeats(period: int) -> None:
    """Dropout repeats over leading dimensions that transforms add in front."""
    rng = np.random.default_rng(period)
    for p, seed in ((0.5, 2**64 - 1), (0.9, -1), (0.999, 0)):
        given = {"dropout": p, "seed": seed, "period": period, "lead": (2, 3)}
        check(draw(rng, "tanh", "interval", "float32", queries=4, keys=70, **given))
