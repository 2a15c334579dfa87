"""Biases over the edges of a graph: one number per edge, from the caller or from its terms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from anyscore.masks.lowered_edges import LoweredEdges
from anyscore.modifiers.biases import Bias, LoweredBias, lower_biases
from anyscore.ops import Array, Ops, framework
from anyscore.ops.checks import Sizes, broadcasts


def biases_of_edges(
    xp: Ops, edges: LoweredEdges, bias: Any, bias_after: Any, query: Array, sizes: Sizes
) -> tuple[LoweredBias, ...]:
    """Check biases (..., E) of the edges of a call and lower them, to (..., 1, E).

    Raises:
        TypeError, ValueError: `bias` or `bias_after` is no tensor, or does not fit the call.
    """
    given = {"bias": bias, "bias_after": bias_after}
    for name, x in given.items():
        if isinstance(x, Bias):
            raise TypeError(
                f"{name} is {type(x).__name__}(...), which is of positions: over the edges of a "
                "graph pass a tensor (..., edges)."
            )
        full = *sizes.lead, edges.count
        if framework(x) is not None and not broadcasts(tuple(x.shape), full):
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}, expected what broadcasts to {full}: one "
                "number for each edge."
            )
    given = {n: x if framework(x) is None else x[..., None, :] for n, x in given.items()}
    sizes = replace(sizes, queries=1, keys=edges.count)
    lowered = lower_biases(xp, given["bias"], given["bias_after"], query, sizes)
    return tuple(one._replace(array=edges.to_row_order(one.array)) for one in lowered)


def biases_of_terms(
    xp: Ops, edges: LoweredEdges, score: Any, biases: tuple[LoweredBias, ...]
) -> tuple[LoweredBias, ...]:
    """Return biases with terms · key_weight added before an outer function, if the score has it."""
    key_weight = getattr(score, "key_weight", None)
    if edges.terms is None or key_weight is None:
        return biases
    terms = xp.astype(edges.terms, xp.dtype(key_weight))
    of_terms = xp.matmul(terms, key_weight)[..., None, :, 0]
    before = [x.array for x in biases if not x.after]
    after = [x for x in biases if x.after]
    return LoweredBias(sum(before, start=of_terms), False, False), *after
