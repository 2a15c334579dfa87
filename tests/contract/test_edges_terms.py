"""Terms of edges: an edge adds its term to its key before the key is scored."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from anyscore import (
    Additive,
    Concat,
    Dot,
    Edges,
    GATv2,
    Gaussian,
    Laplace,
    ScaledDot,
    attention,
    log_sum_exp,
    scores,
)
from helpers.budget import EPS, assert_near, size
from helpers.by_pair import by_pair
from helpers.samples import gradients, normal

pytestmark = pytest.mark.sample

QUERIES, KEYS, HEADS, WIDTH = 9, 7, 2, 5
RNG = np.random.default_rng(1)
SOURCE = np.concatenate([RNG.integers(0, KEYS - 1, 60), np.full(140, 2)])
TARGET = np.concatenate([RNG.integers(0, QUERIES - 1, 60), np.full(140, 4)])  # more than two tiles
ORDER = RNG.permutation(200)
PAIRS = np.stack([SOURCE, TARGET])[:, ORDER]
IMPLS = "auto", "reference"
WEIGHT = normal(WIDTH, seed=9)

# Scores of rows a and b = key + term, in NumPy.
FORMULAS: dict[str, tuple[Any, Any]] = {
    "additive": (
        lambda to: Additive(None, None, to(WEIGHT)),
        lambda a, b: np.tanh(a + b) @ WEIGHT,
    ),
    "gatv2": (
        lambda to: GATv2(None, None, to(WEIGHT)),
        lambda a, b: np.where(a + b > 0, a + b, 0.2 * (a + b)) @ WEIGHT,
    ),
    "gatv2 of another slope": (
        lambda to: GATv2(None, None, to(WEIGHT), 0.5),
        lambda a, b: np.where(a + b > 0, a + b, 0.5 * (a + b)) @ WEIGHT,
    ),
    "dot": (lambda _: Dot(), lambda a, b: (a * b).sum(-1)),
    "scaled_dot": (lambda _: ScaledDot(), lambda a, b: (a * b).sum(-1) / math.sqrt(WIDTH)),
    "laplace": (lambda _: Laplace(2.0), lambda a, b: -np.abs(a - b).sum(-1) / 2),
    "gaussian": (lambda _: Gaussian(1.5), lambda a, b: -((a - b) ** 2).sum(-1) / (2 * 1.5**2)),
}


def inputs() -> list[np.ndarray]:
    return [
        normal(HEADS, QUERIES, WIDTH),
        normal(HEADS, KEYS, WIDTH, seed=1),
        normal(HEADS, KEYS, 3, seed=2),
        normal(HEADS, PAIRS.shape[1], WIDTH, seed=3),
    ]


def expected(name: str, *arrays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the output and the scores (..., E)."""
    query, key, value, term = arrays
    source, target = PAIRS
    s = FORMULAS[name][1](query[:, target], key[:, source] + term)
    output = np.zeros((HEADS, QUERIES, value.shape[-1]))
    for h, i in np.ndindex(HEADS, QUERIES):
        own = np.flatnonzero(target == i)
        if len(own):
            p = np.exp(s[h, own] - np.logaddexp.reduce(s[h, own]))
            output[h, i] = p @ value[h, source[own]]
    return output, s


def attend(name: str, arrays: Any, **options: Any) -> Any:
    query, key, value, term = arrays
    to = np.asarray if isinstance(query, np.ndarray) else lambda x: torch.tensor(x).to(query.dtype)
    edges = Edges.from_index(PAIRS, QUERIES).with_terms(term)
    return attention(query, key, value, score=FORMULAS[name][0](to), mask=edges, **options)


