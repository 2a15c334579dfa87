"""Weights of chosen queries and heads equal indexed weights of all, and take less memory."""

from __future__ import annotations

import tracemalloc
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from anyscore import Additive, Causal, Edges, Gaussian, Lengths
from anyscore.call.task import Call, Options, Task
from anyscore.functional.attention import attend, weights
from anyscore.layers.last_weights import chosen_weights, snapshot
from anyscore.ops import load
from anyscore.torch import Attention, MultiHeadAttention, SelfAttention
from helpers.by_pair import by_pair
from helpers.cases import MASKS, OPTIONS, SCORES, SHAPES, applicable, case
from helpers.samples import normal
from helpers.table_rows import Row

pytestmark = pytest.mark.sample

ROWS = sorted(
    {(score, shape, mask) for score in SCORES | OPTIONS for shape in ("heads", "grouped_6_2")
     for mask in ("none", "four")}
    | {("additive", shape, mask) for shape in SHAPES for mask in ("none", "four", "boolean_full")}
    | {(score, "grouped_6_2", mask) for score in ("trilinear", "additive") for mask in MASKS}
)  # fmt: skip
ROWS = [row for row in ROWS if applicable(*row[1:])]
CHOSEN: list[Any] = [
    0, -1, slice(1, 3), slice(None, None, -2), slice(2, 2), [-1, 0, -1], [], range(1), np.array([0])
]  # fmt: skip


def last(*tensors: Any, **options: Any) -> Task:
    """Return the task that a layer keeps of a call."""
    call = Call(*tensors, **options)
    return snapshot(load("numpy"), attend(call, Options())[1])


def of_case(row: Row, **options: Any) -> Task:
    c = case(*row)
    score = c.score.build(c.parameters, np.asarray)
    return last(c.query, c.key, c.value, score, **c.masking(np.asarray), **options)


def fits(chosen: Any, n: int) -> bool:
    return n > 0 or isinstance(chosen, slice) or len(np.atleast_1d(chosen)) == 0


def same(task: Task, rows: Any, heads: Any = None, examples: Any = None) -> None:
    expected = weights(task)
    expected = expected if heads is None else expected[..., heads, :, :]
    expected = expected if rows is None else expected[..., rows, :]
    expected = expected if examples is None else expected[examples]
    found = chosen_weights(task, rows, heads, examples)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@by_pair("row", ROWS, ids="-".join)
def test_they_are_those_of_all_indexed(row: Row) -> None:
    task = of_case(row)
    *lead, queries, _ = task.sizes.scores_shape
    for i, rows in enumerate(CHOSEN):
        rows = rows if fits(rows, queries) else None
        same(task, rows)
        heads = None
        if len(lead) > 1 and fits(heads := CHOSEN[-i], lead[-1]):
            same(task, None, heads)
            same(task, rows, heads)
        if lead and fits(examples := CHOSEN[i - 2], lead[0]):
            same(task, None, None, examples)
            same(task, rows, heads, examples)


@pytest.mark.parametrize(
    "row", [("trilinear", "grouped_6_2", "four"), ("callable", "heads", "four")]
)
def test_with_a_cap_and_a_sink(row: Row) -> None:
    lead = case(*row).shape.lead
    for shape in ((), lead[-1:], (*lead[:-1], 1), lead):
        sink = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        for task in (of_case(row, sink=sink), of_case(row, sink=sink, softcap=0.5)):
            for rows, heads in ((1, -1), ([2, 0], slice(1, 3)), (None, [1]), (slice(3), None)):
                same(task, rows, heads)
                same(task, rows, heads, -1)


@pytest.mark.parametrize("shape", ["heads", "grouped_6_2", "broadcast"])
@pytest.mark.parametrize("score", ["trilinear_each", "additive_each", "callable"])
def test_by_the_reference(score: str, shape: str, no_core: None) -> None:
    for mask in ("none", "four", "boolean_full"):
        for rows, heads in ((-1, [2, 0]), ([3, 1, 3], 0), (slice(2, 4), slice(1))):
            same(of_case((score, shape, mask)), rows, heads)
            same(of_case((score, shape, mask)), rows, heads, [-1, 0])


@pytest.mark.parametrize("mask", [Causal("start"), Lengths(np.arange(1, 6)[None])])
def test_what_only_other_rows_attend_is_not_read(mask: Any) -> None:
    x = np.random.default_rng(0).normal(size=(1, 5, 4)).astype(np.float32)
    x[:, 3:] = np.nan
    for score in (Gaussian(), Additive(None, None, np.ones(4, np.float32))):
        task = last(x[:, [0, 1, 2, 2, 1]], x, x, score, mask)
        found = chosen_weights(task, [0, 2])
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found.sum(-1), 1.0, rtol=1e-6)


@pytest.mark.parametrize("score", [Gaussian(), Additive(None, None, np.ones(4, np.float32))])
def test_memory_is_for_the_chosen_rows(score: Any) -> None:
    """Chosen rows take memory for their weights alone; 3 × 4,096 × 4,096 weights take 192 MiB."""
    tokens, width = 4096, 4
    x = np.random.default_rng(0).normal(size=(1, 3, tokens, width)).astype(np.float32)
    task = last(x, x[:, :1], x[:, :1], score, Causal())
    tracemalloc.start()
    try:
        found = chosen_weights(task, [5, 4000, 17], [0, 2])
        assert chosen_weights(task, [], 0).shape == (1, 0, tokens)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.shape == (1, 2, 3, tokens)
    assert (found > 0).sum() == 2 * (6 + 4001 + 18)
    assert peak < 10 * found.nbytes


