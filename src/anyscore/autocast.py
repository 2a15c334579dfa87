"""What autocasting makes of the inputs of a call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from anyscore.ops import Array, Ops
from anyscore.score import Score

_CAST = "float32", "float16", "bfloat16"


def autocast(xp: Ops, dtype: str, tensors: Iterable[Array], score: Any) -> tuple[list[Array], Any]:
    """Tensors and parameters in `dtype`, as the inputs of a product; scales are not rounded."""
    if isinstance(score, Score):
        wide = [name for name, shape in score.shapes.items() if shape == ()]
        own = {name: x for name, x in score.tensors().items() if name not in wide}
        cast_own: dict[str, Any] = {name: cast(xp, dtype, x) for name, x in own.items()}
        for name, x in score.projections().items():  # these cast by themselves
            cast_own[name] = replace(x, dtype=dtype) if x.dtype in _CAST else x
        score = replace(score, **cast_own)
    return [cast(xp, dtype, x) for x in tensors], score


def cast(xp: Ops, dtype: str, x: Array) -> Array:
    """x in `dtype`, unless it is wider than float32."""
    return xp.astype(x, dtype) if xp.dtype(x) in _CAST else x
