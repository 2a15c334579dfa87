"""Extras by name: each adds one feature to the textbook call.

An extra is plain data: tensors, arguments of the call, compared results, and results with
gradients. `beyond` computes the exact results of an extra.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import anyscore
from anyscore import ALiBi, Relative
from helpers.table_shapes import Lead, Shape

COLUMNS, BUCKETS, FARTHEST = 5, 8, 6
"""Columns of a clipped table, columns of a T5 table, and the distance that T5's buckets reach."""


@dataclass(frozen=True)
class Kind:
    """A tensor beside query, key and value.

    draw: returns the numbers for a shape. make: returns the argument of the call.
    pairs: True if the tensor has an entry for each query and key.
    """

    draw: Callable[[np.random.Generator, Shape], np.ndarray]
    make: Callable[[Any], Any] = lambda x: x
    pairs: bool = False


def _normal(*last: int) -> Callable[[np.random.Generator, Shape], np.ndarray]:
    return lambda rng, shape: rng.standard_normal((shape.lead[-1], *last))


def _pairs(lead: Lead, shape: Shape) -> Lead:
    return (*lead, shape.queries, shape.keys)


KINDS = {
    "heads": Kind(_normal()),
    "matrix": Kind(lambda rng, s: rng.standard_normal(_pairs(s.lead, s)), pairs=True),
    "positive": Kind(lambda rng, s: rng.uniform(0.5, 4, _pairs(s.lead[-1:], s)), pairs=True),
    "clipped": Kind(_normal(COLUMNS), lambda x: Relative(x, align="end")),
    "t5": Kind(_normal(BUCKETS), lambda x: Relative(x, "t5", max_distance=FARTHEST, align="end")),
    "alibi": Kind(lambda rng, s: rng.uniform(0.1, 1, s.lead[-1:]), lambda x: ALiBi(x, align="end")),
}
"""Tensors by content: numbers of heads, numbers of pairs, tables and slopes.

"matrix" has pairs of a batch. "positive" has pairs of heads alone, positive for a square root."""


@dataclass(frozen=True)
class Extra:
    """tensors: the kinds of the tensor arguments by name. options: other arguments of the call.

    results: names of the compared results. losses: names of the results in the weighted sum that
    is differentiated. edges: True if the mask is the edges of a graph.
    """

    tensors: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    results: tuple[str, ...] = ("output", "weights", "lse")
    losses: tuple[str, ...] = ("output", "lse")
    edges: bool = False

    def inputs(self) -> tuple[str, ...]:
        """Return the names of the textbook tensors that the function takes."""
        return ("query", "key", "value") if "output" in self.results else ("query", "key")

    def call(self, given: dict[str, Any], names: tuple[str, ...], **options: Any) -> list[Any]:
        """Return the results with these names."""
        options |= self.options
        options |= {name: KINDS[kind].make(given[name]) for name, kind in self.tensors.items()}
        tensors = [given[name] for name in self.inputs()]
        if len(tensors) == 2:
            return [getattr(anyscore, name)(*tensors, **options) for name in names]
        if names == ("output",):
            return [anyscore.attention(*tensors, **options)]
        asked = {f"return_{name}": name in names for name in ("weights", "lse")}
        found = anyscore.attention(*tensors, **options, **asked)
        return [getattr(found, name) for name in names]


def _matrix(name: str) -> Extra:
    return Extra(results=(name,), losses=(name,))


def _normalizer(name: str) -> Extra:
    return Extra({}, {"normalizer": name}, ("output", "weights"), ("output",))


CAP = {"softcap": 2.5}
EXTRAS = {
    "": Extra(),
    "weights": Extra(losses=("output", "weights", "lse")),
    "scores": _matrix("scores"),
    "log_weights": _matrix("log_weights"),
    "sink": Extra({"sink": "heads"}),
    "bias": Extra({"bias": "positive"}),
    "bias_after": Extra({"bias_after": "matrix"}),
    "capped_bias": Extra({"bias": "positive"}, CAP),
    "capped_bias_after": Extra({"bias_after": "matrix"}, CAP),
    "relative": Extra({"bias_after": "clipped"}),
    "t5": Extra({"bias_after": "t5"}),
    "alibi": Extra({"bias_after": "alibi"}),
    **{name: _normalizer(name) for name in ("sigmoid", "sparsemax", "entmax15")},
    "edges": Extra(results=("output", "lse"), edges=True),
}
"""All extras; the first one is the textbook call without an extra."""
