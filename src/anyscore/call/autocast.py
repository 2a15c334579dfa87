"""Autocasting of the inputs of a call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from anyscore.ops import Array, Ops
from anyscore.score.base import Projection, Score

_CAST = "float32", "float16", "bfloat16"


def autocast(xp: Ops, dtype: str, tensors: Iterable[Array], score: Any) -> tuple[list[Array], Any]:
    """Cast tensors and the score's parameters to `dtype`, except scales."""
    if isinstance(score, Score):
        scales = [name for name, shape in score.shapes.items() if shape == ()]
        tensors_of_score = {x: y for x, y in score.tensors().items() if x not in scales}
        fields: dict[str, Any] = {x: cast(xp, dtype, y) for x, y in tensors_of_score.items()}
        for name, x in score.projections().items():  # these modules cast their own inputs
            fields[name] = Projection(
                x.call, x.shape, dtype if x.dtype in _CAST else x.dtype, x.tensors
            )
        score = replace(score, **fields)
    return [cast(xp, dtype, x) for x in tensors], score


def cast(xp: Ops, dtype: str, x: Array) -> Array:
    """Return x in `dtype`; x itself if it is wider than float32."""
    return xp.astype(x, dtype) if xp.dtype(x) in _CAST else x