@by_pair("name", FORMULAS)
@pytest.mark.parametrize("impl", ["fused", "reference"])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("scale", [1.0, 200.0])
def test_values(name: str, impl: str, framework: str, scale: float) -> None:
    """Results with large terms are exact: tanh needs the range of keys with their terms."""
    query, key, value, term = inputs()
    arrays = [query, key, value, scale * term]
    to = np.asarray if framework == "numpy" else torch.tensor
    output, s = expected(name, *arrays)
    found = attend(name, [to(x) for x in arrays], impl=impl)
    assert_near(found, output, 1e-12 * max(1, size(s)))
    edges = Edges.from_index(PAIRS, QUERIES).with_terms(to(arrays[3]))
    score = FORMULAS[name][0](to)
    assert_near(scores(to(query), to(key), score=score, mask=edges), s, 1e-12 * max(1, size(s)))


@by_pair("name", FORMULAS)
@pytest.mark.parametrize(
    "options",
    [{}, {"softcap": 1.5}, {"normalizer": "sigmoid"}, {"dropout": 0.4, "dropout_seed": 7}],
    ids=str,
)
def test_gradients(name: str, options: dict[str, Any]) -> None:
    found = []
    for impl in IMPLS:
        xs = [torch.tensor(x, requires_grad=True) for x in inputs()]
        out = attend(name, xs, impl=impl, return_weights=True, **options)
        found.append([out.output.detach(), *gradients((out.output, out.weights), xs)])
    for x, y in zip(*found, strict=True):
        assert_near(x, y.numpy(), 1e-11 * max(1, size(y.numpy())))


