"""A call returns outputs, weights and log-sum-exps, also of queries without keys."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from anyscore import (
    AttentionOutput,
    Causal,
    Dot,
    Lengths,
    Trilinear,
    attention,
    plan,
)
from helpers import oracle
from helpers.by_pair import by_pair
from helpers.samples import NAMES, PAIRS, gradients, leaves, make_score, normal

pytestmark = pytest.mark.sample

B, T_Q, T_K, D, D_V = 2, 3, 7, 5, 11


@pytest.fixture
def arrays() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return normal(B, T_Q, D), normal(B, T_K, D), normal(B, T_K, D_V)


def of(framework: str, *xs: np.ndarray) -> list[Any]:
    return [torch.tensor(x) if framework == "torch" else x for x in xs]


FRAMEWORKS = pytest.mark.parametrize("framework", ["numpy", "torch"])
SCORES = by_pair("name", NAMES)
ONE_OF_EACH_PAIR = pytest.mark.parametrize("name", PAIRS)


# Returns


@FRAMEWORKS
def test_returns_a_plain_tensor_or_what_was_asked(arrays: Any, framework: str) -> None:
    q, k, v = of(framework, *arrays)
    plain = attention(q, k, v)
    assert type(plain) is type(q)
    both = attention(q, k, v, return_weights=True, return_lse=True)
    assert isinstance(both, AttentionOutput)
    assert both._fields == ("output", "weights", "lse")
    assert tuple(both.output.shape) == (B, T_Q, D_V)
    assert tuple(both.weights.shape) == (B, T_Q, T_K)
    assert tuple(both.lse.shape) == (B, T_Q)
    only_weights = attention(q, k, v, return_weights=True)
    assert only_weights.lse is None
    only_lse = attention(q, k, v, return_lse=True)
    assert only_lse.weights is None
    for x, y in [
        (plain, both.output),
        (only_weights.output, both.output),
        (only_weights.weights, both.weights),
        (only_lse.lse, both.lse),
    ]:
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-12)


def test_weights_are_those_of_the_fused_output(no_core: None) -> None:
    q, k, v = (torch.tensor(normal(B, t, D)) for t in (T_Q, T_K, T_K))
    assert plan(q, k, v).route == "sdpa"
    out = attention(q, k, v, return_weights=True)
    assert out.lse is None
    torch.testing.assert_close(out.weights @ v, out.output)


@FRAMEWORKS
@SCORES
def test_output_weights_and_lse_are_the_formula_s(arrays: Any, name: str, framework: str) -> None:
    """All results are the formula's; the log-sum-exp has the terms that cancel in the softmax."""
    q, k, v = arrays
    score = make_score(name)
    s = oracle.scores(q, k, score)
    e = np.exp(s)
    weights = e / e.sum(-1, keepdims=True)
    given = score.map(torch.tensor) if framework == "torch" else score
    out = attention(*of(framework, q, k, v), score=given, return_weights=True, return_lse=True)
    np.testing.assert_allclose(np.asarray(out.weights), weights, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(np.asarray(out.output), weights @ v, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(np.asarray(out.lse), np.log(e.sum(-1)), rtol=1e-10, atol=1e-13)


@SCORES
def test_lse_is_differentiable(arrays: Any, name: str) -> None:
    """Gradients of the log-sum-exp alone agree with finite differences."""
    score, inputs = leaves(make_score(name), *arrays)
    names = list(score.tensors())

    def lse(*xs: torch.Tensor) -> torch.Tensor:
        given = dict(zip(names, xs[3:], strict=True))
        return attention(*xs[:3], score=type(score)(**given), return_lse=True).lse

    assert torch.autograd.gradcheck(lse, inputs)
    assert any(g.abs().sum() > 0 for g in torch.autograd.grad(lse(*inputs).sum(), inputs[:2]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_lse_is_float32_or_better(dtype: torch.dtype) -> None:
    q, k, v = (torch.tensor(normal(t, D), dtype=dtype) for t in (T_Q, T_K, T_K))
    out = attention(q, k, v, return_weights=True, return_lse=True)
    assert out.output.dtype == out.weights.dtype == dtype
    assert out.lse.dtype == torch.promote_types(dtype, torch.float32)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_numpy_keeps_the_dtype(dtype: str) -> None:
    q, k, v = (normal(t, D).astype(dtype) for t in (T_Q, T_K, T_K))
    out = attention(q, k, v, return_weights=True, return_lse=True, valid_lens=3)
    assert out.output.dtype == out.weights.dtype == dtype
    assert out.lse.dtype == np.promote_types(dtype, "float32")


@FRAMEWORKS
def test_small_floats_are_summed_in_float32(framework: str) -> None:
    """The mean of 2,053 ones in float16 is 1; a sum in float16 would stop at 2,048."""
    t = 2053
    q, k, v = of(framework, np.zeros((1, 1, 1)), np.zeros((1, t, 1)), np.ones((1, t, 1)))
    q, k, v = (x.half() if framework == "torch" else x.astype("float16") for x in (q, k, v))
    out = attention(q, k, v, return_lse=True)
    assert float(out.output[0, 0, 0]) == 1
    assert float(out.lse[0, 0]) == pytest.approx(math.log(t), rel=1e-6)


# Queries without keys

NOTHING = {
    "row": lambda: np.array([[1, 1, 0, 0, 1, 0, 1], [0] * 7, [0, 1, 1, 1, 1, 1, 1]], bool),
    "batch": lambda: np.array([1, 0], bool)[:, None, None],
    "everything": lambda: np.zeros((B, T_Q, T_K), bool),
}


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("which", NOTHING)
@ONE_OF_EACH_PAIR
def test_a_query_that_attends_nothing(arrays: Any, name: str, which: str, dropout: float) -> None:
    score, inputs = leaves(make_score(name), *arrays)
    mask = NOTHING[which]()
    empty = torch.tensor(~np.broadcast_to(mask, (B, T_Q, T_K)).any(-1))
    dropped = {"dropout": dropout, "dropout_seed": 1}
    everything = {"return_weights": True, "return_lse": True}
    call = partial(attention, *inputs[:3], score=score, mask=mask, **dropped, **everything)
    out = call()
    assert (out.output[empty] == 0).all()
    assert (out.weights[empty] == 0).all()
    assert (out.lse[empty] == -math.inf).all()
    assert torch.isfinite(out.lse[~empty]).all()
    found = gradients(out, inputs)
    assert all(torch.isfinite(g).all() for g in found)
    assert (found[0][empty] == 0).all()
    if which == "everything":
        assert all((g == 0).all() for g in found)
    if which == "batch":
        assert all((g[1] == 0).all() for g in found[:3])
    # The entries of queries without keys change no gradient, not even a parameter's.
    inputs[0].data[empty] = 1e3
    out = call()
    for g, h in zip(found, gradients(out, inputs), strict=True):
        torch.testing.assert_close(g, h)


@ONE_OF_EACH_PAIR
def test_a_query_shared_by_batches_of_which_one_is_empty(arrays: Any, name: str) -> None:
    """No gradient comes from an example without keys, not even through its log-sum-exp."""
    query, key, value = arrays
    score, inputs = leaves(make_score(name), query[:1], key, value)
    out = attention(
        *inputs[:3], score=score, valid_lens=[0, 4], return_weights=True, return_lse=True
    )
    assert (out.output[0] == 0).all()
    assert (out.lse[0] == -math.inf).all()
    alone = AttentionOutput(*(x[:1] for x in out))
    assert all((g == 0).all() for g in gradients(alone, inputs))


@FRAMEWORKS
def test_no_finite_number_stands_for_masked(framework: str) -> None:
    """Attended scores far below −1e9 share the weight, and a masked key has none."""
    q, k, v = np.array([[1e6]]), np.array([[-1e6], [-1e6], [0.0]]), np.array([[1.0], [3.0], [9.0]])
    out = attention(*of(framework, q, k, v), score=Dot(), valid_lens=2, return_lse=True)
    assert float(out.output[0, 0]) == 2
    assert float(out.lse[0]) == pytest.approx(-1e12)


@pytest.mark.parametrize(
    "mask", [None, Lengths(3), Causal("end")], ids=["none", "lengths", "causal"]
)
@ONE_OF_EACH_PAIR
def test_no_keys_at_all(name: str, mask: Any) -> None:
    """Without keys the output is 0 and no query is read."""
    arrays = [np.full((B, T_Q, D), math.nan), np.zeros((B, 0, D)), np.zeros((B, 0, D_V))]
    score, inputs = leaves(make_score(name), *arrays)
    options = {"mask": mask, "return_weights": True, "return_lse": True}
    out = attention(*inputs[:3], score=score, **options)
    for found in (out, attention(*arrays, score=make_score(name), **options)):
        output, weights, lse = (np.asarray(torch.as_tensor(x).detach()) for x in found)
        assert output.shape == (B, T_Q, D_V)
        assert weights.shape == (B, T_Q, 0)
        assert (output == 0).all()
        assert (lse == -math.inf).all()
    assert all((g == 0).all() for g in gradients(out, inputs))


def test_query_only_terms_stay_in_the_graph(arrays: Any) -> None:
    """A parameter that cancels in the softmax has a gradient of 0, not None."""
    score, inputs = leaves(make_score("Trilinear"), *arrays)
    assert isinstance(score, Trilinear)
    (gradient,) = torch.autograd.grad(attention(*inputs[:3], score=score).sum(), [score.w_q])
    assert (gradient == 0).all()


def test_a_value_of_batch_0() -> None:
    assert attention(torch.ones(1, 3, 5), torch.ones(1, 4, 5), torch.ones(0, 4, 5)).shape == (
        0,
        3,
        5,
    )


def test_outputs_of_numpy_can_be_written_to() -> None:
    out = attention(np.ones((1, 3, 4)), np.ones((1, 5, 4)), np.ones((2, 5, 4)), return_weights=True)
    out.output[:] = 0
    out.weights[:] = 0
