"""The table: every score, every shape, every mask, as plain data.

Sizes are distinct primes so that no two axes can be confused; grouped heads are 6. All numbers are
float32, so that one oracle serves float32 and float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import anyscore
from table_masks import MASKS, MaskCase, ToArray
from table_shapes import SHAPES, Lead, Shape

HIDDEN, WIDTH, WIDTH_KEY, WIDTH_VALUE = 11, 13, 17, 19


class SquaredProduct:
    """A plain callable that is not among the scores: s = (qᵀk)² / 20."""

    def __call__(self, query: Any, key: Any) -> Any:
        return (query @ key.swapaxes(-1, -2)) ** 2 / 20


@dataclass(frozen=True)
class ScoreCase:
    """kind: the class. shapes: name → shape of a parameter, those of `spread` positive.

    fixed: the fields that are no tensors. each: whether each head has parameters of its own. size:
    that of queries and keys.
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
        """Parameters of the size that keeps scores near 1."""
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
        """The score of the package; `array` makes tensors of what is an array."""
        if self.kind == "SquaredProduct":
            return SquaredProduct()
        tensors = {
            name: array(x) if isinstance(x, np.ndarray) else x for name, x in parameters.items()
        }
        return getattr(anyscore, self.kind)(**tensors)


def _additive(**more: Lead) -> dict[str, Lead]:
    return {"W_q": (HIDDEN, WIDTH), "W_k": (HIDDEN, WIDTH_KEY), "w_v": (HIDDEN,), **more}


_CONCAT = {"W": (HIDDEN, WIDTH + WIDTH_KEY), "w_v": (HIDDEN,)}
_TRILINEAR = dict.fromkeys(("w_q", "w_k", "w_p"), (WIDTH,))
_NONE = {"W_q": None, "W_k": None}

SCORES = {
    "dot": ScoreCase("Dot", {}, {}),
    "scaled_dot": ScoreCase("ScaledDot", {}, {}),
    "scaled_dot_number": ScoreCase("ScaledDot", {}, {"scale": 0.375}),
    "scaled_dot_tensor": ScoreCase("ScaledDot", {"scale": ()}, {}),
    "scaled_dot_each": ScoreCase("ScaledDot", {"scale": ()}, {}, each=True),
    "bilinear": ScoreCase("Bilinear", {"W": (WIDTH, WIDTH_KEY)}, {}, d_k=WIDTH_KEY),
    "bilinear_number": ScoreCase(
        "Bilinear", {"W": (WIDTH, WIDTH_KEY)}, {"scale": 0.75}, d_k=WIDTH_KEY
    ),
    "bilinear_each": ScoreCase(
        "Bilinear", {"W": (WIDTH, WIDTH_KEY), "scale": ()}, {}, d_k=WIDTH_KEY, each=True
    ),
    "cosine": ScoreCase("Cosine", {}, {"tau": 0.375}),
    "cosine_tensor": ScoreCase("Cosine", {"tau": ()}, {}),
    "trilinear": ScoreCase("Trilinear", _TRILINEAR, {}),
    "trilinear_each": ScoreCase("Trilinear", _TRILINEAR, {}, each=True),
    "gaussian": ScoreCase("Gaussian", {}, {"sigma": 2.25}),
    "gaussian_each": ScoreCase("Gaussian", {"sigma": ()}, {}, each=True),
    "laplace": ScoreCase("Laplace", {}, {"sigma": 3.5}),
    "laplace_tensor": ScoreCase("Laplace", {"sigma": ()}, {}),
    "euclidean": ScoreCase("Euclidean", {}, {"sigma": 1.25}),
    "euclidean_each": ScoreCase("Euclidean", {"sigma": ()}, {}, each=True),
    "student_t": ScoreCase("StudentT", {"sigma": ()}, {"nu": 2.5}),
    "lorentz": ScoreCase("Lorentz", {"sigma": ()}, {"scale": 1.5}),
    "additive": ScoreCase("Additive", _additive(), {}, d_k=WIDTH_KEY),
    "additive_bias": ScoreCase("Additive", _additive(bias=(HIDDEN,)), {}, d_k=WIDTH_KEY),
    "additive_projected": ScoreCase("Additive", {"w_v": (WIDTH,)}, _NONE),
    "additive_each": ScoreCase("Additive", _additive(bias=(HIDDEN,)), {}, d_k=WIDTH_KEY, each=True),
    "concat": ScoreCase("Concat", _CONCAT, {}, d_k=WIDTH_KEY),
    "concat_bias": ScoreCase("Concat", {**_CONCAT, "bias": (HIDDEN,)}, {}, d_k=WIDTH_KEY),
    "gatv2": ScoreCase("GATv2", _additive(), {}, d_k=WIDTH_KEY),
    "gatv2_projected": ScoreCase("GATv2", {"w_v": (WIDTH,)}, _NONE),
    "callable": ScoreCase("SquaredProduct", {}, {}),
}

OPTIONS = {
    "additive_scale": ScoreCase("Additive", _additive(), {"scale": 0.625}, d_k=WIDTH_KEY),
    "additive_scale_each": ScoreCase("Additive", _additive(scale=()), {}, d_k=WIDTH_KEY, each=True),
    "concat_scale": ScoreCase("Concat", {**_CONCAT, "scale": ()}, {}, d_k=WIDTH_KEY),
    "gatv2_relu": ScoreCase("GATv2", _additive(), {"negative_slope": 0}, d_k=WIDTH_KEY),
    "gatv2_slope": ScoreCase("GATv2", {"w_v": (WIDTH,)}, {**_NONE, "negative_slope": 0.75}),
    "gatv2_slope_tensor": ScoreCase("GATv2", _additive(negative_slope=()), {}, d_k=WIDTH_KEY),
}
"""Scores with arguments that are seldom given: fewer rows."""

_WIDE: dict[str, Any] = {"d_q": 4096, "d_k": 4096}
_SMALL: dict[str, Any] = {**_WIDE, "size": 1 / 64}

WIDE = {
    "scaled_dot_wide": ScoreCase("ScaledDot", {}, {}, **_WIDE),
    "gaussian_wide": ScoreCase("Gaussian", {}, {"sigma": 64.0}, **_WIDE),
    "laplace_wide": ScoreCase("Laplace", {}, {"sigma": 64.0}, **_WIDE),
    "additive_wide": ScoreCase("Additive", {"w_v": (4096,)}, _NONE, **_SMALL),
    "gatv2_wide": ScoreCase("GATv2", {"w_v": (4096,)}, _NONE, **_SMALL),
    "scaled_dot_wide_values": ScoreCase("ScaledDot", {}, {}, d_v=4096),
    "additive_wide_values": ScoreCase("Additive", {"w_v": (WIDTH,)}, _NONE, d_v=4096),
}
"""Scores whose sums have 4,096 terms, and stay near 1; too slow for the whole table."""


@dataclass(frozen=True)
class Case:
    """One row of the table, in float32: what the oracle is given."""

    score: ScoreCase
    shape: Shape
    mask: MaskCase
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    parameters: dict[str, Any]

    def masking(self, array: ToArray) -> dict[str, Any]:
        """The keyword argument that masks, its tensors made by `array`."""
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
