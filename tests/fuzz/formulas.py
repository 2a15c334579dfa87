"""Scores and derivatives of one head, from the formulas in the papers.

    s_ij = scale · Σ_d weight_d · pair(a_id, b_jd) + query_bias_i + key_bias_j

A score with an outer function φ, or with a cap, is φ(s_ij) (`outers`).

`form` computes the terms of s from queries (T_q, d_q), keys (T_k, d_k) and parameters. `slopes`
takes derivatives back to queries, keys and parameters. Both compute with `Number`s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuzz.outers import slope_of_distance, slope_of_tanh
from fuzz.rounding import Number, Operand, mix, project, roundings, unit
from helpers.table_scores import ROWS

Parameters = dict[str, Any]
"""Fields of the score by name: a Number of one head, a plain number, or None."""

BY_HAND = (
    "Dot", "ScaledDot", "Bilinear", "Trilinear", "Lorentz", "Additive", "Concat", "GATv2",
)  # fmt: skip
"""Scores with forms and derivatives below; `Scaled` in their rows gives the others'."""
KINDS = tuple(name for name, row in ROWS.items() if name in BY_HAND or row.scaled)
"""Scores that the fuzz draws."""


@dataclass(frozen=True)
class Form:
    """The terms of a score.

    tanh: largest error of the used tanh, in roundings of tanh. apart: whether b lie so far apart
    that tanh(a + b) may be computed from e^(2a) and e^(2b). Its error is then ½ (1 − tanh²) 3ε, see
    docs/numerics.md. outer: (name of φ, number c).
    """

    a: Number
    b: Number
    pair: str
    weight: Number | None = None
    scale: Operand = 1.0
    query_bias: Number | None = None
    key_bias: Number | None = None
    tanh: float = 1.0
    apart: bool = True
    outer: tuple[str, float] | None = None


def pairs(f: Form) -> Number:
    """Return pair(a_id, b_jd), (T_q, T_k, h)."""
    a, b = f.a[:, None], f.b[None]
    if f.pair == "product":
        return a * b
    if f.pair == "squared":
        return (a - b) * (a - b)
    if f.pair == "absolute":
        return a.like(abs((a - b).x), (a - b).e)
    x = a + b
    if f.pair == "leaky_relu":
        slope = np.where(x.x > 0, 1.0, 0.2)
        return x.rounded(slope * x.x, slope * x.e)
    t, one = np.tanh(x.x), slope_of_tanh(x.x)
    own = f.tanh * np.abs(t) + one * (_sizes(a, b) + 1.5 * f.apart)
    return x.like(t, one * x.e + x.eps * own)


def pair_slopes(f: Form) -> tuple[Number, Number]:
    """Return ∂pair/∂a and ∂pair/∂b, each broadcastable to (T_q, T_k, h)."""
    a, b = f.a[:, None], f.b[None]
    if f.pair == "product":
        return b, a
    if f.pair in ("squared", "absolute"):
        x = a - b
        doubtful = 2.0 * (np.abs(x.x) < x.e)  # rounding decides the sign here
        x = 2 * x if f.pair == "squared" else x.like(np.sign(x.x), doubtful)
        return x, -1 * x
    x = a + b
    if f.pair == "leaky_relu":
        slope = x.like(np.where(x.x > 0, 1.0, 0.2), 0.8 * (np.abs(x.x) < x.e))
    else:
        one = slope_of_tanh(x.x)
        off = 2 * np.abs(np.tanh(x.x)) * one * (x.e + x.eps * _sizes(a, b))
        slope = x.like(one, off + 4 * x.eps * one + np.minimum(4 * f.tanh * x.eps, one))
    return slope, slope


def _sizes(a: Number, b: Number) -> np.ndarray:
    return np.abs(a.x) + np.abs(b.x)


PARTS = {"squared": 12.0, "absolute": 16.0, "leaky_relu": 32.0}
"""Pairs that the core may split into a part of the query, one of the key and a joint one.

The number bounds the excess of the parts over a score, see docs/numerics.md.
"""


def sums(f: Form, pairs: Number) -> Number:
    """Return Σ_d weight_d · pair_d, (T_q, T_k)."""
    total = (pairs if f.weight is None else pairs * f.weight).features()
    return total.worse(_roundings_of_parts(f, total)) if f.pair in PARTS else total


