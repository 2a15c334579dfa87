"""Scores × masks in TensorFlow agree with the oracle: values, and gradients of all inputs.

Calls run eagerly, where an operation costs microseconds; test_graphs.py has traced calls.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import torch

from anyscore import Additive, Score, attention, log_weights, scores
from anyscore.functional.attention import plan
from helpers import far_rows, plain
from helpers.budget import assert_gradients_within_budget, assert_within_budget
from helpers.by_pair import by_pair
from helpers.cases import OPTIONS, SCORES, case
from helpers.gradient_rows import exact_gradients, projections, terms
from helpers.table_rows import ROWS, dealt, exact, keep, modes_and_scores

pytestmark = pytest.mark.sample

Row = tuple[str, str, str]
HANDS = dealt(
    ["float64 reference", "float32 auto"],
    [row for row in ROWS if row[1] == "heads" or row[0] == "additive"],
)
for _row in [row for row in HANDS["float64 reference"] if row[1] == "broadcast_5d"]:
    HANDS["float64 reference"].remove(_row)  # TensorFlow's operations do not broadcast six axes
    HANDS["float32 auto"].append(_row)


def build(score: str, parameters: dict[str, Any], to: Any) -> Any:
    """Return the score of the package, or the callable of the table in TensorFlow's functions."""
    if score == "callable":
        return lambda query, key: tf.matmul(query, key, transpose_b=True) ** 2 / 20
    return (SCORES | OPTIONS)[score].build(parameters, to)


def check(row: Row, dtype: str, impl: str) -> None:
    """Assert the budget of output, weights and log-sum-exp, and of a call for the output alone."""
    c = case(*row)

    def to(x: np.ndarray) -> tf.Tensor:
        return tf.constant(x, dtype)

    tensors, score = [to(x) for x in (c.query, c.key, c.value)], build(row[0], c.parameters, to)
    call = partial(attention, *tensors, score=score, **c.masking(tf.constant), impl=impl)
    found = call(return_weights=True, return_lse=True)
    for name, x, expected, simple in zip(
        found._fields, found, exact(*row), same(row, dtype), strict=True
    ):
        wide = "float32" if name == "lse" and dtype != "float64" else dtype
        assert_within_budget(x.numpy(), expected, simple, f"{name} of {row}", wide)
    what = f"output alone of {row}"
    assert_within_budget(call().numpy(), exact(*row).output, same(row, dtype)[0], what, dtype)


@cache
def same(row: Row, dtype: str) -> tuple[np.ndarray, ...]:
    """Return results of the plain formula in NumPy: TensorFlow's operations lack its names."""
    c = case(*row)
    to = partial(np.asarray, dtype=dtype)
    built = c.score.build(c.parameters, to)
    with np.errstate(all="ignore"):
        return plain.attend(np, to(c.query), to(c.key), to(c.value), built, keep(*row[1:]))


@by_pair(
    ("mode", "score"),
    [
        pytest.param(*x, marks=pytest.mark.slow if "reference" in x[0] else ())
        for x in modes_and_scores(HANDS)
    ],
    score=1,
)
def test_values(mode: str, score: str) -> None:
    for row in HANDS[mode]:
        if row[0] == score:
            check(row, *mode.split())


