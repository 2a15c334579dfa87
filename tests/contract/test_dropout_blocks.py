"""A block of the queries and keys of a longer call drops the entries that the longer call drops."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from anyscore.backends import numpy_core
from anyscore.call.operands import Operands, Results
from anyscore.kernels import cpu
from anyscore.modifiers.dropout import dropout_mask
from anyscore.ops import load
from helpers import machine
from helpers.dropout_blocks import (
    KEYS,
    LEAD,
    ORIGINS,
    QUERIES,
    RATE,
    SEED,
    SETTINGS,
    Block,
    assert_drops,
    block,
    kept,
)

pytestmark = [pytest.mark.sample, machine.needs_core]
ORIGIN = pytest.mark.parametrize("origin", ORIGINS)


def operands(x: Block, origin: Any) -> Operands:
    return Operands(
        x.a, x.b, value=x.value, seed=SEED, origin=None if origin is None else np.array(origin)
    )


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@ORIGIN
def test_the_mask(origin: tuple[int, int], framework: str) -> None:
    xp, array = load(framework), np.array if framework == "numpy" else torch.tensor
    mask = dropout_mask(xp, array(SEED), RATE, LEAD, 66, KEYS, array(origin))
    np.testing.assert_array_equal(np.asarray(mask), kept(66, origin))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("queries", QUERIES)
@ORIGIN
def test_the_core(origin: tuple[int, int], queries: int, dtype: str) -> None:
    x = block(queries, dtype)
    record = operands(x, origin)
    results = numpy_core.forward(record, SETTINGS)
    gradients = numpy_core.backward(record, SETTINGS, results, Results(x.d_output, None))
    found = {f"d_{name}": getattr(gradients, name) for name in ("a", "b", "value")}
    assert_drops({"output": results.output, **found}, x, origin)


def test_an_origin_of_zero_is_none() -> None:
    x = block(66, "float32")
    found, expected = (numpy_core.forward(operands(x, y), SETTINGS) for y in ((0, 0), None))
    np.testing.assert_array_equal(found.output, expected.output)


@pytest.mark.parametrize(
    ("origin", "message"),
    [
        ((0, 2), "origin must have a first key that is a multiple of 4"),
        ((-1, 0), "origin holds -1 at 0, expected 0 to 4294967295"),
        ((0, 2**32), "origin holds 4294967296 at 1"),
        ((0, 0, 0), "origin has shape"),
        ((0.0, 0.0), "origin must be int64 or int32"),
    ],
)
def test_the_core_refuses_other_origins(origin: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        numpy_core.forward(operands(block(1, "float32"), origin), SETTINGS)


def test_calls_with_an_origin_are_not_repeated() -> None:
    x = operands(block(1, "float32"), (0, 4))
    with pytest.raises(ValueError, match="operands that are made for it"):
        cpu.repeated_call(x, SETTINGS, None, lambda like, shape: np.empty(shape, like.dtype), False)
