"""Edges of a graph in interpreted kernels agree with the definition, forward and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from anyscore import Additive, Edges, attention, scores
from anyscore.call.operands import N_DIFFERENTIABLE, Operands, Results
from anyscore.kernels.triton import edges as edge_kernels
from anyscore.kernels.triton import graphs as triton
from helpers.budget import EPS, assert_near, size
from helpers.by_pair import by_pair
from helpers.oracle import numbers
from helpers.samples import HIDDEN, NAMES, make_score, normal

pytestmark = pytest.mark.sample

QUERIES, KEYS, HEADS, D_V = 5, 6, 2, 3
MOST = 2 * edge_kernels.EDGES.value + 3
TARGET = np.concatenate([np.zeros(MOST, int), [2, 2, 2, 3, 4]])  # query 1 has no edges
SOURCE = np.concatenate([np.arange(MOST) % (KEYS - 1), [1, 1, 0, 4, 3]])  # key 5 has no edges
ORDER = np.random.default_rng(0).permutation(len(TARGET))
PAIRS = np.stack([SOURCE, TARGET])[:, ORDER]
EDGES = len(TARGET)

OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a cap": {"softcap": 1.5},
    "dropout": {"dropout": 0.4, "dropout_seed": 2**40 + 7},
    "sigmoid": {"normalizer": "sigmoid"},
}


@pytest.fixture(autouse=True)
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the directions in which kernels ran: a test without any would prove nothing."""
    found: list[str] = []

    def watch(name: str) -> None:
        run = getattr(triton, name)
        monkeypatch.setattr(triton, name, lambda *xs: (found.append(name), run(*xs))[1])

    watch("forward"), watch("backward")
    return found


def tensors(kind: torch.dtype = torch.float64, width: int = 5) -> list[Tensor]:
    """Return query, key and value of grouped heads, and a bias of edges."""
    shapes = (
        (HEADS, QUERIES, width), (1, KEYS, width), (1, KEYS, D_V), (HEADS, EDGES),
    )  # fmt: skip
    return [torch.tensor(normal(*s, seed=i)).to(kind) for i, s in enumerate(shapes)]


def results(
    name: str, given: list[Tensor], impl: str, terms: Tensor | None = None,
    rounded: torch.dtype | None = None, **options: Any,
) -> list[Tensor]:  # fmt: skip
    """Return output, weights and all gradients; parameters are rounded to dtype `rounded`."""
    kind = given[0].dtype
    score = make_score(name, d=given[0].shape[-1]).map(
        lambda x: torch.tensor(x).to(rounded or kind).to(kind)
    )
    parameters = [x.requires_grad_() for x in score.tensors().values()]
    xs = [x.detach().requires_grad_() for x in given]
    query, key, value, *rest = xs
    edges = Edges.from_index(PAIRS, QUERIES)
    if terms is not None:
        xs.append(terms.detach().requires_grad_())
        edges = edges.with_terms(xs[-1])
    out = attention(
        query, key, value, score=score, mask=edges, bias=rest[0] if rest else None, impl=impl,
        return_weights=True, return_lse="normalizer" not in options, **options,
    )  # fmt: skip
    loss = out.output.square().sum() + (out.weights * torch.linspace(-1, 1, EDGES)).sum()
    if "normalizer" not in options:
        loss = loss + out.lse[out.lse.isfinite()].sum()
    made = torch.autograd.grad(loss, [*xs, *parameters], materialize_grads=True)
    return [*(x.detach() for x in (out.output, out.weights)), *made]


def close(found: list[Tensor], want: list[Tensor], bound: float) -> None:
    for x, y in zip(found, want, strict=True):
        exactly = numbers(y)
        assert_near(x, exactly, bound * max(1, size(exactly)))


@by_pair("name", NAMES)
def test_every_score(name: str, launched: list[str]) -> None:
    given = tensors()
    close(results(name, given, "auto"), results(name, given, "reference"), 1e-11)
    assert launched == ["forward", "backward"]


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", ["GATv2", "Laplace"])
def test_what_surrounds_scores(name: str, option: str) -> None:
    given, width = tensors(), HIDDEN if name == "GATv2" else 5
    terms = torch.tensor(normal(HEADS, EDGES, width, seed=9))
    one, other = (
        results(name, given, impl, terms, **OPTIONS[option]) for impl in ("auto", "reference")
    )
    close(one, other, 1e-11)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_the_gradient_of_a_weight_beside_a_scale(dtype: torch.dtype, bound: float) -> None:
    """In float64 the scale moves into the weight."""
    given = tensors(dtype)[:3]

    def slope(impl: str) -> list[Tensor]:
        w = torch.tensor(normal(5)).to(dtype).requires_grad_()
        score = Additive(None, None, w, scale=0.3)
        out = attention(*given, score=score, mask=Edges.from_index(PAIRS, QUERIES), impl=impl)
        return [*torch.autograd.grad(out.square().sum(), w)]

    close(slope("auto"), slope("reference"), bound)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["Additive", "ScaledDot"])
def test_other_types(name: str, dtype: str) -> None:
    """A kernel is as near to the definition in float64 as the definition in the kernel's dtype."""
    given = tensors(getattr(torch, dtype), width=67)[:3]  # more than two blocks of features
    fused, plain = (results(name, given, impl) for impl in ("auto", "reference"))
    double = [x.double() for x in given]
    exact = results(name, double, "reference", rounded=given[0].dtype)
    for x, y, want in zip(fused, plain, exact, strict=True):
        assert x.dtype == y.dtype
        worst = (y.double() - want).abs().max().item()
        exactly = numbers(want)
        assert_near(x, exactly, 2 * worst + 16 * EPS[dtype] * size(exactly))


