"""The raw interface in plain NumPy, by the formulas of the contract, one head at a time.

    s_ij = scale · Σ_d weight_d · pair(a_id, b_jd) + key_bias_j      p = softmax over the kept j
    o_i  = Σ_j z_ij p_ij v_j,   z_ij = kept by dropout / (1 − rate)

`run(call, float64)` is the oracle of the tests, and `run(call, float32)` gives the error of plain
operations. Masked entries are replaced before use, so no masked entry is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

from anyscore.modifiers import dropout
from anyscore.ops import load
from core.call import Call, name_of, numbers, stored

Array = Any
Results = dict[str, np.ndarray]

VALUE: dict[str, Callable[[Array, Array], Array]] = {
    "product": lambda a, b: a * b,
    "tanh": lambda a, b: np.tanh(a + b),
    "leaky_relu": lambda a, b: np.where(a + b > 0, a + b, (a + b) * (a + b).dtype.type(0.2)),
    "absolute": lambda a, b: np.abs(a - b),
    "squared": lambda a, b: (a - b) ** 2,
}
SLOPES: dict[str, Callable[[Array, Array], tuple[Array, Array]]] = {
    "product": lambda a, b: (b, a),
    "tanh": lambda a, b: (1 - np.tanh(a + b) ** 2,) * 2,
    "leaky_relu": lambda a, b: (np.where(a + b > 0, 1, (a + b).dtype.type(0.2)),) * 2,
    "absolute": lambda a, b: (np.sign(a - b), np.sign(b - a)),
    "squared": lambda a, b: (2 * (a - b), 2 * (b - a)),
}
"""Derivatives by a and by b."""


def _distance(s: Array, c: Any, root: Array, slope: Array) -> tuple[Array, Array]:
    """Return value and slope of an outer function of s > 0; both are 0 elsewhere."""
    return np.where(s <= 0, 0, -c * root), np.where(s <= 0, 0, -c * slope)


OUTER: dict[str, Callable[[Array, Any], tuple[Array, Array]]] = {
    "tanh": lambda s, c: (c * np.tanh(s / c), 1 - np.tanh(s / c) ** 2),
    "sqrt": lambda s, c: _distance(s, c, np.sqrt(s), 1 / (2 * np.sqrt(s))),
    "log1p": lambda s, c: (-c * np.log1p(np.maximum(s, 0)), -c / (1 + np.maximum(s, 0))),
    "arcosh": lambda s, c: _distance(
        s, c, 2 * np.arcsinh(np.sqrt(s / 2)), 1 / (np.sqrt(s) * np.sqrt(s + 2))
    ),
}
"""Outer functions and their derivatives."""

OF_FLOATS = "a", "b", "weight", "key_bias", "value", "bias"
OF_KEY = "b", "key_bias", "value"
OWN_RANK = {"weight": 1, "key_bias": 1, "start": 1, "stop": 1, "d_lse": 1}
"""Number of axes after the leading dimensions, where it is not two."""


class Head(NamedTuple):
    """The operands of one head, their places in the arrays, and the values computed from them."""

    at: dict[str, tuple[int, ...]]
    a: np.ndarray  # (T_q, 1, h)
    b: np.ndarray  # (1, T_k, h)
    weight: np.ndarray  # (h,)
    value: np.ndarray  # (T_k, d_v)
    keep: np.ndarray  # (T_q, T_k)
    kept: np.ndarray  # (T_q, T_k), dropout's factors of the weights
    s: np.ndarray  # (T_q, T_k), −∞ where not kept
    slope: np.ndarray  # (T_q, T_k), derivative of the outer function
    p: np.ndarray  # (T_q, T_k)
    stats: np.ndarray  # (2, T_q)


@np.errstate(all="ignore")
def run(call: Call, dtype: Any, rounded: bool = False) -> Results:
    """Return all results by name: output, stats, lse, scores, weights, and d_x of each operand x.

    rounded: the output has the dtype of the values, and the backward uses the rounded output.
    """
    out = forward(call, dtype)
    if rounded:
        out["output"] = numbers(stored(out["output"], name_of(call.value)), dtype)
    return out | backward(call, dtype, out["output"] if rounded else None)


def forward(call: Call, dtype: Any) -> Results:
    queries, keys, d_v = call.queries, call.keys, call.value.shape[-1]
    output = np.zeros((*call.lead, queries, d_v), dtype)
    weights = np.zeros((*call.lead, queries, keys), dtype)
    scores = np.zeros((*call.lead, queries, keys), dtype)
    stats = np.zeros((*call.lead, 2, queries), dtype)
    for n, head in heads(call, dtype):
        output[n] = product(head.p * head.kept, head.value, head.keep)
        scores[n], weights[n], stats[n] = head.s, head.p, head.stats
    lse = stats.sum(-2)
    return {"output": output, "scores": scores, "weights": weights, "stats": stats, "lse": lse}


def backward(
    call: Call, dtype: Any, output: np.ndarray | None = None, absolute: bool = False
) -> Results:
    """Return gradients: d s_ij = p_ij (d p_ij − Σ_j p_ij d p_ij + d lse_i) + upstream d_scores_ij.

    output: Σ_j p_ij d p_ij is computed as d output · output, as in a kernel with one tile.
    absolute: sum |terms|, to which the rounding of a gradient is relative.
    """
    size: Callable[[Array], Array] = np.abs if absolute else np.asarray
    found = {
        f"d_{name}": np.zeros(getattr(call, name).shape, dtype)
        for name in OF_FLOATS
        if getattr(call, name) is not None
    }
    for n, head in heads(call, dtype):
        keep, p = head.keep, head.p
        d_output = size(numbers(call.d_output[n], dtype))
        every = np.ones_like(d_output, bool)
        d_p = product(d_output, size(head.value).T, every, keep) * head.kept
        held = np.where(keep, p * d_p, 0) if output is None else d_output * output[n]
        total = held.sum(-1) * (-1 if absolute else 1)
        d_lse = size(0 if call.d_lse is None else numbers(call.d_lse[n], dtype))
        d_scores = size(0 if call.d_scores is None else numbers(call.d_scores[n], dtype))
        d_s = np.where(keep, p * (d_p + (d_lse - total)[:, None]) + d_scores, 0)
        found["d_value"][head.at["value"]] += product((p * head.kept).T, d_output, keep.T)
        if call.bias is not None and call.after:
            add_to_bias(call, found["d_bias"][head.at["bias"]], d_s)
        if not absolute or call.outer != "tanh":  # 1 − tanh² rounds as 1 does
            d_s = np.where(keep, d_s * size(head.slope), 0)
        if call.bias is not None and not call.after:
            add_to_bias(call, found["d_bias"][head.at["bias"]], d_s)
        if call.key_bias is not None:
            found["d_key_bias"][head.at["key_bias"]] += d_s.sum(0)
        d_s = (d_s * size(dtype(call.scale)))[..., None]
        slopes = SLOPES[call.pair](head.a, head.b)
        if absolute and call.pair == "tanh":  # 4r(1 − r) rounds as 4r; small, it vanishes
            slope = 4 * np.exp(-2 * np.abs(head.a + head.b)) + 2.0**-83
            slopes = (np.minimum(2, slope / np.finfo(call.compute).eps),) * 2
        by_a, by_b = (size(head.weight * x) for x in slopes)
        found["d_a"][head.at["a"]] += clean(d_s * by_a, keep).sum(1)
        found["d_b"][head.at["b"]] += clean(d_s * by_b, keep).sum(0)
        if call.weight is not None:
            value = (SIZE if absolute else VALUE)[call.pair](head.a, head.b)
            found["d_weight"][head.at["weight"]] += clean(d_s * value, keep).sum((0, 1))
    return found


@np.errstate(all="ignore")
def heads(call: Call, dtype: Any) -> list[tuple[tuple[int, ...], Head]]:
    """Return (position in the leading dimensions, operands in `dtype`) of each head."""
    names = *OF_FLOATS, "start", "stop", "mask"
    given = {name: getattr(call, name) for name in names if getattr(call, name) is not None}
    dropped, found = kept_by_dropout(call), []
    for count, n in enumerate(np.ndindex(*call.lead)):
        at = {name: place(call, name, x, n) for name, x in given.items()}
        own = {name: numbers(x[at[name]], dtype) for name, x in given.items() if name in OF_FLOATS}
        keep = np.ones((call.queries, call.keys), bool)
        j = np.arange(call.keys)
        if call.start is not None:
            keep &= j >= call.start[at["start"]][:, None]
        if call.stop is not None:
            keep &= j < call.stop[at["stop"]][:, None]
        if call.mask is not None:
            keep &= call.mask[at["mask"]]
        a, b = own["a"][:, None], own["b"][None]
        weight = own.get("weight", np.ones(a.shape[-1], dtype))
        s = clean(VALUE[call.pair](a, b) * weight, keep).sum(-1) * dtype(call.scale)
        s = s + own.get("key_bias", dtype(0))
        bias = matrix(call, own["bias"]) if "bias" in own else dtype(0)
        s, slope = s if call.after else s + bias, np.ones_like(s)
        if call.outer:
            s, slope = OUTER[call.outer](s, dtype(call.outer_scale))
        s = np.where(keep, s + bias if call.after else s, -np.inf)
        p, stats = softmax(s, keep)
        kept = dropped[count % call.repeats] / dtype(1 - call.dropout)
        kept = kept.astype(dtype)
        found.append((n, Head(at, a, b, weight, own["value"], keep, kept, s, slope, p, stats)))
    return found


def diagonals(call: Call) -> np.ndarray:
    """Return the index (T_q, T_k) into a bias by diagonals."""
    return np.arange(call.keys) - np.arange(call.queries)[:, None] + call.queries - 1


def matrix(call: Call, bias: np.ndarray) -> np.ndarray:
    """Return the bias of one head as (T_q, T_k)."""
    return bias[0][diagonals(call)] if call.diagonal else bias


def add_to_bias(call: Call, to: np.ndarray, d_s: np.ndarray) -> None:
    if call.diagonal:
        np.add.at(to[0], diagonals(call), d_s)
    else:
        to += d_s


def place(call: Call, name: str, x: np.ndarray, n: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index into the array `name` for the output at n."""
    if name in OF_KEY and n:
        n = (*n[:-1], n[-1] // call.groups)
    lead = x.shape[: x.ndim - OWN_RANK.get(name, 2)]
    return tuple(0 if size == 1 else i for size, i in zip(lead, n, strict=True))


def softmax(s: np.ndarray, keep: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return weights, and (largest score, log of the sum relative to it) (2, T_q).

    A query without keys, or with scores of −∞ only, gives 0, −∞ and 0; a score of NaN or +∞ gives
    NaN.
    """
    top = s.max(-1, keepdims=True, initial=-np.inf)
    top = np.where(top == -np.inf, 0, top)
    e = np.where(keep, np.exp(s - top), 0)
    total = e.sum(-1, keepdims=True)
    empty = total == 0
    total = np.where(empty, 1, total)
    most = np.where(empty, -np.inf, top + 0 * total)
    return np.where(keep, e / total, 0), np.concatenate([most, np.log(total)], -1).T


def kept_by_dropout(call: Call) -> np.ndarray:
    """Return which weights dropout keeps, boolean (period, T_q, T_k)."""
    period = call.repeats
    if not call.dropout:
        return np.ones((period, call.queries, call.keys), bool)
    xp = load("numpy")
    seed = xp.seed(call.seed, call.a)
    drawn = dropout.dropout_mask(xp, seed, call.dropout, (period,), call.queries, call.keys)
    return cast(np.ndarray, drawn)


def clean(terms: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """Return terms (T_q, T_k, h) with 0 where masked."""
    return np.where(keep[..., None], terms, 0)


def product(
    x: np.ndarray, y: np.ndarray, keep: np.ndarray, wanted: np.ndarray | None = None
) -> np.ndarray:
    """Return Σ_j x_ij y_jc over the kept j, and 0 outside the `wanted` entries."""
    if np.isfinite(x).all() and np.isfinite(y).all():
        out = np.where(keep, x, 0) @ y
    else:
        out = np.where(keep[..., None], x[..., None] * y, 0).sum(1)
    return out if wanted is None else np.where(wanted, out, 0)


@np.errstate(all="ignore")
def sizes(call: Call) -> dict[str, float]:
    """Return the largest sum of |terms| of a score and of each gradient, by name.

    The rounding of a result is relative to this sum, beside its own size.
    """
    gradients = backward(call, np.float64, absolute=True)
    found = {name: float(x[np.isfinite(x)].max(initial=0.0)) for name, x in gradients.items()}
    return found | {"score": terms(call)}


def terms(call: Call) -> float:
    """Return the largest sum of |terms| of an attended score, to which its rounding is relative.

    An outer function multiplies this sum by its slope and adds the rounding of its value.
    """
    largest = 0.0
    for _, head in heads(call, np.float64):
        sizes = np.abs(head.weight) * SIZE[call.pair](head.a, head.b)
        sums = abs(call.scale) * clean(sizes, head.keep).sum(-1)
        if call.outer not in ("", "tanh"):
            sums = np.where(head.keep, sums * np.abs(head.slope) + np.abs(head.s), 0)
        largest = max(largest, float(sums[np.isfinite(sums)].max(initial=0.0)))
    for x in (call.key_bias, call.bias):
        if x is None:
            continue
        bias = numbers(x)
        largest += float(np.abs(bias[np.isfinite(bias)]).max(initial=0.0))
    return largest


SIZE: dict[str, Callable[[Array, Array], Array]] = {
    "product": lambda a, b: np.abs(a * b),
    "tanh": lambda a, b: np.minimum(np.abs(a) + np.abs(b), 1),
    "leaky_relu": lambda a, b: np.abs(a) + np.abs(b),
    "absolute": lambda a, b: np.abs(a - b),
    "squared": lambda a, b: (a - b) ** 2,
}