@pytest.mark.parametrize("name", ["additive", "gatv2", "dot"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_types(name: str, dtype: str) -> None:
    kind, found = getattr(torch, dtype), []
    given = [torch.tensor(x).to(kind) for x in inputs()]
    for impl, of in (("fused", kind), ("reference", kind), ("reference", torch.float64)):
        xs = [x.to(of).requires_grad_() for x in given]
        out = attend(name, xs, impl=impl)
        found.append([out.detach(), *torch.autograd.grad(out.double().sin().sum(), xs)])
    for x, y, exact in zip(*found, strict=True):
        want = exact.double().numpy()
        worst = np.abs(y.double().numpy() - want).max()
        assert_near(x.double(), want, 2 * worst + 16 * EPS[dtype] * size(want))


def test_second_derivatives() -> None:
    edges = Edges.from_index([[0, 1, 1, 2, 2], [0, 0, 0, 2, 1]], 4)
    xs = [torch.tensor(normal(n, 2, seed=n), requires_grad=True) for n in (4, 3, 5)]
    w = torch.tensor([0.7, -0.4], dtype=torch.float64, requires_grad=True)

    def output(q: Any, k: Any, c: Any, w: Any) -> torch.Tensor:
        return attention(q, k, k, score=Additive(None, None, w), mask=edges.with_terms(c))

    assert torch.autograd.gradgradcheck(output, (*xs, w))


@pytest.mark.parametrize("impl", IMPLS)
def test_heads_share_terms(impl: str) -> None:
    query, key, value, term = (torch.tensor(x) for x in inputs())
    shared = term[0].requires_grad_()
    one = attend("gatv2", (query, key, value, shared), impl=impl)
    many = shared.detach().expand(HEADS, -1, -1).clone().requires_grad_()
    other = attend("gatv2", (query, key, value, many), impl=impl)
    assert_near(one, other.detach().numpy(), 1e-14)
    (a,), (b,) = (
        torch.autograd.grad(x.square().sum(), y) for x, y in ((one, shared), (other, many))
    )
    assert_near(a, b.sum(0).numpy(), 1e-12)


def test_vmap() -> None:
    query, key, value, _ = (torch.tensor(x) for x in inputs())
    terms = torch.tensor(normal(3, HEADS, PAIRS.shape[1], WIDTH))
    loss = lambda c: attend("additive", (query, key, value, c)).sin().sum()  # noqa: E731
    found = torch.func.vmap(torch.func.grad(loss))(terms)
    each = torch.stack([torch.func.grad(loss)(c) for c in terms])
    assert_near(found, each.numpy(), 1e-12)


@pytest.mark.parametrize("name", ["additive", "gatv2", "gaussian", "dot"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e300])
def test_numbers_that_are_not_finite_stay_with_their_query(name: str, bad: float) -> None:
    e = int(np.flatnonzero(PAIRS[1] == 4)[0])
    found = []
    for impl in IMPLS:
        xs = [torch.tensor(x, requires_grad=True) for x in inputs()]
        with torch.no_grad():
            xs[3][:, e, 1] = bad
        out = attend(name, xs, impl=impl)
        others = [i for i in range(QUERIES) if i != 4]
        of_query, _, _, of_terms = gradients((out,), xs)
        assert torch.isfinite(out[:, others]).all()
        assert torch.isfinite(of_query[:, others]).all()
        assert torch.isfinite(of_terms[:, PAIRS[1] != 4]).all()
        found.append(out.detach())
    assert_near(found[0], found[1].numpy(), 1e-11)


def test_same_bits_for_any_number_of_threads() -> None:
    found, before = [], torch.get_num_threads()
    pairs = np.random.default_rng(0).integers(0, 300, (2, 6000))
    edges = Edges.from_index(pairs, 300)
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        xs = [torch.tensor(normal(2, n, 8, seed=n), requires_grad=True) for n in (300, 300, 6000)]
        q, k, c = xs
        score = GATv2(None, None, torch.tensor(normal(8)))
        out = attention(q, k, k, score=score, mask=edges.with_terms(c))
        found.append([out.detach(), *gradients((out,), xs)])
    torch.set_num_threads(before)
    assert all(torch.equal(x, y) for many in found[1:] for x, y in zip(many, found[0], strict=True))


def test_parameters_of_scores_and_copies() -> None:
    """Terms are added to projected keys. Edges with other terms give other results."""
    W_q, W_k, w = normal(6, WIDTH), normal(6, WIDTH, seed=4), normal(6, seed=5)
    query, key, _, _ = inputs()
    term = normal(HEADS, PAIRS.shape[1], 6)
    edges = Edges.from_index(PAIRS, QUERIES)
    found = log_sum_exp(query, key, score=Additive(W_q, W_k, w), mask=edges.with_terms(term))
    a, b = query @ W_q.T, key @ W_k.T
    want = log_sum_exp(a, b, score=Additive(None, None, w), mask=edges.with_terms(term))
    assert_near(found, want, 1e-12)
    without = log_sum_exp(a, b, score=Additive(None, None, w), mask=edges)
    assert not np.allclose(want, without)
    joined = Concat(np.concatenate([W_q, W_k], 1), w)
    assert_near(log_sum_exp(query, key, score=joined, mask=edges.with_terms(term)), want, 1e-12)


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "width": (
        np.ones((200, 4)),
        ValueError,
        r"terms has shape \(200, 4\), expected \(..., 200, 5\)",
    ),
    "edges": (
        np.ones((199, 5)),
        ValueError,
        r"terms has shape \(199, 5\), expected \(..., 200, width\)",
    ),
    "lead": (np.ones((3, 200, 5)), ValueError, r"leading dimensions \(2,\)"),
    "rank": (np.ones(200), ValueError, r"terms has shape \(200,\)"),
    "integers": (np.ones((200, 5), int), TypeError, "terms is int64, expected one of"),
    "text": ("abc", TypeError, "terms is 'abc'"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_errors(wrong: str) -> None:
    term, kind, message = WRONG[wrong]
    with pytest.raises(kind, match=message):
        attend("gatv2", [*inputs()[:3], term])


def test_callables_have_no_terms() -> None:
    query, key, value, term = inputs()
    edges = Edges.from_index(PAIRS, QUERIES).with_terms(term)
    with pytest.raises(TypeError, match="terms of edges are for score objects"):
        attention(query, key, value, score=lambda q, k: q @ k.swapaxes(-1, -2), mask=edges)