def test_a_bias_after_a_cap(launched: list[str]) -> None:
    def run(impl: str) -> list[Tensor]:
        query, key, value, bias = (x.requires_grad_() for x in tensors())
        out = attention(
            query, key, value, score=make_score("Gaussian").map(torch.tensor), softcap=1.5,
            mask=Edges.from_index(PAIRS, QUERIES), bias_after=bias, impl=impl,
        )  # fmt: skip
        return [out.detach(), *torch.autograd.grad(out.square().sum(), (query, key, value, bias))]

    close(run("auto"), run("reference"), 1e-11)
    assert launched == ["forward", "backward"]


def test_scores_alone(launched: list[str]) -> None:
    query, key, _, _ = tensors()
    edges = Edges.from_index(PAIRS, QUERIES)
    score = make_score("Additive").map(torch.tensor)
    one, other = (
        scores(query, key, score=score, mask=edges, impl=i) for i in ("auto", "reference")
    )
    close([one], [other], 1e-12)
    assert launched == ["forward"]


@pytest.mark.slow
def test_many_columns() -> None:
    """Values fill two programs, and each program computes the scores anew."""
    query, key, *_ = tensors()
    value = torch.tensor(normal(1, KEYS, 70))
    given = [query, key, value]
    close(results("GATv2", given, "auto"), results("GATv2", given, "reference"), 1e-11)


def test_no_features() -> None:
    """Without features, a score is the bias of its edges alone."""
    *_, value, bias = tensors()
    query, key = torch.zeros(HEADS, QUERIES, 0), torch.zeros(1, KEYS, 0)
    given = [query.double(), key.double(), value, bias]
    close(results("Dot", given, "auto"), results("Dot", given, "reference"), 1e-12)


@pytest.mark.parametrize("name", ["GATv2", "ScaledDot"])
def test_nan_reaches_who_attends_it(name: str) -> None:
    for which, row in ((0, 1), (1, KEYS - 1), (1, 4), (2, 4)):
        given = tensors()[:3]
        given[which][..., row, 1] = torch.nan
        one, other = (results(name, given, impl) for impl in ("auto", "reference"))
        assert all(torch.equal(x.isnan(), y.isnan()) for x, y in zip(one, other, strict=True))
        assert one[0].isnan().any() == ((which, row) not in ((0, 1), (1, KEYS - 1)))


def test_the_same_bits_again() -> None:
    given = [x.float() for x in tensors()]
    one, other = (results("GATv2", given, "auto") for _ in range(2))
    assert all(map(torch.equal, one, other))


BAD = -(2**40), -1, "n", 2**40  # n: the first index out of range
ARRAYS = {"rowptr": EDGES, "col": KEYS, "colptr": EDGES, "order": EDGES, "row": QUERIES}


@pytest.mark.slow
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("array", ARRAYS)
def test_indices_out_of_range_read_nothing(
    array: str, bad: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results hold NaN for an edge without its nodes, and nothing of the memory beside operands."""
    seen: dict[str, tuple[Any, ...]] = {}
    real = {name: getattr(triton, name) for name in ("forward", "backward")}
    for name, run in real.items():
        note = lambda *xs, name=name, run=run: (seen.update({name: xs}), run(*xs))[1]  # noqa: E731
        monkeypatch.setattr(triton, name, note)
    results("GATv2", tensors(), "auto", torch.tensor(normal(HEADS, EDGES, HIDDEN, seed=9)))
    pair, x, s, acc_dtype = seen["forward"]
    kept, upstream = seen["backward"][3:]
    indices = getattr(seen["backward"][1], array).clone()
    indices[3] = ARRAYS[array] if bad == "n" else bad

    def run(beside: float) -> tuple[Results, Operands]:
        def put(y: Tensor | None) -> Tensor | None:
            """Return the same numbers, with other numbers before and after in memory."""
            if y is None:
                return None
            room = torch.full((y.numel() + 4000,), beside, dtype=y.dtype)
            room[2000:-2000] = y.flatten()
            return room[2000:-2000].view(y.shape)

        factors = dict(
            zip(x._fields[:N_DIFFERENTIABLE], map(put, x[:N_DIFFERENTIABLE]), strict=True)
        )
        of = (y._replace(**factors, **{array: indices}) for y in (x, seen["backward"][1]))
        found = real["forward"](pair, next(of), s, acc_dtype)
        return found, real["backward"](pair, next(of), s, kept, upstream)

    (found, slopes), (other, other_slopes) = run(7.0), run(-1e30)
    for one, two in zip((*found, *slopes), (*other, *other_slopes), strict=True):
        assert one is two is None or torch.equal(one.nan_to_num(9.0), two.nan_to_num(9.0))
    if array == "col":
        (query,) = PAIRS[1][ORDER.argsort()][:1]
        assert found.output[..., query, :].isnan().all()
        assert found.output[..., 2:, :].isfinite().all()
        assert slopes.a[..., query, :].isnan().all()
    elif array in ("row", "order"):
        assert slopes.value.isnan().any()
        assert slopes.value.isfinite().any()
