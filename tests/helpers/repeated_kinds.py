"""Kinds of calls as plain data, by the arguments that they have beside those of `call_of`."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

import anyscore
from anyscore import prepare_keys, scores
from anyscore.masks.objects import All, Causal, Interval, Keys, Lengths, Mask, Window
from anyscore.score.factors import Factors
from anyscore.score.outer import Outer
from anyscore.score.pairs import PRODUCT
from helpers.repeated_calls import Arguments, Draw


class FirstKeys(Mask):
    """A mask of a user, whose state is not in its fields."""

    n = 0

    def lower(self, call: Any) -> Any:
        return Lengths(self.n).lower(call)


class FirstOfAll(FirstKeys, All):
    """A mask of a user that is made of other masks, and ignores these."""


def first_keys(n: int, *masks: Mask) -> dict[str, Any]:
    FirstKeys.n = n
    return {"mask": FirstOfAll(masks) if masks else FirstKeys()}


@dataclass(frozen=True, eq=False)
class Capped(anyscore.Score):
    """A score of a user, with a number that has no hash."""

    caps: list[float]

    def lower(self, xp: Any, query: Any, key: Any) -> Factors:
        return Factors(query, key, PRODUCT, outer=Outer("tanh", self.caps[0]))


def tokens(d: Draw, *lead: int, width: int = 4, dtype: str = "float32") -> dict[str, Any]:
    """Draw tokens whose values are narrower than their number, so that no scores are kept."""
    shapes = {"query": (3, width), "key": (5, width), "value": (5, 3)}
    return {name: d(*lead, *shape, dtype=dtype) for name, shape in shapes.items()}


def many(d: Draw, queries: int) -> dict[str, Any]:
    return {"query": d(queries, 4), "key": d(300, 4), "value": d(300, 6)}


def rows_of_heads(d: Draw) -> dict[str, Any]:
    shapes = {"query": (3, 2, 4), "key": (5, 2, 4), "value": (5, 2, 6)}
    return {name: d(2, *shape).swapaxes(1, 2) for name, shape in shapes.items()}


def turned(x: Any) -> Any:
    """Return x with the strides of a transposed array."""
    y = x.swapaxes(-1, -2)
    return (y.copy() if isinstance(x, np.ndarray) else y.contiguous()).swapaxes(-1, -2)


def padded(d: Draw, fill: float = np.nan) -> dict[str, Any]:
    """Return lengths, and tokens with a number in padding and in a query without keys."""
    found = tokens(d, 3)
    lengths = np.array([5, 2, 0])
    for name in ("key", "value"):
        rows = (np.arange(5) >= lengths[:, None])[..., None]
        found[name] = found[name] + d.array(np.where(rows, fill, 0).astype(np.float32))
    found["query"] = found["query"] + d.array(np.float32([0, 0, fill])[:, None, None])
    return found | {"valid_lens": d.array(lengths)}


def additive(d: Draw) -> anyscore.Additive:
    return anyscore.Additive(None, None, d(4))


def projected(d: Draw, hidden: int = 6, dtype: str = "float32") -> anyscore.Additive:
    matrices = d(hidden, 4), d(hidden, 4)
    return anyscore.Additive(*matrices, d(hidden), d(hidden, dtype=dtype))


def trilinear(d: Draw) -> anyscore.Trilinear:
    return anyscore.Trilinear(d(4), d(4), d(4))


def prepared(d: Draw, score: Any, other: Any = None) -> dict[str, Any]:
    """Return keys prepared for a score, to be called with another one if it is given."""
    return {"key": prepare_keys(d(2, 5, 4), score), "score": other or score}


SCORES: dict[str, Arguments] = {
    "scaled dot": {},
    "dot": {"score": anyscore.Dot()},
    "bilinear": lambda d: {"score": anyscore.Bilinear(d(4, 4))},
    "cosine": {"score": anyscore.Cosine()},
    "trilinear": lambda d: {"score": trilinear(d)},
    "gaussian": {"score": anyscore.Gaussian(2.0)},
    "gaussian, integer": {"score": anyscore.Gaussian(2)},
    "gaussian, tensor": lambda d: {"score": anyscore.Gaussian(d() ** 2)},
    "gaussian, fraction": {"score": anyscore.Gaussian(Fraction(2))},
    "gaussian, NumPy": {"score": anyscore.Gaussian(np.float64(2))},
    "laplace": {"score": anyscore.Laplace(2.0)},
    "euclidean": {"score": anyscore.Euclidean(2.0)},
    "student t": {"score": anyscore.StudentT(1.0, 2.0)},
    "lorentz": {"score": anyscore.Lorentz()},
    "additive": lambda d: {"score": additive(d)},
    "projected": lambda d: {"score": projected(d)},
    "concat": lambda d: {"score": anyscore.Concat(d(6, 8), d(6))},
    "gatv2": lambda d: {"score": anyscore.GATv2(None, None, d(4))},
    "prepared dot": lambda d: prepared(d, anyscore.Dot()),
    "prepared additive": lambda d: prepared(d, additive(d)),
    "prepared projected": lambda d: prepared(d, projected(d)),
    "callable": {"score": lambda q, k: q @ k.swapaxes(-1, -2)},
    "user": {"score": Capped([1.0])},
}
TOKENS: dict[str, Arguments] = {
    "two sequences": {},
    "no lead": tokens,
    "heads": lambda d: tokens(d, 2, 4),
    "shared keys": lambda d: tokens(d, 2, 2) | {"query": d(2, 4, 3, 4)},
    "rows of heads": rows_of_heads,
    "float64": lambda d: tokens(d, 2, dtype="float64"),
    "float16": lambda d: tokens(d, 2, dtype="float16"),
    "turned keys": lambda d: {"key": turned(d(2, 5, 4))},
    "no queries": lambda d: {"query": d(2, 0, 4)},
    "no keys": lambda d: {"key": d(2, 0, 4), "value": d(2, 0, 6)},
    "padding": padded,
}
MASKS: dict[str, Arguments] = {
    "no mask": {},
    "length": lambda d: {"valid_lens": d.lengths()},
    "lengths": lambda d: {"valid_lens": d.lengths(2)},
    "lengths of queries": lambda d: {"valid_lens": d.lengths(2, 3)},
    "int32": lambda d: {"valid_lens": d.lengths(2, dtype="int32")},
    "list": lambda d: {"valid_lens": d.lengths(2).tolist()},
    "integer of NumPy": {"valid_lens": np.int64(2)},
    "causal": {"mask": Causal("end")},
    "causal, lengths": lambda d: {"mask": Causal("end"), "valid_lens": d.lengths(2)},
    "window": {"mask": Window(1, 0, "end") & Lengths(4)},
    "keys": lambda d: {"mask": Keys(d.booleans(5))},
    "causal keys": lambda d: {"mask": Causal("end") & Keys(d.booleans(5))},
    "interval": lambda d: {"mask": Interval(d.lengths(2, 3), d.lengths(2))},
    "booleans": lambda d: {"mask": d.booleans(2, 3, 5)},
    "booleans of all": lambda d: {"mask": d.booleans(3, 5)},
    "booleans, lengths": lambda d: {"mask": d.booleans(2, 3, 5), "valid_lens": d.lengths(2)},
    "first keys": lambda d: first_keys(1),
    "first of all": lambda d: first_keys(1, Causal("end")),
}
OPTIONS: dict[str, Arguments] = {
    "no option": {},
    "softcap": {"softcap": 2.0},
    "sigmoid": {"normalizer": "sigmoid"},
    "dropout": {"dropout": 0.5},
    "seed": {"dropout": 0.5, "dropout_seed": 2**64 - 3},
    "scores": {"function": scores, "value": None},
    "bias": lambda d: {"bias": d(5)},
    "bias after": lambda d: {"bias_after": d(5)},
    "sink": {"sink": 0.5},
    "weights": {"return_weights": True},
    "log-sum-exp": {"return_lse": True},
    "sparsemax": {"normalizer": "sparsemax"},
    "reference": {"impl": "reference"},
}
PARTS = SCORES, TOKENS, MASKS, OPTIONS
KINDS: dict[str, Arguments] = {
    **{name: arguments for part in PARTS for name, arguments in part.items()},
    "200 × 300": lambda d: many(d, 200),
    "300 × 300": lambda d: many(d, 300),
}
NEVER = frozenset(
    [
        *("trilinear", "gaussian, tensor", "gaussian, fraction", "gaussian, NumPy", "callable"),
        *("user", "turned keys", "no queries", "no keys", "bias", "bias after", "sink", "weights"),
        *("log-sum-exp", "sparsemax", "reference"),
    ]
)
"""The kinds whose calls are never repeated."""


def merged(*names: str) -> Arguments:
    """Return the arguments of several kinds; the last prevails."""

    def drawn(d: Draw) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for arguments in map(KINDS.__getitem__, names):
            found |= arguments(d) if callable(arguments) else arguments
        return found

    return drawn
