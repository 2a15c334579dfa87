"""A call over the edges of a random graph, to compare frameworks with PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyscore import Edges, GATv2, attention

NODES, EDGES = 30, 200
RNG = np.random.default_rng(0)
PAIRS = RNG.integers(0, NODES, (2, EDGES))
ARRAYS = [RNG.standard_normal((2, NODES, 8)).astype(np.float32) for _ in range(3)]
W, BIAS, TERMS = (RNG.standard_normal(n).astype(np.float32) for n in (8, EDGES, (EDGES, 8)))


def attend(edges: Edges, query: Any, key: Any, value: Any, w: Any, bias: Any, terms: Any) -> Any:
    score, mask = GATv2(None, None, w), edges.with_terms(terms)
    return attention(query, key, value, score=score, mask=mask, bias=bias, return_weights=True)
