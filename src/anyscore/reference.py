"""The definition: factors, mask and value to output, weights and log-sum-exp, in plain operations.

    weights = softmax over the attended keys of s(q, k)        output = weights · value

It computes in float32 or better, holds all scores at once, and can be differentiated as often as
the framework can. Masked entries are masked twice, as scores and as products: what is masked is
never read, so no NaN in it reaches an output or a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from anyscore.factors import PRODUCT, Factors
from anyscore.intervals import Call
from anyscore.masks import Mask
from anyscore.ops import DTYPES, Array, Ops, accumulation


def attend(
    xp: Ops,
    score: Factors | Array,
    value: Array,
    keep: Array | None = None,
    mixed: bool = True,
    kept: Array | None = None,
    p: float = 0.0,
) -> tuple[Array, Array, Array]:
    """Output (..., T_q, d_v), weights (..., T_q, T_k) before dropout, log-sum-exp (..., T_q).

    score: factors, or the scores themselves. keep: boolean, True = may attend. mixed: whether some
    key may be attended by one query and not by another; if not, the caller has zeroed what nobody
    attends. kept: boolean, what dropout at rate p keeps. All in float32 or better.
    """
    bias = score.query_bias if isinstance(score, Factors) else None
    if bias is not None and keep is not None:
        bias = xp.where(xp.any(keep, axis=-1), bias, 0.0)
    read = keep if mixed else None
    s = scores(xp, score, read) if isinstance(score, Factors) else score
    weights, lse = softmax(xp, s, keep)
    dropped = weights if kept is None else xp.where(kept, weights, 0.0) / (1 - p)
    output = _product(xp, dropped, value, read, xp.masked_sum)
    if bias is not None:  # it cancels in the softmax; its gradient through the output is 0
        output, lse = output + 0 * bias[..., None], lse + bias
    return output, weights, lse


def scores(xp: Ops, f: Factors, keep: Array | None) -> Array:
    """s (..., T_q, T_k) without the query bias; meaningless where not kept."""
    if f.pair == PRODUCT:
        a = f.a
        if f.weight is not None:
            if keep is not None:  # heads may share a query that some of them read and some do not
                a = xp.where(xp.any(keep, axis=-1)[..., None], a, 0.0)
            a = a * f.weight[..., None, :]
        s = _product(xp, a, f.b, keep, xp.masked_scores)
    else:
        a, b = f.a[..., :, None, :], f.b[..., None, :, :]
        if keep is not None:
            a, b = xp.where(keep[..., None], a, 0.0), xp.where(keep[..., None], b, 0.0)
        terms = f.pair.value(xp, a, b)
        if f.weight is None:
            s = xp.sum(terms, axis=-1)
        else:
            column = f.weight[..., None]  # (..., h, 1), leading dimensions moved past T_q
            column = column if len(xp.shape(column)) == 2 else column[..., None, :, :]
            s = xp.matmul(terms, column)[..., 0]
    s = s * f.scale
    return s if f.key_bias is None else s + f.key_bias[..., None, :]


def masked_softmax(xp: Ops, x: Array, mask: Mask | None) -> Array:
    """Softmax over the last axis of x (..., T_q, T_k), of the attended entries alone.

    Computed in float32 or better and given in the dtype of x; a row without entries gives 0.

    Raises TypeError and ValueError: x is not such a tensor, or the mask does not fit it.
    """
    if problem := xp.layout_problem(x):
        raise TypeError(f"X is {problem}.")
    if xp.dtype(x) not in DTYPES or len(xp.shape(x)) < 2:
        raise (TypeError if xp.dtype(x) not in DTYPES else ValueError)(
            f"X is {xp.dtype(x)} of shape {xp.shape(x)}, expected scores (..., queries, keys) in "
            f"one of {', '.join(DTYPES)}."
        )
    *lead, queries, keys = xp.shape(x)
    keep = mask and mask.lower(Call(xp, x, tuple(lead), queries, keys)).boolean(xp, keys)
    weights, _ = softmax(xp, accumulated(xp, x), keep)
    return xp.astype(weights, xp.dtype(x))


def accumulated(xp: Ops, x: Array) -> Array:
    """`x` in the dtype that sums are taken in."""
    return xp.astype(x, accumulation(xp.dtype(x)))


def softmax(xp: Ops, s: Array, keep: Array | None) -> tuple[Array, Array]:
    """Weights over the last axis and their log-sum-exp; a row that keeps nothing gives 0 and −∞."""
    if keep is not None:
        s = xp.where(keep, s, -math.inf)
    if xp.shape(s)[-1]:
        top = xp.stop_gradient(xp.max(s, axis=-1, keepdims=True))
        top = xp.where(top == -math.inf, 0.0, top)
    else:
        top = xp.sum(s, axis=-1, keepdims=True)
    e = xp.exp(s - top)
    if keep is not None:
        e = xp.where(keep, e, 0.0)
    total = xp.sum(e, axis=-1, keepdims=True)
    empty = total == 0
    total = xp.where(empty, 1.0, total)
    lse = xp.where(empty, -math.inf, top + xp.log(total))
    return e / total, lse[..., 0]


def _product(
    xp: Ops, x: Array, y: Array, keep: Array | None, masked: Callable[[Array, Array, Array], Array]
) -> Array:
    """The product of rows x (..., G, T, n) with y, read where kept, by `masked` of the two kinds.

    A y (..., 1, T_k, m) that G groups share is not repeated in memory: their rows are laid end to
    end instead.
    """
    shape, other = xp.shape(x), xp.shape(y)
    if len(shape) > 2 and len(other) > 2 and other[-3] == 1 < shape[-3]:
        *lead, groups, rows, _ = shape
        if keep is not None:
            *outer, _, _, keys = xp.shape(keep) if len(xp.shape(keep)) > 2 else (1, *xp.shape(keep))
            keep = xp.broadcast_to(keep, (*outer, groups, rows, keys))
            keep = xp.reshape(keep, (*outer, groups * rows, keys))
        flat = xp.reshape(x, (*lead, groups * rows, shape[-1]))
        out = _product(xp, flat, y[..., 0, :, :], keep, masked)
        return xp.reshape(out, (*xp.shape(out)[:-2], groups, rows, xp.shape(out)[-1]))
    if keep is not None:
        return masked(x, y, keep)
    return xp.matmul(x, xp.transpose(y) if masked == xp.masked_scores else y)
