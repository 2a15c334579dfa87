"""Normalizers agree with the algorithms of their papers, by loops in float64."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from anyscore import (
    Additive,
    Causal,
    Dot,
    Euclidean,
    Gaussian,
    Keys,
    Lengths,
    Score,
    Sigmoid,
    Trilinear,
    attention,
    plan,
    prepare_keys,
    scores,
)
from anyscore.call.task import Call, Options
from anyscore.functional.attention import attend, weights
from anyscore.layers.last_weights import snapshot
from anyscore.ops import load
from anyscore.torch import Attention, MultiHeadAttention
from helpers import oracle
from helpers.budget import EPS, assert_near
from helpers.by_pair import by_pair
from helpers.cases import OPTIONS, SCORES, case
from helpers.table_rows import Row

pytestmark = pytest.mark.sample

OTHERS = "sigmoid", "sparsemax", "entmax15"
each = pytest.mark.parametrize("normalizer", OTHERS)

ROWS = [(score, "heads", "four") for score in SCORES | OPTIONS]
ROWS += [
    ("trilinear", "grouped_6_2", "four"),
    ("dot", "no_key", "none"),
    ("dot", "rank_3", "four"),
    ("dot", "rank_2", "none"),
    ("gaussian", "heads", "none"),
]


def sigmoid(s: list[float], bias: float | None = None) -> list[float]:
    bias = -math.log(len(s)) if bias is None else bias
    return [1 / (1 + math.exp(-x - bias)) for x in s]


def sparsemax(s: list[float]) -> list[float]:
    """Return sparsemax of scores, by algorithm 1 of Martins & Astudillo 2016."""
    total = tau = 0.0
    for k, x in enumerate(sorted(s, reverse=True), 1):
        total += x
        if 1 + k * x > total:
            tau = (total - 1) / k
    return [max(x - tau, 0.0) for x in s]


def entmax15(s: list[float]) -> list[float]:
    """Return entmax-1.5 of scores, by algorithm 2 of Peters, Niculae & Martins 2019."""
    z = sorted((x / 2 for x in s), reverse=True)
    tau = math.nan
    for k in range(1, len(z) + 1):
        mean = sum(z[:k]) / k
        left = 1 - sum((x - mean) ** 2 for x in z[:k])
        if left >= 0 and mean - math.sqrt(left / k) <= z[k - 1]:
            tau = mean - math.sqrt(left / k)
    return [max(x / 2 - tau, 0.0) ** 2 for x in s]


FORMULAS: dict[str, Any] = {"sigmoid": sigmoid, "sparsemax": sparsemax, "entmax15": entmax15}


def by_loops(row: Row, normalizer: str) -> tuple[np.ndarray, np.ndarray]:
    """Return output and weights of a row of the table."""
    c = case(*row)
    s = oracle.scores(
        c.query, c.key, c.score.build(c.parameters, np.asarray), **c.masking(np.asarray)
    )
    value, lead = oracle.numbers(c.value), s.shape[:-2]
    found = np.zeros_like(s)
    output = np.zeros((*s.shape[:-1], value.shape[-1]))
    for at in np.ndindex(*s.shape[:-1]):
        attended = np.flatnonzero(s[at] > -np.inf)
        if len(attended):
            found[at][attended] = FORMULAS[normalizer](s[at][attended].tolist())
        of_v = oracle.place(value.shape[:-2], at[:-1], lead)
        output[at] = found[at][attended] @ value[of_v][attended]
    return output, found


@each
@by_pair("row", ROWS, ids="-".join)
def test_values(row: Row, normalizer: str) -> None:
    c, exact = case(*row), by_loops(row, normalizer)
    for dtype in ("float64", "float32"):
        for array in (
            partial(np.asarray, dtype=dtype),
            partial(torch.tensor, dtype=getattr(torch, dtype)),
        ):
            given = [array(x) for x in (c.query, c.key, c.value)]
            asarray = np.asarray if isinstance(given[0], np.ndarray) else torch.as_tensor
            call = {"score": c.score.build(c.parameters, array), **c.masking(asarray)}
            for impl in ("auto", "reference"):
                found = attention(
                    *given, **call, normalizer=normalizer, return_weights=True, impl=impl
                )
                near = 500 * EPS[dtype]
                assert found.lse is None
                for name, x, y in zip(("output", "weights"), found, exact, strict=False):
                    assert_near(x, y, near * max(1.0, np.abs(y).max(initial=0)), name, dtype)


def test_sparse_weights_are_zero_exactly() -> None:
    s = np.array([[3.0, 2.5, 0.0, -1.0]])
    for normalizer, expected in (("sparsemax", [0.75, 0.25, 0, 0]), ("entmax15", None)):
        found = attention(
            s, np.eye(4), np.eye(4), score=Dot(), normalizer=normalizer, return_weights=True
        ).weights[0]
        assert np.array_equal(found[2:], [0, 0])
        assert not np.signbit(found).any()
        assert math.isclose(found.sum(), 1, rel_tol=1e-15)
        if expected is not None:
            np.testing.assert_allclose(found, expected, rtol=1e-15)


def small(dtype: Any = torch.float64) -> list[Tensor]:
    made = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, dtype=dtype, generator=made)
    return [(1.5 * draw(*n)).requires_grad_() for n in ((2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 2))]


@each
@pytest.mark.parametrize("impl", ["fused", "reference"])
@pytest.mark.parametrize("score", [Dot(), Gaussian(2.0)])
def test_gradients(score: Score, impl: str, normalizer: str) -> None:
    """First and second derivatives are right, with a cap and a query without keys."""

    def call(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return tuple(attention(
            query, key, value, score=score, mask=Lengths([[0, 2, 5], [3, 1, 4]]), softcap=3.0,
            normalizer=normalizer, return_weights=True, impl=impl,
        ))[:2]  # fmt: skip

    assert gradcheck(call, small(), fast_mode=True)
    assert gradgradcheck(call, small(), fast_mode=True)


@each
def test_the_query_bias(normalizer: str) -> None:
    """A query bias cancels, with a gradient of 0, except in the sigmoid."""
    query, key, value = small()
    parameters = [
        torch.randn(
            4, dtype=torch.float64, requires_grad=True, generator=torch.Generator().manual_seed(i)
        )
        for i in range(3)
    ]

    def call(query: Tensor, key: Tensor, value: Tensor, *parameters: Tensor) -> Any:
        return attention(
            query, key, value, score=Trilinear(*parameters), valid_lens=[0, 4],
            normalizer=normalizer,
        )  # fmt: skip

    assert gradcheck(call, (query, key, value, *parameters), fast_mode=True)
    (slope,) = torch.autograd.grad(call(query, key, value, *parameters).sum(), parameters[0])
    assert bool(slope.any()) == (normalizer == "sigmoid")


@each
def test_what_is_masked_is_not_read(normalizer: str) -> None:
    made = []
    for poison in (0.0, math.nan, math.inf):
        xs = [x.detach() for x in small()]
        for x in xs[1:]:
            x[0, :, 3:] = poison
            x[1] = poison
        xs[0][1] = poison
        xs = [x.requires_grad_() for x in xs]
        found = attention(*xs, valid_lens=[3, 0], normalizer=normalizer, return_weights=True)
        (found.output.square().sum() + found.weights.square().sum()).backward()
        made.append([found.output, found.weights, *(x.grad for x in xs)])
    for x, y in zip(made[0] * 2, made[1] + made[2], strict=True):
        assert torch.equal(x, y)
        assert x.isfinite().all()
    assert not made[0][0][1].any()
    assert not made[0][1][1].any()
    output = attention(
        *xs, mask=Keys(torch.tensor([[True] * 3 + [False] * 2] * 2)), normalizer=normalizer
    )
    assert output[0].isfinite().all()
    assert not output[1].isfinite().any()


MASKS = {
    "none": None,
    "lengths": Lengths([[0], [100]]),
    "causal": Causal("end"),
    "pairs": np.random.default_rng(2).random((2, 1, 130, 170)) < 0.3,
    "both": Keys(np.arange(170) % 3 > 0) & Causal("end"),
}


@pytest.mark.slow
@each
@pytest.mark.parametrize("queries", [2, 130])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_many_tiles(normalizer: str, mask: str, queries: int, dropout: float) -> None:
    """Fused output, weights and gradients over many tiles agree with the definition."""
    made = np.random.default_rng(0)
    arrays = [
        made.normal(size=(2, h, n, d)) for h, n, d in ((6, queries, 9), (3, 170, 9), (3, 170, 7))
    ]
    masking = MASKS[mask]
    if isinstance(masking, np.ndarray):
        masking = torch.as_tensor(masking[..., :queries, :])
    found = []
    for impl, dtype in (
        ("reference", torch.float64),
        ("fused", torch.float64),
        ("fused", torch.float32),
    ):
        xs = [torch.tensor(x, dtype=dtype, requires_grad=True) for x in arrays]
        result = attention(
            *xs, mask=masking, normalizer=normalizer, impl=impl, dropout=dropout, dropout_seed=1,
            return_weights=True,
        )  # fmt: skip
        (result.output.square().sum() + result.weights.square().sum()).backward()
        alone = attention(
            *xs, mask=masking, normalizer=normalizer, impl=impl, dropout=dropout, dropout_seed=1
        )
        torch.testing.assert_close(alone, result.output)
        found.append([result.output, result.weights, *(x.grad for x in xs)])
    for x, y, z in zip(*found, strict=True):
        torch.testing.assert_close(y, x, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(z.double(), x, rtol=1e-3, atol=1e-4)


@each
def test_gradients_that_are_not_finite(normalizer: str) -> None:
    """NaN in the gradient of an output reaches its query and the keys of that query."""
    query, key, value = small()
    output = attention(query, key, value, valid_lens=[3, 5], normalizer=normalizer)
    upstream = torch.ones_like(output)
    upstream[0, 0, 1] = math.nan
    output.backward(upstream)
    assert query.grad[0, 0, 1].isnan().all()
    assert query.grad[0, 0, ::2].isfinite().all()
    assert key.grad[0, 0, 3:].eq(0).all()
    for x in (query.grad, key.grad, value.grad):
        assert x[1].isfinite().all()
        assert x[0, 1].isfinite().all()


@each
@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_nan_in_what_is_attended(normalizer: str, impl: str) -> None:
    """NaN in a key makes the outputs of its queries NaN, and no others."""
    query, key, value = (x.detach() for x in small())
    key[0, :, 2] = math.nan
    lengths = torch.tensor([[2, 3, 5], [5, 5, 5]])
    found = attention(
        query, key, value, valid_lens=lengths, normalizer=normalizer, return_weights=True, impl=impl
    )
    assert found.output[0, :, 1:].isnan().all()
    assert found.output[0, :, 0].isfinite().all()
    assert found.output[1].isfinite().all()
    assert not found.weights[0, 0, 0, 2:].any()
    assert not found.weights[0, 0, 1, 3:].any()


def test_scores_of_minus_infinity_and_magnitudes() -> None:
    """A callable's score of −∞ has weight 0. Among huge scores the largest has all the weight."""
    value = torch.eye(3)
    for normalizer in OTHERS:
        s = torch.tensor(
            [[0.0, -math.inf, 0.0], [1e4, -1e4, 3e38], [-math.inf] * 3], requires_grad=True
        )
        found = attention(
            value,
            value,
            value,
            score=lambda q, k, s=s: s,
            normalizer=normalizer,
            return_weights=True,
        )
        w = found.weights.detach()
        half = 1 / (1 + 3) if normalizer == "sigmoid" else 0.5
        torch.testing.assert_close(w[0], torch.tensor([half, 0, half]))
        first = float(normalizer == "sigmoid")
        assert w[1].tolist() == [first, 0, 1]
        assert not w[2].any()
        found.output.square().sum().backward()
        assert s.grad.isfinite().all()


