"""`scores`, `log_weights`, `log_sum_exp` and their gradients are right in MXNet."""

from __future__ import annotations

from functools import partial

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from anyscore import attention, log_weights, plan, scores
from anyscore.mxnet import Attention
from frameworks.mxnet.arrays import numbers, to
from helpers.cases import case
from helpers.matrix_rows import MATRIX_ROWS, SLOPES, check_matrix, projection
from helpers.table_rows import Row, keep

pytestmark = pytest.mark.usefixtures("np_mode")

NOT_OURS = ("no_batch", "no_query", "no_key", "grouped_5d")
"""Shapes for which MXNet's own `@`, which a callable may use, reads memory beyond the arrays."""
ROWS = [row for row in MATRIX_ROWS if row[0] != "callable" or row[1] not in NOT_OURS]


@pytest.mark.parametrize("row", ROWS, ids="-".join)
def test_values(row: Row) -> None:
    mx_array = partial(to, dtype="float32")
    check_matrix(row, "float32", mx_array, to, numbers)


@pytest.mark.parametrize("kind", ["scores", "log_weights", "weights"])
@pytest.mark.parametrize("row", [row for row in SLOPES if row[0] != "callable"], ids="-".join)
def test_gradients(row: Row, kind: str) -> None:
    """Gradients of the core equal those of the definition in float64."""
    c, mx_array, found = case(*row), partial(to, dtype="float64"), []
    for impl in ("fused", "reference"):
        score = c.score.build(c.parameters, mx_array)
        inputs = {"query": mx_array(c.query), "key": mx_array(c.key), **score.tensors()}
        for x in inputs.values():
            x.attach_grad()
        call = {"score": score, **c.masking(to), "impl": impl}
        if isinstance(getattr(score, "negative_slope", 0.2), mx.np.ndarray):
            call["impl"] = "auto"  # a learned slope
        with autograd.record():
            query, key = inputs["query"], inputs["key"]
            if kind == "weights":
                made = attention(query, key, key, return_weights=True, **call).weights
            else:
                made = {"scores": scores, "log_weights": log_weights}[kind](query, key, **call)
            kept = mx.np.where(to(keep(*row[1:])), made, mx.np.zeros_like(made))
            total = (kept * mx_array(projection(row))).sum()
        total.backward()
        found.append({name: x.grad.asnumpy() for name, x in inputs.items()})
    for name, x in found[0].items():
        np.testing.assert_allclose(x, found[1][name], rtol=1e-9, atol=1e-11, err_msg=name)


def test_both_kinds_of_arrays() -> None:
    x = mx.nd.ones((2, 3))
    assert type(scores(x, x)) is mx.nd.NDArray
    assert type(scores(x.as_np_ndarray(), x.as_np_ndarray())) is mx.np.ndarray
    assert plan(x, x).route == "cpu"


def test_layers() -> None:
    made = np.random.default_rng(0)
    x, y = (mx.np.array(made.normal(size=(2, n, 4)), dtype="float32") for n in (3, 5))
    layer = Attention("additive", hidden=8)
    layer.initialize()
    with autograd.record():
        found = layer.scores(x, y, [2, 5])
    layer(x, y, valid_lens=[2, 5])
    weights = layer.attention_weights.asnumpy()
    np.testing.assert_allclose(mx.npx.softmax(found).asnumpy(), weights, rtol=1e-5)
