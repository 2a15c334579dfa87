"""Extras by name: each adds to the textbook call one thing that lies beyond it.

An extra is plain data: tensors of its own, arguments of the call, the results that are compared and
those that gradients are of. `beyond` computes what is exact of it.
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
"""Columns of a clipped table and of T5's; how far its buckets reach."""


@dataclass(frozen=True)
class Kind:
    """A tensor beside query, key and value.

    draw: its numbers, of a shape. make: the argument of the call that it becomes. pairs: whether it
    has an entry for each query and key.
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
"""Tensors by what they hold: numbers of heads, of pairs (of a batch; of heads alone, and positive,
as a square root needs them), tables and slopes."""


@dataclass(frozen=True)
class Extra:
    """tensors: arguments of the call by name, of which kind each is. options: its other arguments.

    results: what is compared. losses: those of them whose weighted sum gradients are of. edges:
    whether the mask is given as the edges of a graph.
    """

    tensors: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    results: tuple[str, ...] = ("output", "weights", "lse")
    losses: tuple[str, ...] = ("output", "lse")
    edges: bool = False

    def inputs(self) -> tuple[str, ...]:
        """Name the tensors of the textbook call that the function takes."""
        return ("query", "key", "value") if "output" in self.results else ("query", "key")

    def call(self, given: dict[str, Any], names: tuple[str, ...], **options: Any) -> list[Any]:
        """Compute the results of these names."""
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
"""All extras; the first is none: the textbook call."""