@pytest.mark.parametrize("impl", ["reference", "auto"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("score", ["additive", "scaled_dot", "gaussian"])
def test_halves(score: str, dtype: str, impl: str) -> None:
    """Half precision agrees with float64 on the same rounded numbers."""
    c = case(score, "heads", "four")

    def to(x: np.ndarray) -> tf.Tensor:
        return tf.constant(x, dtype)

    tensors, masking = [to(x) for x in (c.query, c.key, c.value)], c.masking(np.asarray)
    found = attention(*tensors, score=c.score.build(c.parameters, to), **masking, impl=impl)

    def wide(x: Any) -> np.ndarray:
        return tf.cast(to(x), tf.float64).numpy()

    rounded = [wide(x) for x in (c.query, c.key, c.value)]
    expected = attention(*rounded, score=c.score.build(c.parameters, wide), **masking)
    assert found.dtype == dtype
    band = {"float16": 4e-3, "bfloat16": 3e-2}[dtype]
    np.testing.assert_allclose(tf.cast(found, tf.float64), expected, atol=band, rtol=band)


GRADIENT_ROWS: list[Row] = [
    *((score, "heads", "four") for score in SCORES),
    *((score, "heads", "none") for score in ("additive", "cosine", "trilinear", "callable")),
    *(("gatv2", shape, "lengths_full") for shape in ("no_key", "no_query", "rank_2", "no_batch")),
    *((score, "grouped_6_2", "four") for score in ("additive_each", "dot", "trilinear")),
    *((score, "broadcast", "boolean_full") for score in ("additive", "gaussian")),
]


@by_pair("row", GRADIENT_ROWS, ids="-".join)
@pytest.mark.parametrize(("dtype", "impl"), [("float64", "reference"), ("float32", "auto")])
def test_gradients(row: Row, dtype: str, impl: str) -> None:
    """Gradients of output and log-sum-exp at once keep the budget, for all inputs."""
    c = case(*row)

    def to(x: np.ndarray) -> tf.Tensor:
        return tf.constant(x, dtype)

    inputs = {"query": to(c.query), "key": to(c.key), "value": to(c.value)}
    score = build(row[0], c.parameters, to)
    inputs |= score.tensors() if isinstance(score, Score) else {}
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        given = (inputs[name] for name in ("query", "key", "value"))
        masking = c.masking(np.asarray)
        found = attention(*given, score=score, **masking, return_lse=True, impl=impl)
    upstream = [tf.constant(x, dtype) for x in projections(row)]
    results = [found.output, found.lse]
    zero = tf.UnconnectedGradients.ZERO
    slopes = tape.gradient(results, list(inputs.values()), upstream, zero)
    actual = {name: x.numpy() for name, x in zip(inputs, slopes, strict=True)}
    assert actual.keys() == exact_gradients(row).keys()
    plainly = same_gradients(row, dtype) if c.shape.keys else actual
    assert_gradients_within_budget(actual, exact_gradients(row), plainly, partial(terms, row))


@cache
def same_gradients(row: Row, dtype: str) -> dict[str, torch.Tensor]:
    """Return gradients of the plain formula in PyTorch."""
    c = case(*row)

    def leaf(x: np.ndarray) -> torch.Tensor:
        return torch.tensor(x, dtype=getattr(torch, dtype)).requires_grad_()

    inputs = {"query": leaf(c.query), "key": leaf(c.key), "value": leaf(c.value)}
    score = c.score.build(c.parameters, leaf)
    given = list(inputs.values())
    inputs |= score.tensors() if isinstance(score, Score) else {}
    output, _, lse = plain.attend(torch, *given, score, torch.as_tensor(keep(*row[1:])))
    upstream = [torch.as_tensor(x, dtype=output.dtype) for x in projections(row)]
    found = torch.autograd.grad([output, lse], list(inputs.values()), upstream)
    return dict(zip(inputs, found, strict=True))


@by_pair("score", SCORES)
def test_the_core_runs_all_scores(score: str) -> None:
    c = case(score, "heads", "four")
    tensors = [tf.constant(x) for x in (c.query, c.key, c.value)]
    built = build(score, c.parameters, tf.constant)
    assert plan(*tensors, score=built).route == ("reference" if score == "callable" else "cpu")


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_rows_far_from_0(impl: str) -> None:
    """Rows of −1e9 and of finite minima are as exact as others."""
    q, k, value, bias, upstream = map(tf.constant, far_rows.example().values())
    options = {"bias": bias, "score": Additive(None, None, tf.ones(4)), "impl": impl}
    with tf.GradientTape() as tape:
        tape.watch([value, bias])
        output = attention(q, k, value, **options)
    d_value, d_bias = tape.gradient(output, [value, bias], output_gradients=upstream)
    found = {"output": output, "d_value": d_value, "d_bias": d_bias}
    found |= {"log_weights": log_weights(q, k, **options)}
    arrays = (x.numpy() for x in (scores(q, k, **options), value, upstream))
    far_rows.check(*arrays, **{name: x.numpy() for name, x in found.items()})
