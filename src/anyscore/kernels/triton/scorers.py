"""The ways to score a tile: by products, by norms, by absolute values, by exponentials, or any.

A scorer is a table of `@triton.jit` functions. Kernels are compiled for a scorer, and do not branch
on the way to score.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from anyscore.call.operands import Settings
from anyscore.kernels.triton import scores, slopes
from anyscore.kernels.triton.formula import of_formula
from anyscore.kernels.triton.pairs import Functions
from anyscore.score.outer import FORMULAS


class Scorer(NamedTuple):
    """Functions of `scores` and `slopes`, and constants.

    read_queries, scores: functions of `scores`. start, slopes: functions of `slopes`; None for
    products, whose sums are products too. pair: the `Functions`. width, padded: the numbers of
    features, and of features in panels. reciprocal, precision: of the `Target`; None and "ieee"
    without panels. outer, outer_scale, after: see `Settings`; after is true only with an outer
    function. own_outer: the `Functions` of a formula, of which b is not read; or None. at_once:
    features per step of a loop, unless the pair is a product or tanh. A backward has registers for
    fewer features than a forward. narrow: whether products read features of 16 bits. depth:
    features per step of a product. queries: the number of queries in a tile. slots: of folded
    features.
    """

    read_queries: Any
    scores: Any
    start: Any
    slopes: Any
    pair: Functions
    width: int = 0
    padded: int = 0
    reciprocal: Any = None
    precision: str = "ieee"
    outer: str = ""
    outer_scale: float = 0.0
    own_outer: Functions | None = None
    after: bool = False
    at_once: int = 8
    narrow: bool = False
    depth: int = 16
    queries: int = 64
    slots: int = 0

    def of_settings(self, s: Settings, **fields: Any) -> Scorer:
        """Return the scorer with the outer function of the settings, and with other fields."""
        after = s.bias_after_outer and bool(s.outer)
        own = of_formula(FORMULAS[s.outer]) if s.outer in FORMULAS else None
        return self._replace(
            outer=s.outer, outer_scale=float(s.outer_scale), own_outer=own, after=after, **fields
        )

    @property
    def cache_key(self) -> str:
        """Return the scorer's key in Triton's cache on disk, the source of its functions."""
        fields = [y for x in self for y in (x if isinstance(x, Functions) else (x,))]
        return "-".join(str(getattr(x, "cache_key", x)) for x in fields)


def product(pair: Functions) -> Scorer:
    """Return the scorer of Σ_f a_f b_f by tensor cores; the weight is in a."""
    return Scorer(scores.product_queries, scores.product_scores, None, None, pair)


def squared_by_norms(pair: Functions) -> Scorer:
    """Return the scorer of Σ_f (a_f − b_f)² by products of 16-bit features and their norms."""
    return Scorer(scores.squared_queries, scores.squared_scores, None, None, pair)


def elementwise(pair: Functions) -> Scorer:
    """Return the scorer of Σ_f w_f pair(a_f, b_f)."""
    start, sums = slopes.elementwise_start, slopes.elementwise_slopes
    if pair.steps is not None:
        start, sums = slopes.stepped_start, slopes.stepped_slopes
    return Scorer(scores.no_queries, scores.elementwise_scores, start, sums, pair)


def folded(pair: Functions) -> Scorer:
    """Return the scorer of Σ_f w_f leaky_relu(a_f + b_f) in float32 by absolute values."""
    return elementwise(pair)._replace(
        read_queries=scores.folded_queries, scores=scores.folded_scores
    )


def tanh_by_exponentials(pair: Functions) -> Scorer:
    """Return the scorer of Σ_f w_f tanh(a_f + b_f) in float32; large exponents use the pair."""
    return Scorer(
        scores.exponential_queries,
        scores.exponential_scores,
        slopes.exponential_start,
        slopes.exponential_slopes,
        pair,
    )
