"""Pointers follow the published formulas, with growing masks, sequences and probabilities."""

from __future__ import annotations

import copy
import math
import pickle
from collections import Counter
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from anyscore.torch import Pointer, unvisited

pytestmark = pytest.mark.sample

B, T, D, H = 3, 7, 5, 11


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def made(**options: object) -> Pointer:
    sizes: dict[str, object] = {"hidden": H} if options.get("score") in (None, "additive") else {}
    return Pointer(**{**sizes, "d_q": D, "d_k": D, "dtype": torch.float64, **options})  # type: ignore[arg-type]


def data() -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys, and a mask that leaves each query a key."""
    keep = torch.rand(B, T) < 0.6
    keep[:, 2] = True
    return torch.randn(B, D).double(), torch.randn(B, T, D).double(), keep


def published(p: Pointer, q: Tensor, r: Tensor, keep: Tensor, glimpses: int, clip: float) -> Tensor:
    """Return log-probabilities by Bello et al. 2016, appendix A, for each sequence and node."""

    def u(layer: Pointer, q: Tensor, i: int, b: int) -> Tensor:
        if "W_q" not in dict(layer.named_children()):  # a product: Kool et al. 2019, eq. 7
            return q @ r[b, i] / math.sqrt(D)
        hidden = torch.tanh(layer.W_q.weight @ q + layer.W_k.weight @ r[b, i])  # type: ignore[union-attr,operator]
        return layer.w_v.weight[0] @ hidden  # type: ignore[union-attr,index]

    rows = []
    for b in range(len(q)):
        places, query = [i for i in range(r.shape[1]) if keep[b, i]], q[b]
        for _ in range(glimpses):
            a = torch.stack([u(p.glimpse, query, i, b) for i in places]).softmax(0)  # type: ignore[arg-type]
            query = sum(x * r[b, i] for x, i in zip(a, places, strict=True))  # type: ignore[assignment]
        logits = torch.stack([u(p.pointing, query, i, b) for i in places])  # type: ignore[arg-type]
        chances = (clip * logits.tanh() if clip else logits).softmax(0)
        row = torch.full((r.shape[1],), -torch.inf, dtype=torch.float64)
        rows.append(row.index_put((torch.tensor(places),), chances.log()))
    return torch.stack(rows)


@pytest.mark.parametrize("score", ["additive", "scaled_dot"])
@pytest.mark.parametrize("glimpses", [0, 1, 3])
@pytest.mark.parametrize("clip", [0.0, 10.0])
def test_it_is_the_published_formula(score: str, glimpses: int, clip: float) -> None:
    pointer = made(score=score, glimpses=glimpses, clip=clip)
    q, r, keep = data()
    wanted = published(pointer, q, r, keep, glimpses, clip)
    for keys in (r, pointer.prepare_keys(r)):
        torch.testing.assert_close(pointer(q, keys, keep), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("clip", [0.0, 10.0])
def test_gradients_are_those_of_the_published_formula(clip: float) -> None:
    """Gradients of inputs and parameters agree, also if only parameters need gradients."""
    pointer = made(clip=clip)
    q, r, keep = data()
    for inputs in ([], [q.requires_grad_(), r.requires_grad_()]):
        learned = [*inputs, *pointer.parameters()]
        slopes = torch.randn(B, T).double().where(keep, 0.0)

        def loss(found: Tensor, slopes: Tensor = slopes) -> Tensor:
            return (found.where(keep, 0.0) * slopes).sum()

        found = torch.autograd.grad(loss(pointer(q, r, keep)), learned)
        wanted = torch.autograd.grad(loss(published(pointer, q, r, keep, 1, clip)), learned)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)


def test_many_queries_are_many_steps() -> None:
    pointer, (_, r, _) = made(), data()
    queries = torch.randn(B, 4, D).double()
    nodes = torch.stack([torch.randperm(T)[:4] for _ in range(B)])
    masks = unvisited(nodes, T)
    found = pointer(queries, r, masks, valid_lens=torch.full((B,), T))
    prepared = pointer.prepare_keys(r)
    for i in range(4):
        assert [set(row.nonzero().flatten().tolist()) for row in ~masks[:, i]] == [
            set(row[:i].tolist()) for row in nodes
        ]
        step = pointer(queries[:, i], prepared, masks[:, i])
        torch.testing.assert_close(found[:, i], step, rtol=1e-12, atol=1e-12)


def test_a_sequence_that_has_ended_masks_nothing_more() -> None:
    masks = unvisited(torch.tensor([[1, -1, -1]]), 2)
    assert masks.tolist() == [[[True, True], [True, False], [True, False]]]


@settings(max_examples=30, deadline=None)
@given(
    lens=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    glimpses=st.integers(0, 2),
    sample=st.booleans(),
    seed=st.integers(0, 100),
)
def test_every_key_is_visited_once(lens: list[int], glimpses: int, sample: bool, seed: int) -> None:
    torch.manual_seed(seed)
    pointer = made(glimpses=glimpses)
    batch, rows = len(lens), torch.arange(len(lens))
    keys = torch.randn(batch, 6, D).double()
    for b, n in enumerate(lens):
        keys[b, n:] = torch.nan  # padding is not read
    first = torch.randn(batch, D).double()

    def follow(nodes: Tensor) -> Tensor:
        return keys[rows, nodes].nan_to_num()

    found = pointer.decode(first, keys, follow, valid_lens=lens, sample=sample)
    assert found.nodes.shape == found.log_probabilities.shape == (batch, max(lens))
    for b, n in enumerate(lens):
        assert sorted(found.nodes[b, :n].tolist()) == list(range(n))
        assert found.nodes[b, n:].tolist() == [-1] * (max(lens) - n)
        assert found.log_probabilities[b, n:].tolist() == [0.0] * (max(lens) - n)
    if max(lens):
        found.log_probabilities.sum().backward()
    assert all(p.grad.isfinite().all() for p in pointer.parameters() if p.grad is not None)


@pytest.mark.parametrize("sample", [False, True])
def test_log_probabilities_are_those_of_the_formula(sample: bool) -> None:
    """Earlier steps take part in gradients, and the greedy choice is the likeliest."""
    pointer, (q, r, _) = made(clip=3.0), data()
    rows, start = torch.arange(B), q.requires_grad_()
    nodes, found = pointer.decode(start, r, lambda n: r[rows, n] + start, sample=sample)
    query, keep, wanted = start, torch.ones(B, T, dtype=torch.bool), []
    for i in range(T):
        logarithms = published(pointer, query, r, keep, 1, 3.0)
        wanted.append(logarithms[rows, nodes[:, i]])
        if not sample:
            assert (nodes[:, i] == logarithms.argmax(-1)).all()
        keep = keep.clone()
        keep[rows, nodes[:, i]] = False
        query = r[rows, nodes[:, i]] + start
    torch.testing.assert_close(found, torch.stack(wanted, 1), rtol=1e-11, atol=1e-11)
    learned = [start, *pointer.parameters()]
    slopes = torch.autograd.grad(found.sum(1).square().sum(), learned)
    theirs = torch.autograd.grad(torch.stack(wanted, 1).sum(1).square().sum(), learned)
    torch.testing.assert_close(slopes, theirs, rtol=1e-8, atol=1e-9)


def test_sequences_are_drawn_as_often_as_they_should() -> None:
    """Each order of three nodes is as frequent as the product of its steps' probabilities."""
    pointer = made(glimpses=0, clip=2.0)
    keys, n = torch.randn(1, 3, D).double(), 20_000
    many = keys.expand(n, -1, -1)
    rows, first = torch.arange(n), torch.randn(1, D).double()
    with torch.no_grad():
        nodes, found = pointer.decode(
            first.expand(n, -1), many, lambda nodes: many[rows, nodes], sample=True
        )
    counts = Counter(map(tuple, nodes.tolist()))
    chances = {tuple(o): float(x) for o, x in zip(nodes.tolist(), found.sum(1).exp(), strict=True)}
    assert sum(chances.values()) == pytest.approx(1)
    for order in permutations(range(3)):
        p = chances[order]
        assert abs(counts[order] / n - p) < 5 * math.sqrt(p * (1 - p) / n)


