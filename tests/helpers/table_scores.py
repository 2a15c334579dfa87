"""The table of scores: a new score of the package needs one row here.

These read a score from its row: oracle, plain formulas, exact gradients, samples, the table of
calls, tests of layers, the parity page and the fuzz. A row takes no formula from the package. Its
formulas are independent of one another: loops over single numbers (`exact`), operations on arrays
(`plain`), and factors for the fuzz (`scaled`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from operator import mul
from typing import Any

import anyscore

Vector = list[float]
Numbers = dict[str, Any]
Letters = tuple[str, ...]
Widths = Callable[[int, int, int], float]
"""Function from (d_q, d_k, h) to a number."""


class SquaredProduct:
    """A plain callable that is no score of the package: s = (qᵀk)² / 20."""

    def __call__(self, query: Any, key: Any) -> Any:
        return (query @ key.swapaxes(-1, -2)) ** 2 / 20


@dataclass(frozen=True)
class Variant:
    """One set of parameters: drawn `tensors` and fixed `numbers`. each: whether per head."""

    tensors: Letters = ()
    numbers: Numbers = field(default_factory=dict)
    each: bool = False


@dataclass(frozen=True)
class Scaled:
    """The score factor / (divisor · xⁿ) · Σ_d pair(q_d, k_d), or an outer function of this number.

    of: the field x. power: n. divisor: function of the other fields. outer: (name, number c). unit:
    whether q and k are divided by their norms.
    """

    of: str
    power: int
    factor: float = 1.0
    divisor: Callable[[Numbers], float] = lambda p: 1.0
    outer: Callable[[Numbers], tuple[str, float]] | None = None
    unit: bool = False


@dataclass(frozen=True)
class Row:
    """The properties of a score that the tests use.

    kind: its class. pair: the pair of its lowered form.
    exact: (query and key as lists of numbers, fields of the score for one head) → s.
    plain: (xp, query (..., T_q, d_q), key (..., T_k, d_k), score) → s (..., T_q, T_k).
    fields: shape of each field that may be a tensor, in d_q, d_k and h.
    variants: rows of the table of calls, by the suffix of the score's name.
    sample: fields of `samples.make_score`, with the numbers of scales. fixed: plain numbers.
    layer: fields that a layer learns: first value of a scale, variance of a tensor's entries.
    layer_numbers: fields that a layer fixes.
    variance: of the scores of a new layer; None if it follows the width.
    scaled: the score for the fuzz; None if the fuzz has its form, or cannot draw the score.
    outer: whether an outer function takes the whole sum.
    of_both: whether a parameter meets queries and keys, so both have the same number of heads.
    """

    kind: Any
    pair: str
    exact: Callable[[Vector, Vector, Numbers], float]
    plain: Callable[[Any, Any, Any, Any], Any]
    fields: dict[str, Letters] = field(default_factory=dict)
    variants: dict[str, Variant] = field(default_factory=lambda: {"": Variant()})
    sample: dict[str, float | None] = field(default_factory=dict)
    fixed: dict[str, float] = field(default_factory=dict)
    layer: dict[str, Widths] = field(default_factory=dict)
    layer_numbers: dict[str, Widths] = field(default_factory=dict)
    variance: float | None = 1.0
    scaled: Scaled | None = None
    outer: bool = False
    of_both: bool = False

    @property
    def names(self) -> set[str]:
        """Return the names of all fields."""
        return {*self.fields, *self.fixed}

    @property
    def hidden(self) -> bool:
        """Return whether the score has a hidden layer, with a width that its layer takes."""
        return "w_v" in self.fields

    def shape(self, name: str, d_q: int, d_k: int, h: int) -> tuple[int, ...]:
        """Return the shape of a field for these widths."""
        widths = {"d_q": d_q, "d_k": d_k, "h": h, "d_q + d_k": d_q + d_k}
        return tuple(widths[letter] for letter in self.fields[name])

    def learned(self, d_q: int, d_k: int, h: int) -> dict[str, tuple[int, ...]]:
        """Map the parameters of a layer to their shapes; a scale is learned by its logarithm."""
        shapes = {name: self.shape(name, d_q, d_k, h) for name in self.layer}
        return {name if shape else f"log_{name}": shape for name, shape in shapes.items()}

    def of_layer(self, learned: dict[str, Any], d_q: int, d_k: int, h: int = 1) -> Any:
        """Make the score of the parameters of a layer, by their names in its state dict."""
        fields: dict[str, Any] = {name: f(d_q, d_k, h) for name, f in self.layer_numbers.items()}
        for parameter, x in learned.items():
            name = parameter.removesuffix(".weight")
            if name.startswith("log_"):
                fields[name.removeprefix("log_")] = math.e**x
            else:
                fields[name] = x[0] if name == "w_v" else x
        return self.kind(**fields)


# --------------------------------------------------------------- formulas by loops over numbers


def total(xs: Iterable[float]) -> float:
    """Return the sum with a single rounding; NaN of infinities of both signs."""
    try:
        return math.fsum(xs)
    except ValueError:
        return math.nan


def dot(x: Vector, y: Vector) -> float:
    return total(map(mul, x, y))


def times(W: list[Vector], x: Vector) -> Vector:
    return [dot(row, x) for row in W]


def _square(q: Vector, k: Vector) -> float:
    return total((x - y) ** 2 for x, y in zip(q, k, strict=True))


def _scale(p: Numbers) -> float:
    return 1 if p["scale"] is None else p["scale"]


def _cosine(q: Vector, k: Vector, p: Numbers) -> float:
    norms = math.hypot(*q), math.hypot(*k)
    return dot([x / norms[0] for x in q], [x / norms[1] for x in k]) / p["tau"] if all(norms) else 0


def _lorentz(q: Vector, k: Vector, p: Numbers) -> float:
    """Exact fractions: x̂₀ŷ₀ − x·y − 1 = ((x̂₀ŷ₀)² − (1 + x·y)²) / (x̂₀ŷ₀ + 1 + x·y)."""
    if not all(map(math.isfinite, (*q, *k))):
        return math.nan
    x, y = ([Fraction(z) / Fraction(p["sigma"]) for z in vector] for vector in (q, k))
    one = Fraction(1)
    inner, roots = (
        one + sum(map(mul, x, y)),
        (one + sum(map(mul, x, x))) * (one + sum(map(mul, y, y))),
    )
    both = math.sqrt(roots) + float(inner)
    u = float(roots - inner * inner) / both if both > 0 else math.sqrt(roots) - float(inner)
    return -p["scale"] * math.log1p(u + math.sqrt(u) * math.sqrt(u + 2))


def _sum(q: Vector, k: Vector, p: Numbers) -> Vector:
    """Return query + key + bias; `oracle.attend` has projected the query and the key."""
    return [total(z) for z in zip(q, k, p.get("bias") or [0.0] * len(q), strict=True)]


def _concat(q: Vector, k: Vector, p: Numbers) -> float:
    x = times(p["W"], [*q, *k])
    bias = p["bias"] or [0.0] * len(x)
    return dot(p["w_v"], [math.tanh(y + z) for y, z in zip(x, bias, strict=True)]) * _scale(p)


# ------------------------------------------------------------------------- formulas by arrays


def _product(query: Any, key: Any) -> Any:
    return query @ key.swapaxes(-1, -2)


def _differences(query: Any, key: Any) -> Any:
    return query[..., :, None, :] - key[..., None, :, :]


def _squares(xp: Any, query: Any, key: Any) -> Any:
    difference = _differences(query, key)
    return xp.sum(difference * difference, axis=-1)


def _each(x: Any) -> Any:
    """Return a scale, of each head or of all, that broadcasts to scores (..., T_q, T_k)."""
    return x[..., None, None] if hasattr(x, "shape") else x


def _times_scale(s: Any, scale: Any) -> Any:
    return s if scale is None else s * _each(scale)


def _root(xp: Any, x: Any) -> Any:
    """Return √x, with the derivative 0 at 0."""
    zero = x == 0
    return xp.where(zero, 0.0, xp.sqrt(xp.where(zero, 1.0, x)))


def _plain_cosine(xp: Any, query: Any, key: Any, p: Any) -> Any:
    norms = [_root(xp, xp.sum(x * x, axis=-1, keepdims=True)) for x in (query, key)]
    both = norms[0] * norms[1].swapaxes(-1, -2)
    zero = both == 0
    product = xp.where(zero, 0.0, _product(query, key) / xp.where(zero, 1.0, both))
    return product / _each(p.tau)


def _plain_trilinear(xp: Any, query: Any, key: Any, p: Any) -> Any:
    both = _product(query * p.w_p[..., None, :], key)
    alone = xp.sum(key * p.w_k[..., None, :], axis=-1)[..., None, :]
    return both + alone + xp.sum(query * p.w_q[..., None, :], axis=-1)[..., :, None]


def _plain_lorentz(xp: Any, query: Any, key: Any, p: Any) -> Any:
    """Return −scale · arcosh(1 + u), with u half the squared Lorentz distance of the points."""
    x, y = (x / _each(p.sigma) for x in (query, key))
    a, b = (xp.sqrt(1 + xp.sum(z * z, axis=-1)) for z in (x, y))
    u = (_squares(xp, x, y) - (a[..., :, None] - b[..., None, :]) ** 2) / 2
    u = xp.where(u < 0, 0.0, u)
    return -p.scale * xp.log1p(u + _root(xp, u * (u + 2)))


def _hidden(xp: Any, query: Any, key: Any, p: Any) -> Any:
    """Return the sums (..., T_q, T_k, h) of the hidden layer."""
    if hasattr(p, "W"):
        W_q, W_k = p.W[..., : query.shape[-1]], p.W[..., query.shape[-1] :]
    else:
        W_q, W_k = p.W_q, p.W_k
    a = query if W_q is None else query @ W_q.swapaxes(-1, -2)
    b = key if W_k is None else key @ W_k.swapaxes(-1, -2)
    x = a[..., :, None, :] + b[..., None, :, :]
    return x if getattr(p, "bias", None) is None else x + p.bias[..., None, None, :]


def _read(xp: Any, hidden: Any, p: Any) -> Any:
    return xp.sum(hidden * p.w_v[..., None, None, :], axis=-1)


def _plain_tanh(xp: Any, query: Any, key: Any, p: Any) -> Any:
    return _times_scale(_read(xp, xp.tanh(_hidden(xp, query, key, p)), p), p.scale)


def _plain_gatv2(xp: Any, query: Any, key: Any, p: Any) -> Any:
    x, slope = _hidden(xp, query, key, p), p.negative_slope
    slope = slope[..., None, None, None] if hasattr(slope, "shape") else slope
    return _read(xp, xp.where(x > 0, x, slope * x), p)


# ------------------------------------------------------------------------------- the table


def _variance_of_hidden(d_q: int, d_k: int, h: int) -> float:
    return 1 / (d_q + d_k)


def _mean_square(function: Callable[[float], float]) -> float:
    """Return the mean of f(z)² for a standard normal z."""
    z = [i / 500 - 8 for i in range(8001)]
    weights = [math.exp(-x * x / 2) for x in z]
    return dot(weights, [function(x) ** 2 for x in z]) / total(weights)


_LAYER_OF_TANH: dict[str, Widths] = {
    "w_v": lambda d_q, d_k, h: 1 / (h * _mean_square(math.tanh)),
}
_LAYER_OF_RELU: dict[str, Widths] = {
    "w_v": lambda d_q, d_k, h: 1 / (h * _mean_square(lambda x: max(x, 0.2 * x))),
}
_PROJECTIONS: dict[str, Widths] = {
    "W_q": lambda d_q, d_k, h: 1 / (2 * d_q),
    "W_k": lambda d_q, d_k, h: 1 / (2 * d_k),
}
_HIDDEN: dict[str, Letters] = {"W_q": ("h", "d_q"), "W_k": ("h", "d_k"), "w_v": ("h",)}
_PROJECTED: Numbers = {"W_q": None, "W_k": None}
_SIGMA: dict[str, Letters] = {"sigma": ()}

TABLE: dict[str, Row] = {
    "dot": Row(
        anyscore.Dot,
        "product",
        lambda q, k, p: dot(q, k),
        lambda xp, q, k, p: _product(q, k),
        variance=None,
    ),
    "scaled_dot": Row(
        anyscore.ScaledDot,
        "product",
        lambda q, k, p: dot(q, k) * (1 / math.sqrt(len(q)) if p["scale"] is None else p["scale"]),
        lambda xp, q, k, p: (
            _product(q, k) / math.sqrt(q.shape[-1])
            if p.scale is None
            else _product(q, k) * _each(p.scale)
        ),
        fields={"scale": ()},
        variants={
            "": Variant(),
            "number": Variant(numbers={"scale": 0.375}),
            "tensor": Variant(("scale",)),
            "each": Variant(("scale",), each=True),
        },
    ),
    "bilinear": Row(
        anyscore.Bilinear,
        "product",
        lambda q, k, p: dot(q, times(p["W"], k)) * _scale(p),
        lambda xp, q, k, p: _times_scale(_product(q @ p.W, k), p.scale),
        fields={"W": ("d_q", "d_k"), "scale": ()},
        variants={
            "": Variant(("W",)),
            "number": Variant(("W",), {"scale": 0.75}),
            "each": Variant(("W", "scale"), each=True),
        },
        sample={"W": None},
        layer={"W": lambda d_q, d_k, h: 2 / (d_q + d_k)},
        layer_numbers={"scale": lambda d_q, d_k, h: math.sqrt((1 / d_q + 1 / d_k) / 2)},
    ),
    "cosine": Row(
        anyscore.Cosine,
        "product",
        _cosine,
        _plain_cosine,
        fields={"tau": ()},
        variants={"": Variant(numbers={"tau": 0.375}), "tensor": Variant(("tau",))},
        sample={"tau": 0.5},
        layer={"tau": lambda d_q, d_k, h: d_k**-0.5},
        scaled=Scaled("tau", 1, unit=True),
    ),
    "trilinear": Row(
        anyscore.Trilinear,
        "product",
        lambda q, k, p: dot([*p["w_q"], *p["w_k"], *p["w_p"]], [*q, *k, *map(mul, q, k)]),
        _plain_trilinear,
        fields=dict.fromkeys(("w_q", "w_k", "w_p"), ("d_q",)),
        variants={
            "": Variant(("w_q", "w_k", "w_p")),
            "each": Variant(("w_q", "w_k", "w_p"), each=True),
        },
        sample={"w_q": None, "w_k": None, "w_p": None},
        layer=dict.fromkeys(("w_q", "w_k", "w_p"), lambda d_q, d_k, h: 1 / (3 * d_q)),
    ),
    "gaussian": Row(
        anyscore.Gaussian,
        "squared",
        lambda q, k, p: -_square(q, k) / (2 * p["sigma"] ** 2),
        lambda xp, q, k, p: -_squares(xp, q, k) / (2 * _each(p.sigma) ** 2),
        fields=_SIGMA,
        variants={
            "": Variant(numbers={"sigma": 2.25}),
            "each": Variant(("sigma",), each=True),
        },
        sample={"sigma": 1.7},
        layer={"sigma": lambda d_q, d_k, h: (2 * d_k) ** 0.25},
        scaled=Scaled("sigma", 2, -0.5),
    ),
    "laplace": Row(
        anyscore.Laplace,
        "absolute",
        lambda q, k, p: -total(abs(x - y) for x, y in zip(q, k, strict=True)) / p["sigma"],
        lambda xp, q, k, p: -xp.sum(xp.abs(_differences(q, k)), axis=-1) / _each(p.sigma),
        fields=_SIGMA,
        variants={"": Variant(numbers={"sigma": 3.5}), "tensor": Variant(("sigma",))},
        sample={"sigma": 1.3},
        layer={"sigma": lambda d_q, d_k, h: d_k**0.5},
        variance=0.727,
        scaled=Scaled("sigma", 1, -1.0),
    ),
    "euclidean": Row(
        anyscore.Euclidean,
        "squared",
        lambda q, k, p: -math.hypot(*(x - y for x, y in zip(q, k, strict=True))) / p["sigma"],
        lambda xp, q, k, p: -_root(xp, _squares(xp, q, k)) / _each(p.sigma),
        fields=_SIGMA,
        variants={
            "": Variant(numbers={"sigma": 1.25}),
            "each": Variant(("sigma",), each=True),
        },
        sample={"sigma": 1.3},
        layer={"sigma": lambda d_q, d_k, h: 1 - 1 / (8 * d_k)},  # approximate, for many widths
        scaled=Scaled("sigma", 2, outer=lambda p: ("sqrt", 1.0)),
        outer=True,
    ),
    "student_t": Row(
        anyscore.StudentT,
        "squared",
        lambda q, k, p: (
            -(p["nu"] + 1) / 2 * math.log1p(_square(q, k) / (p["nu"] * p["sigma"] ** 2))
        ),
        lambda xp, q, k, p: (
            -(p.nu + 1) / 2 * xp.log1p(_squares(xp, q, k) / (p.nu * _each(p.sigma) ** 2))
        ),
        fields=_SIGMA,
        variants={"": Variant(("sigma",), {"nu": 2.5})},
        sample={"sigma": 0.7},
        fixed={"nu": 1.5},
        layer={"sigma": lambda d_q, d_k, h: 1.0},
        layer_numbers={"nu": lambda d_q, d_k, h: math.sqrt(2 * d_k)},
        scaled=Scaled(
            "sigma",
            2,
            divisor=lambda p: p["nu"],
            outer=lambda p: ("log1p", (p["nu"] + 1) / 2),
        ),
        outer=True,
    ),
    "lorentz": Row(
        anyscore.Lorentz,
        "squared",
        _lorentz,
        _plain_lorentz,
        fields=_SIGMA,
        variants={"": Variant(("sigma",), {"scale": 1.5})},
        sample={"sigma": 1.2},
        fixed={"scale": 1.5},
        layer={"sigma": lambda d_q, d_k, h: 1.0},
        layer_numbers={"scale": lambda d_q, d_k, h: math.sqrt((d_k + 2) / 2)},
        variance=1.06,
        outer=True,
        of_both=True,
    ),
    "additive": Row(
        anyscore.Additive,
        "tanh",
        lambda q, k, p: dot(p["w_v"], [math.tanh(x) for x in _sum(q, k, p)]) * _scale(p),
        _plain_tanh,
        fields={**_HIDDEN, "bias": ("h",), "scale": ()},
        variants={
            "": Variant(("W_q", "W_k", "w_v")),
            "bias": Variant(("W_q", "W_k", "w_v", "bias")),
            "projected": Variant(("w_v",), _PROJECTED),
            "each": Variant(("W_q", "W_k", "w_v", "bias"), each=True),
        },
        sample={"W_q": None, "W_k": None, "w_v": None, "bias": None},
        layer=_PROJECTIONS | _LAYER_OF_TANH,
    ),
    "concat": Row(
        anyscore.Concat,
        "tanh",
        _concat,
        _plain_tanh,
        fields={"W": ("h", "d_q + d_k"), "w_v": ("h",), "bias": ("h",), "scale": ()},
        variants={"": Variant(("W", "w_v")), "bias": Variant(("W", "w_v", "bias"))},
        sample={"W": None, "w_v": None},
        layer={"W": _variance_of_hidden, **_LAYER_OF_TANH},
        of_both=True,
    ),
    "gatv2": Row(
        anyscore.GATv2,
        "leaky_relu",
        lambda q, k, p: dot(
            p["w_v"], [x if x >= 0 else p["negative_slope"] * x for x in _sum(q, k, p)]
        ),
        _plain_gatv2,
        fields={**_HIDDEN, "negative_slope": ()},
        variants={
            "": Variant(("W_q", "W_k", "w_v")),
            "projected": Variant(("w_v",), _PROJECTED),
        },
        sample={"W_q": None, "W_k": None, "w_v": None},
        layer=_PROJECTIONS | _LAYER_OF_RELU,
    ),
}
"""Rows of scores, by the names that layers use."""

PAIRS = "scaled_dot", "gaussian", "laplace", "additive", "gatv2"
"""One score of each pair, for tests that depend on the pair alone."""

CALLABLE = Row(
    SquaredProduct,
    "product",
    lambda q, k, p: dot(q, k) ** 2 / 20,
    lambda xp, q, k, p: _product(q, k) ** 2 / 20,
)

ROWS: dict[str, Row] = {row.kind.__name__: row for row in (*TABLE.values(), CALLABLE)}
"""Rows by class name, with the row of a callable."""

RANKS = {name: len(row.fields.get(name, ())) for row in ROWS.values() for name in row.names}
"""Ranks of parameters of one head; earlier axes are leading dimensions."""


def row_of(score: Any) -> Row:
    """Return the row of a score, or of its class.

    Raises KeyError: the score has no row.
    """
    name = (score if isinstance(score, type) else type(score)).__name__
    if name not in ROWS:
        raise KeyError(f"{name} has no row: add one to tests/helpers/table_scores.py.")
    return ROWS[name]