def _roundings_of_parts(f: Form, total: Number) -> np.ndarray:
    """Return the errors of sums of split pairs, which round at the size of their parts."""
    a, b = f.a.x, f.b.x
    of_query, of_key = (np.square(x) if f.pair == "squared" else np.abs(x) for x in (a, b))
    weight = np.ones(1) if f.weight is None else np.abs(f.weight.x)
    size = (of_query * weight).sum(-1)[:, None] + (of_key * weight).sum(-1)
    scale = np.abs(f.scale.x if isinstance(f.scale, Number) else f.scale)
    with np.errstate(divide="ignore"):
        slope = scale
        if f.outer is not None:
            slope = scale * f.outer[1] * slope_of_distance(f.outer[0], scale * np.abs(total.x))
        most = np.abs(total.x) + PARTS[f.pair] / slope
    return total.eps * roundings(a.shape[-1]) * np.minimum(size, most)


def scores(f: Form, sums: Number) -> Number:
    s = sums * f.scale
    if f.query_bias is not None:
        s = s + f.query_bias[:, None]
    return s if f.key_bias is None else s + f.key_bias[None]


def form(kind: str, p: Parameters, q: Number, k: Number) -> Form:
    row, one = ROWS[kind], q.like(1.0)
    pair = row.pair
    if row.scaled is not None:
        below = one * row.scaled.divisor(p)
        for _ in range(row.scaled.power):
            below = below * p[row.scaled.of]
        scale = row.scaled.factor * _over(one, below)
        outer = row.scaled.outer(p) if row.scaled.outer else None
        a, b = (unit(x)[0].stored() if row.scaled.unit else x for x in (q, k))
        return Form(a, b, pair, scale=scale, outer=outer)
    if kind in ("Additive", "GATv2"):
        a, b = _projected(q, p["W_q"]), _projected(k, p["W_k"])
        return Form(_with(a, p.get("bias")), b, pair, p["w_v"])
    if kind == "Concat":
        W_q, W_k = p["W"][:, : q.x.shape[1]], p["W"][:, q.x.shape[1] :]
        return Form(_with(_projected(q, W_q), p["bias"]), _projected(k, W_k), pair, p["w_v"])
    if kind == "Trilinear":
        of_query, of_key = project(q, p["w_q"][:, None]), project(k, p["w_k"][:, None])
        biases = of_query[:, 0].stored(), of_key[:, 0].stored()
        return Form((q * p["w_p"]).stored(), k, pair, None, 1.0, *biases)
    if kind == "Lorentz":
        signs = q.like(np.append(np.ones(q.x.shape[1]), -1.0))
        a, b = lifted(q, p["sigma"]), lifted(k, p["sigma"])
        return Form(a, b, pair, signs, 0.5, outer=("arcosh", p["scale"]))
    a = project(q, p["W"]).stored() if kind == "Bilinear" else q
    scale = p.get("scale")
    if scale is None:
        scale = 1 / math.sqrt(max(q.x.shape[1], 1)) if kind == "ScaledDot" else 1.0
    return Form(a, k, pair, scale=one * scale)


