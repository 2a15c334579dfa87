"""Edges as a mask give each query the result of a call with the keys of its edges alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anyscore import (
    Edges,
    GATv2,
    ScaledDot,
    Sigmoid,
    attention,
    log_sum_exp,
    log_weights,
    plan,
    scores,
)
from anyscore.score.factors import Factors
from anyscore.score.pairs import Pair
from helpers import oracle
from helpers.budget import EPS, assert_near, size
from helpers.by_pair import by_pair
from helpers.samples import NAMES, WIDTH, gradients, leaves, make_score, normal

pytestmark = pytest.mark.sample

QUERIES, KEYS, HEADS, WIDTH_VALUE = 21, 17, 2, 6
IMPLS = "auto", "reference"


def pairs() -> np.ndarray:
    """Return shuffled sources and targets (2, E) with degrees 0, 1, > a tile, and duplicates."""
    rng = np.random.default_rng(3)
    source = [rng.integers(0, KEYS - 1, n) for n in (1, 130, 64, 65, 3)]  # the last key has no edge
    target = [np.full(len(x), i) for i, x in enumerate(source)]
    source.append(np.full(70, 4)), target.append(rng.integers(5, QUERIES - 2, 70))
    both = np.stack([np.concatenate(source), np.concatenate(target)])
    return both[:, rng.permutation(both.shape[1])]


EDGE_INDEX = pairs()
SOURCE, TARGET = EDGE_INDEX
EDGES = EDGE_INDEX.shape[1]


def inputs() -> list[np.ndarray]:
    return [
        normal(HEADS, QUERIES, WIDTH),
        normal(HEADS, KEYS, WIDTH),
        normal(HEADS, KEYS, WIDTH_VALUE),
    ]


def expected(
    name: str, *arrays: np.ndarray, bias: Any = 0.0, **changed: Any
) -> tuple[np.ndarray, ...]:
    """Return output, weights (..., E) in EDGE_INDEX's order, log-sum-exp and scores, by loops."""
    query, key, value = arrays
    s = oracle.scores(query, key, make_score(name))[:, TARGET, SOURCE] + bias
    s = changed.get("function", lambda x: x)(s)
    lse, weights = np.full(query.shape[:-1], -math.inf), np.zeros_like(s)
    output = np.zeros((*query.shape[:-1], value.shape[-1]))
    for h, i in np.ndindex(*lse.shape):
        own = np.flatnonzero(i == TARGET)
        if len(own):
            lse[h, i] = np.logaddexp.reduce(s[h, own])
        weights[h, own] = np.exp(s[h, own] - lse[h, i])
        if "weigh" in changed and len(own):
            weights[h, own] = changed["weigh"](s[h, own])
        output[h, i] = weights[h, own] @ value[h, SOURCE[own]]
    return output, weights, lse, s


def call(name: str, arrays: Any, score: Any = None, **options: Any) -> Any:
    edges = Edges.from_index(EDGE_INDEX, QUERIES)
    score = make_score(name) if score is None else score
    return attention(
        *arrays, score=score, mask=edges, return_weights=True, return_lse=True, **options
    )


@by_pair("name", NAMES)
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_values(name: str, impl: str, framework: str) -> None:
    arrays, to = inputs(), np.asarray if framework == "numpy" else torch.tensor
    exact = expected(name, *arrays)
    score = make_score(name).map(to)
    found = call(name, list(map(to, arrays)), score, impl=impl)
    for x, want in zip(found, exact, strict=False):
        assert_near(x, want, 1e-12 * max(1, size(want)))
    assert (
        plan(*map(to, arrays), score=score, mask=Edges.from_index(EDGE_INDEX, QUERIES)).route
        == "cpu"
    )


