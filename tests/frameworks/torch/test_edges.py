"""Edges of a graph work under PyTorch's compiler, transforms, checkpoints and copies."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from anyscore import Edges, GATv2, attention

pytestmark = pytest.mark.sample

NODES = 40
SOURCES = torch.randint(0, NODES, (2, 300), generator=torch.Generator().manual_seed(0))


def inputs() -> list[Tensor]:
    drawn = torch.Generator().manual_seed(1)
    return [torch.randn(2, NODES, 8, generator=drawn, requires_grad=True) for _ in range(2)]


def output(query: Tensor, key: Tensor, edges: Edges) -> Any:
    w = torch.linspace(-1, 1, 8)
    return attention(query, key, key, score=GATv2(None, None, w), mask=edges)


def from_pairs(query: Tensor, key: Tensor, pairs: Tensor) -> Any:
    return output(query, key, Edges.from_index(pairs, NODES))


def slopes(found: Tensor, xs: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(found.square().sum(), xs))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own
@pytest.mark.parametrize("given", ["closed over", "an argument", "made inside"])
def test_compile(given: str) -> None:
    edges, xs = Edges.from_index(SOURCES, NODES), inputs()
    want = output(*xs, edges)
    if given == "closed over":
        compiled = torch.compile(lambda q, k: output(q, k, edges), fullgraph=True)
        found = compiled(*xs)
    elif given == "an argument":
        found = torch.compile(output, fullgraph=True)(*xs, edges)
    else:
        found = torch.compile(from_pairs, fullgraph=True)(*xs, SOURCES)
    torch.testing.assert_close(found, want)
    torch.testing.assert_close(slopes(found, xs), slopes(want, xs))


def test_transforms() -> None:
    edges, xs = Edges.from_index(SOURCES, NODES), inputs()
    want, plain = output(*xs, edges), [x.detach() for x in xs]
    torch.testing.assert_close(torch.vmap(lambda q, k: output(q, k, edges))(*plain), want.detach())

    def loss(q: Tensor, k: Tensor) -> Tensor:
        return output(q, k, edges).square().sum()

    of_each = torch.vmap(torch.func.grad(loss, argnums=(0, 1)))(*plain)
    torch.testing.assert_close(list(of_each), slopes(want, xs))


def test_checkpoint() -> None:
    edges, xs = Edges.from_index(SOURCES, NODES), inputs()
    again = torch.utils.checkpoint.checkpoint(output, *xs, edges, use_reentrant=False)
    torch.testing.assert_close(slopes(again, xs), slopes(output(*xs, edges), xs))


def test_copies() -> None:
    edges, xs = Edges.from_index(SOURCES, NODES), inputs()
    want = output(*xs, edges)
    for other in (pickle.loads(pickle.dumps(edges)), copy.deepcopy(edges)):
        assert torch.equal(output(*xs, other), want)


def test_what_is_found_is_kept() -> None:
    edges, xs = Edges.from_index(SOURCES, NODES), inputs()
    for _ in range(2):
        output(*xs, edges).sum().backward()
    assert sum(not isinstance(x, int) for x in edges.known.values()) == 1
    (lowered,) = (x for x in edges.known.values() if not isinstance(x, int))
    assert lowered.by_key is lowered.by_key