@each
def test_dropout(normalizer: str) -> None:
    query, key, value = (x.detach() for x in small())
    value = torch.eye(5, dtype=torch.float64).expand(2, 2, 5, 5)
    call = partial(attention, query, key, value, valid_lens=[3, 5])
    output, full, _ = call(normalizer=normalizer, dropout=0.4, dropout_seed=7, return_weights=True)
    dropped = call(dropout=0.4, dropout_seed=7)
    full = torch.where(dropped == 0, 0.0, full)
    torch.testing.assert_close(output, full / 0.6)
    assert (full == 0).any()
    arrays = attention(
        *(x.numpy() for x in (query, key, value)), valid_lens=[3, 5], normalizer=normalizer,
        dropout=0.4, dropout_seed=7,
    )  # fmt: skip
    np.testing.assert_allclose(arrays, output, rtol=1e-12, atol=1e-15)


@each
def test_half_precision(normalizer: str) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        halves = [x.detach().to(dtype) for x in small(torch.float32)]
        found = attention(*halves, normalizer=normalizer, return_weights=True)
        assert found.output.dtype == found.weights.dtype == dtype
        exact = attention(*(x.float() for x in halves), normalizer=normalizer)
        torch.testing.assert_close(found.output.float(), exact, rtol=2**-7, atol=2**-7)