def test_a_generator_repeats_a_draw() -> None:
    pointer, (q, r, _) = made(clip=1.0), data()
    rows = torch.arange(B)

    def drawn(seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        torch.rand(1)  # the global generator plays no part
        return pointer.decode(
            q, r, lambda nodes: r[rows, nodes], sample=True, generator=generator
        ).nodes

    assert torch.equal(drawn(1), drawn(1))
    assert any(not torch.equal(drawn(1), drawn(seed)) for seed in range(2, 6))


def test_a_mask_is_kept_and_not_changed() -> None:
    pointer, (q, r, keep) = made(), data()
    before, rows = keep.clone(), torch.arange(B)
    nodes = pointer.decode(q, r, lambda nodes: r[rows, nodes], mask=keep).nodes
    assert torch.equal(keep, before)
    for b in range(B):
        assert sorted(x for x in nodes[b].tolist() if x >= 0) == keep[b].nonzero()[:, 0].tolist()
    assert pointer.decode(q, r, lambda nodes: r[rows, nodes], steps=2).nodes.shape == (B, 2)


def test_nothing_left_is_minus_infinity_without_gradient() -> None:
    pointer, (q, r, keep) = made(), data()
    keep[1] = False
    r.requires_grad_()
    found = pointer(q, r, keep)
    assert (found[1] == -torch.inf).all()
    found[keep].sum().backward()
    assert r.grad is not None
    assert r.grad.isfinite().all()
    assert (r.grad[1] == 0).all()


def test_widths_are_met_at_the_first_call() -> None:
    pointer = Pointer("additive", 1, 10.0, hidden=H)
    keys, rows = torch.randn(B, T, 4), torch.arange(B)
    nodes = pointer.decode(torch.randn(B, 6), keys, lambda n: torch.ones(B, 6) * n[rows, None])
    assert nodes.nodes.shape == (B, T)
    shapes = {name: tuple(x.shape) for name, x in pointer.state_dict().items()}
    assert shapes["glimpse.W_q.weight"] == (H, 6)
    assert shapes["pointing.W_q.weight"] == (H, 4)


def test_probabilities_are_kept_for_a_look() -> None:
    pointer, (q, r, keep) = made(), data()
    found = pointer(q, r, keep)
    weights = pointer.pointing.last_weights()
    assert weights is not None
    torch.testing.assert_close(weights[:, 0], found.detach().exp())
    for other in (copy.deepcopy(pointer), pickle.loads(pickle.dumps(pointer))):
        assert other.pointing.last_weights() is None
        torch.testing.assert_close(other(q, r, keep), found)