@by_pair("name", NAMES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_other_types(name: str, dtype: str) -> None:
    """The kernel is as exact as the definition in the same dtype."""
    kind = getattr(torch, dtype)
    given = [torch.tensor(x).to(kind) for x in inputs()]
    score = make_score(name).map(lambda x: torch.tensor(x).to(kind))
    fused, plain = (call(name, given, score, impl=impl) for impl in IMPLS)
    rounded = expected_of_rounded(name, given, score)
    for x, y, want in zip(fused, plain, rounded, strict=False):
        assert x.dtype == y.dtype
        finite = np.isfinite(want)
        worst = np.abs(y.double().numpy()[finite] - want[finite]).max()
        assert_near(x, want, 2 * worst + 16 * EPS[dtype] * size(want))


def expected_of_rounded(name: str, given: list[torch.Tensor], score: Any) -> tuple[np.ndarray, ...]:
    """Return the results of the definition in float64 on the rounded inputs."""
    double = [x.double() for x in given]
    found = call(name, double, score.map(lambda x: x.double()), impl="reference")
    return tuple(x.numpy() for x in found)


@by_pair("name", NAMES)
@pytest.mark.parametrize(
    "options", [{}, {"softcap": 1.5}, {"dropout": 0.4, "dropout_seed": 7}], ids=str
)
def test_gradients(name: str, options: dict[str, Any]) -> None:
    """Gradients of the kernels are the definition's, also of a bias and of parameters."""
    found = []
    for impl in IMPLS:
        score, xs = leaves(make_score(name), *inputs(), normal(HEADS, EDGES, seed=5))
        out = call(name, xs[:3], score, bias=xs[3], impl=impl, **options)
        is_given = torch.isfinite(out.lse)
        out = out._replace(lse=out.lse[is_given])
        found.append([*(x.detach() for x in out), *gradients(out, xs)])
    for x, y in zip(*found, strict=True):
        assert_near(x, y.numpy(), 1e-11 * max(1, size(y.numpy())))


@pytest.mark.parametrize("name", ["Additive", "GATv2", "ScaledDot", "Laplace"])
def test_gradients_in_float32(name: str) -> None:
    found = []
    for _impl, kind in (
        ("auto", torch.float32),
        ("reference", torch.float32),
        ("reference", torch.float64),
    ):
        score, xs = leaves(make_score(name), *inputs())
        score = score.map(lambda x, kind=kind: x.detach().to(kind).requires_grad_())
        xs = [x.detach().to(kind).requires_grad_() for x in xs[:3]]
        out = call(name, xs, score)._replace(lse=None)
        found.append(gradients(out, [*xs, *score.tensors().values()]))
    for x, y, exact in zip(*found, strict=True):
        want = exact.numpy()
        worst = np.abs(y.numpy() - want).max()
        assert_near(x, want, 2 * worst + 16 * EPS["float32"] * size(want))


def test_second_derivatives() -> None:
    edges = Edges.from_index([[0, 1, 1, 2, 2], [0, 0, 0, 2, 1]], 4)
    xs = [torch.tensor(normal(n, 2), requires_grad=True) for n in (4, 3)]
    w = torch.tensor([0.7, -0.4], dtype=torch.float64, requires_grad=True)

    def output(q: torch.Tensor, k: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return attention(q, k, k, score=GATv2(None, None, w), mask=edges)

    assert torch.autograd.gradgradcheck(output, (*xs, w))


@pytest.mark.parametrize("impl", IMPLS)
def test_what_surrounds_the_scores(impl: str) -> None:
    arrays, bias = inputs(), normal(HEADS, EDGES, seed=5)

    def attend(**options: Any) -> Any:
        edges = Edges.from_index(EDGE_INDEX, QUERIES)
        return attention(
            *arrays,
            score=make_score("GATv2"),
            mask=edges,
            return_weights=True,
            impl=impl,
            **options,
        )

    def check(found: Any, want: tuple[np.ndarray, ...]) -> None:
        assert_near(found.output, want[0], 1e-11)
        assert_near(found.weights, want[1], 1e-11)

    check(attend(bias=bias), expected("GATv2", *arrays, bias=bias))
    check(attend(bias=bias[0]), expected("GATv2", *arrays, bias=bias[0]))
    capped = lambda s: 1.5 * np.tanh(s / 1.5)  # noqa: E731
    check(attend(softcap=1.5), expected("GATv2", *arrays, function=capped))
    check(
        attend(softcap=1.5, bias=bias, bias_after=2 * bias),
        expected("GATv2", *arrays, bias=bias, function=lambda s: capped(s) + 2 * bias),
    ) if impl == "reference" else None
    check(
        attend(softcap=1.5, bias_after=bias),
        expected("GATv2", *arrays, function=lambda s: capped(s) + bias),
    )
    sink = np.array([0.3, -1.0])
    output, weights, lse, _ = expected("GATv2", *arrays)
    share = 1 / (1 + np.exp(sink[:, None] - lse))
    check(attend(sink=sink), (output * share[..., None], weights * share[:, TARGET]))
    sigmoid = lambda s: 1 / (1 + np.exp(-(s - math.log(len(s)))))  # noqa: E731
    check(attend(normalizer="sigmoid"), expected("GATv2", *arrays, weigh=sigmoid))
    fixed = lambda s: 1 / (1 + np.exp(-(s - 1.0)))  # noqa: E731
    check(attend(normalizer=Sigmoid(-1.0)), expected("GATv2", *arrays, weigh=fixed))


@pytest.mark.parametrize("impl", IMPLS)
def test_scores_alone(impl: str) -> None:
    query, key, value = inputs()
    _, weights, lse, s = expected("Additive", query, key, value)
    given = {
        "score": make_score("Additive"),
        "mask": Edges.from_index(EDGE_INDEX, QUERIES),
        "impl": impl,
    }
    assert_near(scores(query, key, **given), s, 1e-12 * size(s))
    assert_near(log_sum_exp(query, key, **given), lse, 1e-12 * size(lse))
    assert_near(np.exp(log_weights(query, key, **given)), weights, 1e-12)


def test_compressed_rows_are_the_same_edges() -> None:
    order = np.argsort(TARGET, kind="stable")
    rowptr = np.searchsorted(TARGET[order], np.arange(QUERIES + 1))
    query, key, value = inputs()
    one = attention(query, key, value, mask=Edges(rowptr, SOURCE[order]), return_weights=True)
    other = attention(
        query, key, value, mask=Edges.from_index(EDGE_INDEX, QUERIES), return_weights=True
    )
    assert np.array_equal(one.output, other.output)
    assert np.array_equal(one.weights, other.weights[:, order])
    short = Edges(rowptr.astype(np.int32), SOURCE[order].tolist())
    assert np.array_equal(attention(query, key, value, mask=short), one.output)


def test_any_callable() -> None:
    arrays = inputs()
    score = lambda q, k: (q @ k.swapaxes(-1, -2)) / math.sqrt(WIDTH)  # noqa: E731
    found = call("ScaledDot", arrays, score)
    assert_near(found.output, expected("ScaledDot", *arrays)[0], 1e-12)


@pytest.mark.slow
def test_own_pair_and_grouped_heads() -> None:
    softplus = Pair.from_formula("softplus_of_edges", "log(1 + exp(a + b))")

    class Softplus(type(ScaledDot())):  # type: ignore[misc]
        def lower(self, xp: Any, query: Any, key: Any) -> Factors:
            return Factors(query, key, softplus)

    query, key, value = normal(2, 4, QUERIES, 5), normal(2, 2, KEYS, 5), normal(2, 2, KEYS, 3)
    edges = Edges.from_index(EDGE_INDEX, QUERIES)
    one, other = (attention(query, key, value, score=Softplus(), mask=edges, impl=i) for i in IMPLS)
    assert_near(one, other, 1e-12)
    wide = [np.repeat(x, 2, axis=1) for x in (key, value)]
    assert_near(attention(query, *wide, score=Softplus(), mask=edges), other, 1e-12)


@pytest.mark.parametrize("name", ["ScaledDot", "Additive", "GATv2", "Laplace"])
def test_same_bits_for_any_number_of_threads(name: str) -> None:
    rng, found = np.random.default_rng(0), []
    edges = Edges.from_index(rng.integers(0, 900, (2, 20_000)), 900)
    before = torch.get_num_threads()
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        score, xs = leaves(make_score(name), *(normal(2, 900, WIDTH, seed=i) for i in range(3)))
        out = attention(*xs[:3], score=score, mask=edges, return_lse=True)
        found.append([out.output, *gradients((out.output,), xs)])
    torch.set_num_threads(before)
    assert all(torch.equal(x, y) for many in found[1:] for x, y in zip(many, found[0], strict=True))


@pytest.mark.parametrize("name", ["Additive", "GATv2", "ScaledDot", "Gaussian"])
@pytest.mark.parametrize("impl", IMPLS)
def test_nan_reaches_who_attends_it(name: str, impl: str) -> None:
    def run(which: int, row: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
        arrays = inputs()
        arrays[which][:, row, 1] = math.nan
        score, xs = leaves(make_score(name), *arrays)
        output = call(name, xs[:3], score, impl=impl).output
        return output.detach(), gradients((output[:, [0, 1]],), xs[:3])

    for which in (1, 2):
        output, _ = run(which, KEYS - 1)  # a key without edges
        assert torch.isfinite(output).all()
        output, _ = run(which, 4)
        bad = torch.isnan(output).any(-1).any(0)
        reached = np.isin(np.arange(QUERIES), TARGET[SOURCE == 4])
        assert np.array_equal(bad.numpy(), reached)
    output, slopes = run(0, QUERIES - 1)  # a query without edges
    assert torch.isfinite(output).all()
    assert all(torch.isfinite(x).all() for x in slopes)
    output, _ = run(0, 3)
    assert np.array_equal(torch.isnan(output).any(-1).any(0).numpy(), np.arange(QUERIES) == 3)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("name", ["ScaledDot", "Laplace"])
@pytest.mark.parametrize("shared", [False, True])
def test_heads_that_are_views_of_rows_of_all_heads(name: str, dtype: str, shared: bool) -> None:
    """Heads that are views give the same bits: their rows are first copied side by side."""
    assert EDGES > 4 * QUERIES  # only rows that are gathered often are copied
    found = []
    for apart in (True, False):
        xs = [torch.tensor(x).to(getattr(torch, dtype)) for x in inputs()]
        if apart:
            xs = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in xs]
        xs = [x.requires_grad_() for x in xs]
        given = [xs[0], xs[1], xs[1]] if shared else xs
        assert given[1].is_contiguous() != apart
        score = make_score(name).map(lambda x: torch.tensor(x).to(getattr(torch, dtype)))
        output = call(name, given, score).output
        found.append([output.detach(), *gradients((output,), xs[: len(set(given))])])
    assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))


