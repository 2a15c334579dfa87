"""The table of calls: every score, shape and mask, as plain data.

Sizes are distinct primes, so no test can confuse two axes; grouped heads are 6. All numbers are
float32, so one oracle serves float32 and float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from helpers.table_masks import MASKS, MaskCase, ToArray
from helpers.table_scores import CALLABLE, ROWS, TABLE, Row, Variant
from helpers.table_shapes import SHAPES, Lead, Shape

HIDDEN, WIDTH, WIDTH_KEY, WIDTH_VALUE = 11, 13, 17, 19


@dataclass(frozen=True)
class ScoreCase:
    """kind: class of the score. shapes: parameter name → shape.

    fixed: fields that are no tensors. each: whether each head has its own parameters. size:
    magnitude of queries and keys.
    """

    kind: str
    shapes: dict[str, Lead]
    fixed: dict[str, Any]
    d_q: int = WIDTH
    d_k: int = WIDTH
    each: bool = False
    d_v: int = WIDTH_VALUE
    size: float = 1.0

    def make(self, rng: np.random.Generator, of_query: Lead, of_key: Lead) -> dict[str, Any]:
        """Return random parameters that keep scores near 1."""
        parameters: dict[str, Any] = dict(self.fixed)
        for name, shape in self.shapes.items():
            heads = (of_key if name in ("W_k", "w_k") else of_query)[-1:] if self.each else ()
            if name in ("scale", "sigma", "tau", "negative_slope"):
                parameters[name] = rng.uniform(0.5, 2.0, (*heads, *shape)).astype(np.float32)
            else:
                width = shape[-1] if len(shape) == 2 else 3
                x = rng.standard_normal((*heads, *shape)) / np.sqrt(width)
                parameters[name] = x.astype(np.float32)
        return parameters

    def build(self, parameters: dict[str, Any], array: ToArray) -> Any:
        """Return the score of the package; `array` turns arrays into tensors."""
        tensors = {
            name: array(x) if isinstance(x, np.ndarray) else x for name, x in parameters.items()
        }
        return ROWS[self.kind].kind(**tensors)


def _case(row: Row, variant: Variant, **more: Any) -> ScoreCase:
    """Return a variant of a score; keys have another width than queries if the parameters allow."""
    letters = [letter for name in variant.tensors for letter in row.fields[name]]
    d_k = WIDTH_KEY if any("d_k" in letter for letter in letters) else WIDTH
    hidden = WIDTH if variant.numbers.get("W_q", row) is None else HIDDEN
    shapes = {name: row.shape(name, WIDTH, d_k, hidden) for name in variant.tensors}
    return ScoreCase(row.kind.__name__, shapes, variant.numbers, d_k=d_k, each=variant.each, **more)


def _option(name: str, *tensors: str, **numbers: Any) -> ScoreCase:
    return _case(TABLE[name], Variant(tensors, numbers))


SCORES = {
    f"{name}_{more}".removesuffix("_"): _case(row, variant)
    for name, row in {**TABLE, "callable": CALLABLE}.items()
    for more, variant in row.variants.items()
}

_HIDDEN, _PROJECTED = ("W_q", "W_k", "w_v"), {"W_q": None, "W_k": None}

OPTIONS = {
    "additive_scale": _option("additive", *_HIDDEN, scale=0.625),
    "additive_scale_each": _case(TABLE["additive"], Variant((*_HIDDEN, "scale"), each=True)),
    "concat_scale": _option("concat", "W", "w_v", "scale"),
    "gatv2_relu": _option("gatv2", *_HIDDEN, negative_slope=0),
    "gatv2_slope": _option("gatv2", "w_v", **_PROJECTED, negative_slope=0.75),
    "gatv2_slope_tensor": _option("gatv2", *_HIDDEN, "negative_slope"),
}
"""Scores with rare arguments, which have fewer rows."""

_WIDE: dict[str, Any] = {"d_q": 4096, "d_k": 4096}
_SMALL: dict[str, Any] = {**_WIDE, "size": 1 / 64}

WIDE = {
    "scaled_dot_wide": ScoreCase("ScaledDot", {}, {}, **_WIDE),
    "gaussian_wide": ScoreCase("Gaussian", {}, {"sigma": 64.0}, **_WIDE),
    "laplace_wide": ScoreCase("Laplace", {}, {"sigma": 64.0}, **_WIDE),
    "additive_wide": ScoreCase("Additive", {"w_v": (4096,)}, _PROJECTED, **_SMALL),
    "gatv2_wide": ScoreCase("GATv2", {"w_v": (4096,)}, _PROJECTED, **_SMALL),
    "scaled_dot_wide_values": ScoreCase("ScaledDot", {}, {}, d_v=4096),
    "additive_wide_values": ScoreCase("Additive", {"w_v": (WIDTH,)}, _PROJECTED, d_v=4096),
}
"""Scores near 1 with sums of 4,096 terms; too slow for the whole table."""


@dataclass(frozen=True)
class Case:
    """One row of the table in float32: the arguments of the oracle."""

    score: ScoreCase
    shape: Shape
    mask: MaskCase
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    parameters: dict[str, Any]

    def masking(self, array: ToArray) -> dict[str, Any]:
        """Return the mask as keyword argument, with tensors made by `array`."""
        made = self.mask.make(self.shape, np.random.default_rng(7), array)
        return {"valid_lens" if self.mask.as_lengths else "mask": made}


@cache
def case(score: str, shape: str, mask: str) -> Case:
    rng = np.random.default_rng([len(score), len(shape), len(mask)])
    f, s, m = (SCORES | OPTIONS | WIDE)[score], SHAPES[shape], MASKS[mask]

    def normal(lead: Lead, tokens: int, width: int, size: float = 1.0) -> np.ndarray:
        return (size * rng.standard_normal((*lead, tokens, width))).astype(np.float32)

    return Case(
        f, s, m,
        normal(s.query, s.queries, f.d_q, f.size),
        normal(s.key, s.keys, f.d_k, f.size),
        normal(s.value, s.keys, f.d_v),
        f.make(rng, s.query, s.key),
    )  # fmt: skip


def applicable(shape: str, mask: str) -> bool:
    return len(SHAPES[shape].lead) >= MASKS[mask].rank
