"""`scores`, `log_weights`, `log_sum_exp` and gradients through weights, in NumPy and PyTorch."""

from __future__ import annotations

import tracemalloc
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from anyscore import (
    Additive,
    Dot,
    Gaussian,
    Laplace,
    Lengths,
    Score,
    Trilinear,
    attention,
    log_sum_exp,
    log_weights,
    plan,
    prepare_keys,
    scores,
)
from anyscore.torch import Attention
from helpers.by_pair import by_pair
from helpers.cases import case
from helpers.matrix_rows import check_matrix, each_matrix_row, each_matrix_slope, projection
from helpers.matrix_slopes import KINDS, check_slopes
from helpers.table_rows import Row, keep
from helpers.table_scores import TABLE

pytestmark = pytest.mark.sample

FUNCTIONS = scores, log_weights, log_sum_exp


@each_matrix_row
def test_numpy(row: Row) -> None:
    for dtype, options in (("float32", {}), ("float64", {}), ("float64", {"impl": "reference"})):
        to = partial(np.asarray, dtype=dtype)
        check_matrix(row, dtype, to, np.asarray, np.asarray, **options)


@each_matrix_row
def test_torch(row: Row) -> None:
    for dtype, options in (("float32", {}), ("float64", {"impl": "reference"})):
        to = partial(torch.tensor, dtype=getattr(torch, dtype), requires_grad=dtype == "float32")
        check_matrix(row, dtype, to, torch.as_tensor, Tensor.detach, **options)


def matrix(kind: str, query: Tensor, key: Tensor, **call: Any) -> Tensor:
    """Return the matrix (..., T_q, T_k) of the public function of that kind."""
    if kind == "weights":
        return attention(query, key, key, return_weights=True, **call).weights
    return {"scores": scores, "log_weights": log_weights}[kind](query, key, **call)


@each_matrix_slope
@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind: str, row: Row) -> None:
    for dtype, options in (("float32", {}), ("float64", {}), ("float64", {"impl": "reference"})):
        c = case(*row)
        leaf = partial(torch.tensor, dtype=getattr(torch, dtype), requires_grad=True)
        inputs, score = (
            {"query": leaf(c.query), "key": leaf(c.key)},
            c.score.build(c.parameters, leaf),
        )
        call = {"score": score, **c.masking(torch.as_tensor), **options}
        made = matrix(kind, *inputs.values(), **call)
        inputs |= score.tensors() if isinstance(score, Score) else {}
        made = torch.where(torch.tensor(keep(*row[1:])), made, 0.0)
        total = (made * torch.tensor(projection(row), dtype=made.dtype)).sum()
        found = torch.autograd.grad(total, list(inputs.values()), materialize_grads=True)
        check_slopes(row, kind, dict(zip(inputs, found, strict=True)))


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("softcap", [0.0, 1.5])
def test_gradcheck(function: Any, softcap: float) -> None:
    """First and second derivatives of the fused functions are right, with a query without keys."""
    made = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, dtype=torch.float64, generator=made)
    query, key, w = (draw(*n).requires_grad_() for n in ((2, 2, 3), (2, 3, 3), (3,)))

    def call(query: Tensor, key: Tensor, w: Tensor) -> Tensor:
        mask = Lengths([[0, 2], [3, 1]])
        score = Additive(None, None, w)
        found = function(query, key, score=score, mask=mask, softcap=softcap, impl="fused")
        return torch.where(found == -torch.inf, 0.0, found)

    assert gradcheck(call, (query, key, w), fast_mode=True)
    assert gradgradcheck(call, (query, key, w), fast_mode=True)