def test_the_bias_of_the_sigmoid() -> None:
    """The sigmoid's bias is −log n for n attended keys, or a number; padding changes nothing."""
    query, key, value = (x.detach() for x in small())
    whole = attention(query, key, value, mask=Causal("start"), normalizer="sigmoid")
    for i in range(3):
        alone = attention(
            query[..., i : i + 1, :],
            key[..., : i + 1, :],
            value[..., : i + 1, :],
            normalizer="sigmoid",
        )
        torch.testing.assert_close(whole[..., i : i + 1, :], alone)
    given = attention(query, key, value, normalizer=Sigmoid(-math.log(5)))
    torch.testing.assert_close(given, attention(query, key, value, normalizer="sigmoid"))
    ones = attention(
        query,
        key,
        value,
        score=lambda q, k: 0 * q @ k.mT,
        normalizer=Sigmoid(0),
        return_weights=True,
    )
    assert (ones.weights == 0.5).all()
    keep = torch.tensor([[[True], [False], [True]]])
    column = attention(query, key, value, mask=keep[None], normalizer="sigmoid")
    torch.testing.assert_close(column[..., 0, :], given[..., 0, :])


@pytest.mark.slow
@each
@pytest.mark.parametrize("impl", ["fused", "reference"])
def test_with_biases_and_outer_functions(normalizer: str, impl: str) -> None:
    """A bias after an outer function is normalised with the scores."""
    query, key, value = small()
    bias = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def call(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Any:
        result = attention(
            query, key, value, score=Euclidean(), bias_after=bias, valid_lens=[5, 3],
            normalizer=normalizer, return_weights=True, impl=impl,
        )  # fmt: skip
        return result.output, result.weights

    assert gradcheck(call, (query, key, value, bias.requires_grad_()))
    s = scores(query, key, score=Euclidean(), valid_lens=[5, 3]) + bias
    exact = attention(
        query, key, value, score=lambda q, k: s, valid_lens=[5, 3], normalizer=normalizer
    )
    torch.testing.assert_close(call(query, key, value, bias)[0], exact)


@each
def test_prepared_keys(normalizer: str) -> None:
    query, key, value = (x.detach() for x in small())
    score = Additive(None, None, torch.ones(4, dtype=torch.float64))
    prepared = prepare_keys(key, score, valid_lens=[3, 5])
    found, exact = (
        attention(query, k, value, score=score, valid_lens=[3, 5], normalizer=normalizer)
        for k in (prepared, key)
    )
    torch.testing.assert_close(found, exact)


@each
def test_weights_of_a_layer_s_last_call(normalizer: str) -> None:
    query, key, value = (x.detach() for x in small())
    score = Trilinear(*(torch.ones(4, dtype=torch.float64) for _ in range(3)))
    result, task = attend(
        Call(query, key, value, score, normalizer=normalizer), Options(return_scores=True)
    )
    torch.testing.assert_close(weights(snapshot(load("torch"), task)), result.weights)


@each
def test_layers(normalizer: str) -> None:
    query, key, value = (x.detach().float() for x in small())
    layer = Attention("dot", normalizer=normalizer)
    exact = attention(query, key, value, score=Dot(), normalizer=normalizer, return_weights=True)
    torch.testing.assert_close(layer(query, key, value), exact.output)
    torch.testing.assert_close(layer.attention_weights, exact.weights)
    torch.testing.assert_close(layer.last_weights(rows=1), exact.weights[..., 1, :])
    assert repr(layer) == repr(copy.deepcopy(layer))
    assert normalizer in repr(layer).lower()
    heads = MultiHeadAttention(4, 2, normalizer=normalizer)
    output = heads(*[x[:, 0] for x in (query, key)])
    assert output.isfinite().all()


@each
def test_the_same_bits_by_any_number_of_threads(normalizer: str) -> None:
    made = np.random.default_rng(0)
    query, key, value = (
        torch.tensor(made.normal(size=(2, 3, 130, 8)), dtype=torch.float32) for _ in range(3)
    )
    found = []
    before = torch.get_num_threads()
    for threads in (1, 3):
        torch.set_num_threads(threads)
        found.append(
            attention(query, key, value, normalizer=normalizer, return_weights=True).weights
        )
    torch.set_num_threads(before)
    assert torch.equal(*found)


def test_the_sigmoid_is_fused_and_needs_no_scores() -> None:
    query, key, value = (x.detach() for x in small())
    for bias in (None, 0.5):
        made = plan(query, key, value, normalizer=Sigmoid(bias))
        assert (made.route, made.reason) == ("cpu", "fused, and keeps the contract")
    made = plan(query, key, value, normalizer="sparsemax", impl="fused")
    assert made.route == "cpu"
    assert made.reason.endswith("so the scores alone are fused")


@each
def test_the_plan(normalizer: str, no_core: None) -> None:
    query, key, value = (x.detach() for x in small())
    assert plan(query, key, value, normalizer=normalizer).route == "reference"


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"normalizer": "sparse_max"}, ValueError, "'sparse_max': did you mean 'sparsemax'"),
    ({"normalizer": "Entmax"}, ValueError, "did you mean 'entmax15'"),
    ({"normalizer": None}, TypeError, r"must be one of 'softmax', .*, got None"),
    ({"normalizer": Sigmoid}, TypeError, r"or a Sigmoid\(bias\), got <class"),
    ({"normalizer": "sigmoid", "return_lse": True}, ValueError, "return_lse is for normalizer="),
    ({"normalizer": "entmax15", "return_lse": True}, ValueError, "takes no log-sum-exp"),
    ({"normalizer": "sigmoid", "sink": 0.0}, ValueError, "sink is for .* need not sum to 1"),
    ({"normalizer": "sparsemax", "sink": 0.0}, ValueError, "has no sum of exponentials"),
    ({"normalizer": "sparsemax", "impl": "separable"}, NotImplementedError, "for normalizer="),
]


@pytest.mark.parametrize(("given", "kind", "message"), WRONG)
def test_errors(given: dict[str, Any], kind: type[Exception], message: str) -> None:
    for function in (attention, plan):
        with pytest.raises(kind, match=message):
            function(*small(), **given)


@pytest.mark.parametrize(
    ("bias", "kind"),
    [("0", TypeError), (True, TypeError), (math.nan, ValueError), (math.inf, ValueError)],
)
def test_a_wrong_bias(bias: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="bias must be"):
        Sigmoid(bias)


def test_a_layer_refuses_it_when_it_is_made() -> None:
    with pytest.raises(ValueError, match="did you mean 'sigmoid'"):
        Attention("dot", normalizer="sigmod")
