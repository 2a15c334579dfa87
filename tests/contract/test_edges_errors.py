"""Each mistake in edges raises an error that names the mistake, before any work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anyscore import ALiBi, Edges, attention

pytestmark = pytest.mark.sample


def attend(edges: Edges, **options: Any) -> Any:
    x = np.ones((2, 3))
    return attention(x, x, x, mask=edges, **options)


ONE = Edges([0, 1, 1], [0])
Wrong = tuple[Callable[[], Any], type[Exception], str]
ROWS: dict[str, Wrong] = {
    "falls": (
        lambda: Edges([0, 3, 2, 4], [0, 0, 0, 0]),
        ValueError,
        "rowptr must never fall, but entry 2 is 2 after 3: for edges in any order use",
    ),
    "begins": (lambda: Edges([1, 2], [0, 0]), ValueError, r"rowptr must begin with 0, got \[1\]"),
    "empty": (lambda: Edges([], []), ValueError, "rowptr must begin with 0, got no entry"),
    "ends": (
        lambda: Edges([0, 2], [0]),
        ValueError,
        "rowptr ends with 2, expected the number of edges, 1",
    ),
    "negative": (lambda: Edges([0, 1], [-1]), ValueError, "col holds -1, expected keys from 0 on"),
    "floats": (
        lambda: Edges([0, 1], [0.5]),
        TypeError,
        r"col is float64 of shape \(1,\), expected integers",
    ),
    "rank": (lambda: Edges([[0, 1]], [0]), TypeError, r"rowptr is int64 of shape \(1, 2\)"),
    "text": (lambda: Edges("abc", [0]), TypeError, "rowptr is 'abc'"),
    "far": (
        lambda: attend(Edges([0, 1, 1], [2])),
        ValueError,
        r"an edge comes from key 2 \(in col\), expected keys from 0 to 1: there are 2 keys",
    ),
    "few": (
        lambda: attend(Edges([0, 1], [0])),
        ValueError,
        r"the edges are of 1 queries, got 2: rowptr has shape \(2,\), expected \(3,\)",
    ),
    "order": (
        lambda: Edges([0, 2], [0, 0], permutation=[0, 0]),
        ValueError,
        "expected each of the 2 integers from 0 on once",
    ),
    "long order": (
        lambda: Edges([0, 2], [0, 0], permutation=[0, 1, 2]),
        ValueError,
        "expected each of the 2 integers from 0 on once",
    ),
    "order of floats": (
        lambda: Edges([0, 2], [0, 0], permutation=[0.0, 1.0]),
        TypeError,
        "permutation is float64",
    ),
    "lengths": (
        lambda: attend(ONE, valid_lens=1),
        ValueError,
        "Edges does not combine with other masks: leave out what may not be attended",
    ),
    "and": (lambda: attend(ONE & np.ones((2, 2), bool)), ValueError, "does not combine"),
    "sparse": (
        lambda: attend(ONE, normalizer="sparsemax"),
        NotImplementedError,
        "normalizer='sparsemax' is not for the edges of a graph",
    ),
    "bias": (
        lambda: attend(ONE, bias=np.ones((2, 2))),
        ValueError,
        r"bias has shape \(2, 2\), expected what broadcasts to \(1,\): one number for each edge",
    ),
    "positions": (
        lambda: attend(ONE, bias=ALiBi(np.ones(()))),
        TypeError,
        r"bias is ALiBi\(...\), which is of positions",
    ),
    "callable": (
        lambda: attend(ONE, score=lambda q, k: q),
        ValueError,
        r"for one query and one key of each edge, expected \(..., 1, 1, 1\)",
    ),
    "pairs": (
        lambda: Edges.from_index(np.ones((3, 2), int), 2),
        TypeError,
        r"edge_index is int64 of shape \(3, 2\), expected integers \(2, edges\)",
    ),
    "target": (
        lambda: Edges.from_index([[0], [5]], 2),
        ValueError,
        "edge_index has targets from 5 to 5, expected integers from 0 to 1",
    ),
    "queries": (
        lambda: Edges.from_index([[0], [1]], 2.0),
        TypeError,
        "queries must be an integer ≥ 0, got 2.0",
    ),
}


@pytest.mark.parametrize("wrong", ROWS)
def test_errors(wrong: str) -> None:
    make, kind, message = ROWS[wrong]
    with pytest.raises(kind, match=message):
        make()