def slopes(
    kind: str, p: Parameters, q: Number, k: Number, f: Form, d_s: Number, d_query_bias: Number
) -> dict[str, Number]:
    """Return derivatives by name, from d_s (T_q, T_k) by the scores before the cap.

    d_query_bias (T_q,) is Σ_j d_s_ij. Without a cap the softmax cancels this sum, except the
    derivative by the log-sum-exp.
    """
    values, (by_a, by_b) = pairs(f), pair_slopes(f)
    d_sums = d_s * f.scale
    each = d_sums[:, :, None]
    d_a, d_b = (each * by_a).tokens(1), (each * by_b).tokens(0)
    d_weight = (each * values).tokens(0).tokens(0)
    if f.weight is not None:
        d_a, d_b = d_a * f.weight, d_b * f.weight
    if kind == "Lorentz":
        (d_q, by_q), (d_k, by_k) = _lowered(f.a, p["sigma"], d_a), _lowered(f.b, p["sigma"], d_b)
        # Prepared keys convert σ on their own, so that its two derivatives have the dtype of σ.
        return {"query": d_q, "key": d_k, "sigma": by_q.stored() + by_k.stored()}
    d_a, d_b, d_weight = d_a.stored(), d_b.stored(), d_weight.stored()
    d_scale = (d_s * sums(f, values)).tokens(0).tokens(0)
    if kind in ("Additive", "GATv2", "Concat"):
        W_q, W_k = p.get("W_q"), p.get("W_k")
        if kind == "Concat":
            W_q, W_k = p["W"][:, : q.x.shape[1]], p["W"][:, q.x.shape[1] :]
        d_q, d_W_q = _unprojected(q, W_q, d_a)
        d_k, d_W_k = _unprojected(k, W_k, d_b)
        out = {"query": d_q, "key": d_k, "W_q": d_W_q, "W_k": d_W_k, "w_v": d_weight}
        if kind == "Concat":
            both = d_W_q, d_W_k
            x, e = (np.concatenate([getattr(d, name) for d in both], 1) for name in "xe")
            out["W"] = q.like(x, e)
        return out | {"bias": d_a.tokens(0)}
    if kind == "Trilinear":
        d_query_bias, d_key_bias = d_query_bias.stored(), d_s.tokens(0).stored()
        of_query, of_key = (d_query_bias[:, None] * q).stored(), (d_key_bias[:, None] * k).stored()
        return {
            "query": (d_a * p["w_p"]).stored() + (d_query_bias[:, None] * p["w_q"]).stored(),
            "key": d_b + (d_key_bias[:, None] * p["w_k"]).stored(),
            "w_q": of_query.tokens(0),
            "w_k": of_key.tokens(0),
            "w_p": (d_a * q).stored().tokens(0),
        }
    if kind == "Bilinear":
        d_q, d_W = project(d_a, p["W"].T), mix(q.T, d_a)
        return {"query": d_q, "key": d_b, "W": d_W, "scale": d_scale}
    scaled = ROWS[kind].scaled
    if scaled is not None:  # ∂(c / xⁿ)/∂x = −n / x · c / xⁿ
        if scaled.unit:
            d_a, d_b = _of_unit(q, d_a), _of_unit(k, d_b)
        d_x = d_scale * f.scale * _over(q.like(-float(scaled.power)), p[scaled.of])
        return {"query": d_a, "key": d_b, scaled.of: d_x}
    return {"query": d_a, "key": d_b, "scale": d_scale}


def lifted(x: Number, sigma: Operand) -> Number:
    """Return (y, √(1 + ‖y‖²)) of each row, with y = x/σ."""
    y = _over(x, sigma)
    squared = (y * y).features() + 1.0
    root = np.sqrt(squared.x)
    root = squared.rounded(root, squared.e / root / 2)
    x_e = (np.concatenate([getattr(y, n), getattr(root, n)[:, None]], 1) for n in "xe")
    return x.like(*x_e)


def _lowered(a: Number, sigma: Operand, d: Number) -> tuple[Number, Number]:
    """Return the derivatives by x and σ of a = lifted(x, σ), from d by a."""
    y, root = a[:, :-1], a[:, -1:]
    d_y = d[:, :-1] + d[:, -1:] * _over(y, root)
    return _over(d_y, sigma), -1 * _over((d_y * y).features().tokens(0), sigma)


def _projected(x: Number, W: Number | None) -> Number:
    return x if W is None else project(x, W.T).stored()


def _unprojected(x: Number, W: Number | None, d: Number) -> tuple[Number, Number | None]:
    """Return the derivatives of a projection by x and W, from d."""
    if W is None:
        return d, None
    return project(d, W), mix(d.T, x)


def _with(a: Number, bias: Number | None) -> Number:
    return a if bias is None else (a + bias).stored()


def _over(x: Number, y: Operand) -> Number:
    y = y if isinstance(y, Number) else x.like(y)
    return x.rounded(x.x / y.x, (x.e + abs(x.x / y.x) * y.e) / abs(y.x))


def _of_unit(x: Number, d: Number) -> Number:
    """Return the derivative by x, from d by x/‖x‖."""
    u, inverse = unit(x)
    along = (d * u).features()
    return (d - u * along[:, None]) * inverse