@pytest.mark.parametrize("score", [Dot(), Gaussian(), Laplace()])
def test_weights_with_gradients_are_fused(score: Score) -> None:
    """Gradients of a loss on output, weights and log-sum-exp are the definition's."""
    found = {}
    for impl in ("fused", "reference"):
        made = torch.Generator().manual_seed(1)
        draw = partial(torch.randn, dtype=torch.float64, generator=made)
        query, key, value = (draw(2, n, 4).requires_grad_() for n in (3, 70, 70))
        result = attention(
            query, key, value, score=score, valid_lens=[0, 67], return_weights=True,
            return_lse=True, dropout=0.3, dropout_seed=3, impl=impl,
        )  # fmt: skip
        total = (result.output**2).sum() + (result.weights**2).sum()
        total = total + (result.lse[1] ** 2).sum()
        found[impl] = torch.autograd.grad(total, (query, key, value))
    for x, y in zip(*found.values(), strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("fill", [np.nan, np.inf, -np.inf])
def test_masked_is_never_read(fill: float) -> None:
    rng = np.random.default_rng(0)
    query, key = (rng.normal(size=(2, n, 5)).astype(np.float32) for n in (4, 9))
    hostile = key.copy()
    hostile[:, 6:] = fill
    for score in (Dot(), Gaussian(), Additive(None, None, rng.normal(size=5).astype(np.float32))):
        for impl in ("auto", "reference"):
            for function in FUNCTIONS:
                call = partial(function, score=score, valid_lens=[6, 0], impl=impl)
                assert np.array_equal(call(query, key), call(query, hostile))
            left = scores(query, hostile, score=score, valid_lens=[6, 0], impl=impl)
            assert np.isfinite(left[0, :, :6]).all()
            assert (left[0, :, 6:] == -np.inf).all()
            assert (left[1] == -np.inf).all()
    x, y = (torch.tensor(z, requires_grad=True) for z in (query, hostile))
    made = scores(x, y, score=Gaussian(), valid_lens=[6, 0])
    upstream = torch.full_like(made, fill)
    upstream[0, :, :6] = 1.0
    by_query, by_key = torch.autograd.grad(made, (x, y), upstream)
    assert by_query.isfinite().all()
    assert not by_query[1].any()
    assert by_key.isfinite().all()
    assert not by_key[:, 6:].any()


def test_nan_stays_in_its_row() -> None:
    query, key = np.ones((3, 2), np.float32), np.ones((4, 2), np.float32)
    query[1, 0] = np.nan
    for impl in ("auto", "reference"):
        for function in FUNCTIONS:
            found = function(query, key, valid_lens=3, impl=impl)
            attended = found[..., :3] if found.ndim == 2 else found
            assert np.isnan(attended[1]).all()
            assert np.isfinite(attended[[0, 2]]).all()
            if found.ndim == 2:
                assert (found[:, 3:] == -np.inf).all()


def test_the_query_term_is_in_the_scores_and_cancels_in_the_weights() -> None:
    rng = np.random.default_rng(0)
    query, key, *w = (rng.normal(size=n) for n in ((3, 5), (4, 5), 5, 5, 5))
    s = query @ w[0] + (query * w[2] @ key.T + key @ w[1]).T
    np.testing.assert_allclose(scores(query, key, score=Trilinear(*w)), s.T)
    of_query = log_weights(query, key, score=Trilinear(*w))
    without = log_weights(query, key, score=Trilinear(0 * w[0], *w[1:]))
    assert np.array_equal(of_query, without)


def test_prepared_keys() -> None:
    rng = np.random.default_rng(0)
    query, key, w = (rng.normal(size=n) for n in ((2, 3, 5), (2, 6, 5), 5))
    score = Additive(None, None, w)
    for function in FUNCTIONS:
        found = function(query, prepare_keys(key, score), score=score, valid_lens=[2, 6])
        np.testing.assert_allclose(found, function(query, key, score=score, valid_lens=[2, 6]))


def test_half_precision_gives_float32() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        query, key = torch.ones(2, 3, 4, dtype=dtype), torch.ones(2, 5, 4, dtype=dtype)
        for function in FUNCTIONS:
            for impl in ("auto", "reference"):
                assert function(query, key, impl=impl).dtype == torch.float32


def test_the_tensor_times_width_is_never_made() -> None:
    """Scores take the memory of one matrix at width 64, and the log-sum-exp takes none."""
    query, key = np.ones((400, 64), np.float32), np.zeros((400, 64), np.float32)
    scores(query, key, score=Gaussian())
    tracemalloc.start()
    scores(query, key, score=Gaussian())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    log_sum_exp(query, key, score=Gaussian())
    _, of_rows = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    matrix = 400 * 400 * 4
    assert matrix <= peak < 1.5 * matrix
    assert of_rows < matrix / 10


def test_plan_without_a_value() -> None:
    x = np.ones((2, 3))
    assert plan(x, x).route == "cpu"
    assert plan(torch.ones(2, 3), torch.ones(2, 3)).route == "cpu"


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"query": np.ones(3)}, ValueError, "query has shape"),
    ({"key": np.ones((4, 6))}, ValueError, "width"),
    ({"key": None}, TypeError, "key is a NoneType"),
    ({"key": torch.ones(4, 5)}, TypeError, "key is a PyTorch tensor"),
    ({"score": "dot"}, TypeError, "score must be"),
    ({"mask": np.ones((4, 4))}, TypeError, "mask"),
    ({"softcap": -1.0}, ValueError, "softcap must be"),
    ({"impl": "fast"}, ValueError, "impl must be"),
]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(("wrong", "kind", "message"), WRONG)
def test_errors(function: Any, wrong: dict[str, Any], kind: type[Exception], message: str) -> None:
    call: dict[str, Any] = {"query": np.ones((3, 5)), "key": np.ones((4, 5))} | wrong
    with pytest.raises(kind, match=message):
        function(**call)


def test_attention_still_asks_for_a_value() -> None:
    with pytest.raises(TypeError, match="value is a NoneType"):
        attention(np.ones((3, 5)), np.ones((4, 5)), None)


@by_pair("name", TABLE)
def test_layers(name: str) -> None:
    """A layer's scores are the same before and after its call; their softmax is its weights."""
    made = torch.Generator().manual_seed(0)
    x, y = (torch.randn(2, n, 4, generator=made) for n in (3, 5))
    sizes = {"hidden": 8} if TABLE[name].hidden else {}
    layer, lengths = Attention(name, softcap=2.0, **sizes), torch.tensor([5, 2])
    found = layer.scores(x, y, lengths)
    layer(x, y, valid_lens=lengths)
    torch.testing.assert_close(found.softmax(-1), layer.attention_weights)
    assert torch.equal(found, layer.scores(x, y, mask=Lengths(lengths)))
    assert (found[1, :, 2:] == -torch.inf).all()
    assert found.isfinite().sum() == 3 * 7
    if list(layer.parameters()):
        torch.where(found == -torch.inf, 0.0, found).square().sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
    with pytest.raises(ValueError, match=r"width|d_k"):
        layer.scores(x, y[..., :2])
