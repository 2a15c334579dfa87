"""Pointers refuse wrong calls, and take prepared or shared keys and scores that overflow."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from anyscore.torch import Pointer, unvisited
from frameworks.torch.pointers.test_pointer import B, data, made

pytestmark = pytest.mark.sample


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"glimpses": -1}, ValueError, "≥ 0, got -1"),
        ({"glimpses": 1.5}, TypeError, "an integer ≥ 0, got 1.5"),
        ({"clip": math.nan}, ValueError, "≥ 0"),
        ({"clip": "10"}, TypeError, "clip must be a finite number ≥ 0, got '10'"),
        ({"clip": None}, TypeError, "clip must be"),
        ({"glimpses": 2, "d_k": 6}, ValueError, "expected d_q = d_k, got 5, 6"),
        ({"softcap": 3.0}, TypeError, "takes no softcap="),
        ({"score": "no such"}, ValueError, "no such"),
    ],
)
def test_wrong_pointers(options: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        made(**options)


def test_wrong_calls() -> None:
    pointer, (q, r, keep) = made(), data()
    with pytest.raises(ValueError, match=r"queries has shape \(3, 1, 1, 5\)"):
        pointer(q[:, None, None], r)
    with pytest.raises(TypeError, match="bool"):
        pointer(q, r, keep.double())
    with pytest.raises(ValueError, match=r"mask is .*expected booleans \(3, 7\)"):
        pointer.decode(q, r, lambda n: q, mask=keep[0])
    with pytest.raises(TypeError, match="PyTorch tensor"):
        pointer(q.numpy(), r.numpy())


def test_wrong_decodings() -> None:
    pointer, (q, r, _) = made(), data()
    for error, text, query, keys, steps in (
        (TypeError, "keys is a NumPy tensor", q, r.numpy(), None),
        (TypeError, "keys is a list", q, [1], None),
        (ValueError, r"query has shape \(3, 1, 5\)", q[:, None], r, None),
        (ValueError, r"query has shape \(3, 5\) and keys \(2, 7, 5\)", q, r[:2], None),
        (ValueError, "steps must be ≥ 0, got -1", q, r, -1),
        (TypeError, "steps must be an integer", q, r, 2.5),
    ):
        with pytest.raises(error, match=text):
            pointer.decode(query, keys, lambda n: q, steps=steps)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nodes", "n", "error", "text"),
    [
        ([[1]], 3, TypeError, "nodes must be an integer tensor"),
        (torch.ones(2, 3), 3, TypeError, "got torch.float32"),
        (torch.tensor([[0, 3]]), 3, ValueError, "nodes are from 0 to 3, expected −1 to 2"),
        (torch.tensor([[0]]), 2.5, TypeError, "n must be an integer"),
    ],
)
def test_wrong_nodes(nodes: Any, n: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        unvisited(nodes, n)


def test_keys_of_one_are_keys_of_all() -> None:
    pointer, (q, r, _) = made(), data()
    results = []
    for keys in (r[:1], r[:1].expand(B, -1, -1), pointer.prepare_keys(r[:1])):
        results.append(pointer.decode(q, keys, lambda n: r[0, n]))
    for other in results[1:]:
        torch.testing.assert_close(results[0], other)


@pytest.mark.parametrize("mask", [None, "mask"])
def test_prepared_keys_keep_their_lengths(mask: str | None) -> None:
    pointer, (q, r, keep) = made(), data()
    lengths = torch.tensor([3, 7, 5])
    prepared = pointer.prepare_keys(r, valid_lens=lengths)
    given = keep if mask else None
    torch.testing.assert_close(pointer(q, prepared, given), pointer(q, r, given, lengths))
    rows = torch.arange(B)
    results = [
        pointer.decode(q, keys, lambda n: r[rows, n], mask=given, **lens)  # type: ignore[arg-type]
        for keys, lens in ((prepared, {}), (r, {"valid_lens": lengths}))
    ]
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("clip", [0.0, 10.0])
def test_scores_that_overflow(clip: float) -> None:
    """Scores that overflow are −C with a clip, and no node is visited twice."""
    pointer = Pointer("scaled_dot", 0, clip, d_q=2, d_k=2)
    keys = torch.tensor([[[0.0, 0.0], [1e38, 1e38], [1.0, 0.0]]])
    query = -keys[:, 1]
    chances = pointer(query, keys)[0]
    assert chances[1] == (chances[0] - clip if clip else -torch.inf)
    nodes = pointer.decode(query, keys, lambda n: query).nodes
    assert sorted(nodes[0].tolist()) == [0, 1, 2]