def test_what_the_implementation_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def spy(task: Task) -> Any:
        seen.append(task)
        return weights(task)

    monkeypatch.setattr("anyscore.layers.last_weights.weights", spy)
    x = torch.randn(2, 6, 9, 4)
    mask = torch.rand(2, 6, 9, 9) < 0.7
    layer = Attention("gaussian", d_q=4, d_k=4, heads=6, kv_heads=2, sink=True)
    layer(x, x[:, :2], mask=mask & torch.ones(9, 9, dtype=bool).tril())
    layer.last_weights([1, 3], 4)
    (task,) = seen
    assert task.sizes.scores_shape == (2, 1, 2, 9)
    assert task.sizes.groups == 1
    assert task.score.a.shape == (2, 1, 2, 4)
    assert task.score.b.shape == (2, 1, 9, 4)
    assert task.mask.mask.shape == (2, 1, 2, 9)
    assert task.score.weight.shape == (1, 4)
    assert task.sink.shape == (1,)


def test_layers_of_pytorch() -> None:
    x = torch.randn(2, 7, 12, requires_grad=True)
    layer = MultiHeadAttention(12, 6, kv_heads=2, score="additive", sink=True)
    assert layer.last_weights(0, 99) is None
    layer(x, mask=Causal() & Lengths(torch.tensor([7, 3])))
    full = layer.attention_weights
    near = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-6)
    near(layer.last_weights(), full)
    near(layer.last_weights(torch.tensor([3, 1]), -1), full[:, -1][:, [3, 1]])
    near(layer.last_weights(heads=slice(2, None)), full[:, 2:])
    assert not layer.last_weights(1, 2).requires_grad
    alone = SelfAttention(12, 4, score=lambda q, k: q @ k.mT)
    alone(x.detach())
    near(alone.last_weights(-2), alone.attention_weights[:, -2])


WRONG: list[tuple[Any, Any, type[Exception], str]] = [
    (5, None, IndexError, "rows has 5, expected integers from -5 to 4."),
    ([0, -6], None, IndexError, "rows has -6, expected integers from -5 to 4."),
    (None, 3, IndexError, "heads has 3, expected integers from -3 to 2."),
    (True, None, TypeError, "rows must be an integer, a slice or a sequence of integers, got "
     "True."),
    ([True, False], None, TypeError, "rows must be an integer, a slice or a sequence of integers, "
     "got [True, False]."),
    (np.ones(5, bool), None, TypeError, "rows must be an integer, a slice or a sequence of "
     "integers, got [True, True, True, True, True]."),
    (None, "1", TypeError, "heads must be an integer, a slice or a sequence of integers, got '1'."),
    (1.0, None, TypeError, "rows must be an integer, a slice or a sequence of integers, got 1.0."),
    (slice(0.5), None, TypeError, "rows must be an integer, a slice or a sequence of integers, got "
     "slice(None, 0.5, None)."),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "heads", "kind", "text"), WRONG)
def test_errors(rows: Any, heads: Any, kind: type[Exception], text: str) -> None:
    x = np.ones((2, 3, 5, 4))
    with pytest.raises(kind) as raised:
        chosen_weights(last(x, x, x, Gaussian()), rows, heads)
    assert str(raised.value) == text


def test_heads_of_none() -> None:
    x = np.ones((3, 5, 4))
    with pytest.raises(IndexError) as raised:
        chosen_weights(last(x, x, x, Gaussian()), heads=0)
    assert str(raised.value) == (
        "heads= chooses of weights (batch, heads, T_q, T_k), got weights (3, 5, 5) without heads: "
        "leave it out."
    )


def test_a_call_keeps_no_graph_of_the_terms_of_its_edges() -> None:
    """A layer keeps the terms of edges until its next call, without their graph."""
    layer, x = Attention("gaussian", d_q=4, d_k=4), torch.randn(3, 4)
    terms = torch.randn(2, 4, requires_grad=True) * 1
    layer(x, x, mask=Edges.from_index([[1, 2], [0, 1]], 3).with_terms(terms))
    kept = layer._last.mask.terms
    assert kept.grad_fn is None
    assert not kept.requires_grad
    whole = layer.attention_weights
    layer(x, x, mask=Edges.from_index([[1, 2], [0, 1]], 3).with_terms(terms.detach()))
    assert torch.equal(layer.attention_weights, whole)


def test_of_edges() -> None:
    """Edges have one weight for each edge and head; a choice of query rows raises."""
    x = normal(2, 3, 4, 5)
    task = last(x, x, x, Gaussian(), mask=Edges.from_index([[1, 2, 0], [0, 1, 1]], 4))
    whole = chosen_weights(task)
    assert whole.shape == (2, 3, 3)
    for heads, examples in ((1, None), ([2, 0], 1), (None, [1]), (slice(0), None), (-1, 0)):
        one = whole if heads is None else whole[:, heads]
        one = one if examples is None else one[examples]
        assert np.array_equal(chosen_weights(task, None, heads, examples), one)
    with pytest.raises(ValueError, match="rows= chooses queries of weights"):
        chosen_weights(task, rows=0)