@given(st.integers(0, 2**32 - 1), st.integers(0, 40), st.integers(1, 9), st.integers(1, 9))
def test_without_duplicates_edges_are_a_boolean_mask(
    seed: int, n: int, queries: int, keys: int
) -> None:
    rng = np.random.default_rng(seed)
    keep = np.zeros((queries, keys), bool)
    keep[rng.integers(0, queries, n), rng.integers(0, keys, n)] = True
    target, source = np.nonzero(keep)
    order = rng.permutation(len(target))
    edges = Edges.from_index(np.stack([source[order], target[order]]), queries)
    q, k, v = rng.normal(size=(queries, 5)), rng.normal(size=(keys, 5)), rng.normal(size=(keys, 3))
    found, want = (attention(q, k, v, mask=m, return_weights=True) for m in (edges, keep))
    assert_near(found.output, want.output, 1e-12)
    assert_near(found.weights, want.weights[target[order], source[order]], 1e-12)


@pytest.mark.parametrize("impl", IMPLS)
def test_nothing_to_attend(impl: str) -> None:
    for queries, keys in ((3, 2), (0, 2), (3, 0), (0, 0)):
        edges = Edges([0] * (queries + 1), [])
        xs = [torch.ones(n, 4, requires_grad=True) for n in (queries, keys, keys)]
        found = attention(*xs, mask=edges, return_lse=True, return_weights=True, impl=impl)
        assert found.output.shape == (queries, 4)
        assert not found.output.any()
        assert found.weights.shape == (0,)
        assert (found.lse == -math.inf).all()
        found.output.sum().backward()
        assert all(x.grad is not None and not x.grad.any() for x in xs)
