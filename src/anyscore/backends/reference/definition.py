"""The definition: from factors, mask and value to output, statistics and scores.

    weights = softmax over the attended keys of s(q, k)        output = weights · value

The definition computes in float32 or better, holds all scores at once, and has derivatives of every
order that the framework supports. Scores are masked, and products too. Masked entries are therefore
never read, and no NaN in them reaches an output or a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from anyscore.masks.context import MaskContext
from anyscore.masks.objects import Mask
from anyscore.modifiers.normalizers import Normalizer, softmax, softmax_or_sigmoid
from anyscore.ops import DTYPES, Array, Ops, accumulated
from anyscore.score.factors import Factors
from anyscore.score.outer import Outer
from anyscore.score.pairs import PRODUCT


def attend(
    xp: Ops,
    score: Factors | Array,
    value: Array | None,
    mask: Array | None = None,
    *,
    per_query: bool = True,
    softcap: float = 0.0,
    biases: Sequence[tuple[Array, bool]] = (),
    normalizer: Normalizer = "softmax",
    dropout_mask: Array | None = None,
    p: float = 0.0,
) -> tuple[Array | None, Array, Array]:
    """Return output (..., T_q, d_v), statistics (..., 2, T_q) and scores (..., T_q, T_k).

    Masked scores are −∞. All results are in float32 or better. A query bias cancels in the softmax;
    the caller adds it to statistics and scores. Under an outer function, for example a cap, it does
    not cancel, and all three results include it.

    score: factors, or the scores. value: None for no output. mask: boolean, True = may attend.
    per_query: whether queries may attend different keys; if not, the caller has zeroed the rows of
    masked keys. softcap, biases: see `scores`. normalizer: the softmax or a sigmoid, with the
    statistics of its function in `normalizers`. dropout_mask: boolean, True = kept, at dropout rate
    p.
    """
    s = scores(xp, score, mask, per_query, softcap, biases)
    s = s if mask is None else xp.where(mask, s, -math.inf)
    weights, stats = softmax_or_sigmoid(xp, normalizer, s, mask)
    if value is None:
        return None, stats, s
    return weigh(xp, weights, value, mask if per_query else None, dropout_mask, p), stats, s


def weigh(
    xp: Ops, weights: Array, value: Array, mask: Array | None, dropout_mask: Array | None, p: float
) -> Array:
    """Return the output (..., T_q, d_v): values weighted by the weights after dropout.

    mask: None if no masked value can be NaN or infinite.
    """
    if dropout_mask is not None:
        weights = xp.where(dropout_mask, weights, 0.0) / (1 - p)
    return _product(xp, weights, value, mask, xp.masked_sum)


def scores(
    xp: Ops,
    score: Factors | Array,
    mask: Array | None,
    per_query: bool,
    softcap: float,
    biases: Sequence[tuple[Array, bool]] = (),
) -> Array:
    """Return the scores s (..., T_q, T_k) without the query bias; masked entries are arbitrary.

    With softcap c > 0 the result is c · tanh(s / c). An outer function is applied to scores with
    the query bias, which then does not cancel in the softmax. biases: pairs of a bias (..., T_q,
    T_k) and whether it is added after the cap and the outer function. Source: Gemma Team 2024
    (Gemma 2), section 2, logit
    soft-capping.
    """
    s, bias, outers = score, None, [Outer("tanh", softcap)] if softcap else []
    if isinstance(score, Factors):
        s, bias = _scores(xp, score, mask if per_query else None), score.query_bias
        outers = outers if score.outer is None else [score.outer, *outers]
    for one, after in biases:
        s = s if after else s + one
    if not outers:
        return _add_late_biases(s, biases)
    s = s if bias is None else s + bias[..., None]
    if mask is not None:  # masked here too: a masked NaN must have no gradient
        s = xp.where(mask, s, 0.0)
    for outer in outers:
        s = outer.value(xp, s)
    return _add_late_biases(s, biases)


def _add_late_biases(s: Array, biases: Sequence[tuple[Array, bool]]) -> Array:
    """Return s plus the biases that are added last."""
    for one, after in biases:
        s = s + one if after else s
    return s


def _scores(xp: Ops, f: Factors, mask: Array | None) -> Array:
    """Return s (..., T_q, T_k) without the query bias; masked entries are arbitrary."""
    if f.pair == PRODUCT:
        a = f.a
        if f.weight is not None:
            if mask is not None:  # heads that share a query may differ in reading it
                a = xp.where(xp.any(mask, axis=-1)[..., None], a, 0.0)
            a = a * f.weight[..., None, :]
        s = _product(xp, a, f.b, mask, xp.masked_scores)
    else:
        a, b = f.a[..., :, None, :], f.b[..., None, :, :]
        if mask is not None:
            a, b = xp.where(mask[..., None], a, 0.0), xp.where(mask[..., None], b, 0.0)
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
    """Return the softmax of x (..., T_q, T_k) over the attended entries of the last axis.

    The softmax is computed in float32 or better and returned in the dtype of x. A row without
    attended entries is 0.

    Raises:
        TypeError, ValueError: x is not such a tensor, or the mask does not fit.
    """
    if problem := xp.layout_problem(x):
        raise TypeError(f"X is {problem}.")
    if xp.dtype(x) not in DTYPES or len(xp.shape(x)) < 2:
        raise (TypeError if xp.dtype(x) not in DTYPES else ValueError)(
            f"X is {xp.dtype(x)} of shape {xp.shape(x)}, expected scores (..., queries, keys) in "
            f"one of {', '.join(DTYPES)}."
        )
    *lead, queries, keys = xp.shape(x)
    context = MaskContext(xp, x, tuple(lead), queries, keys)
    attended = None if mask is None else mask.lower(context).boolean
    s = accumulated(xp, x)
    s = s if attended is None else xp.where(attended, s, -math.inf)
    weights, _ = softmax(xp, s, attended)
    return xp.astype(weights, xp.dtype(x))


def _product(
    xp: Ops, x: Array, y: Array, mask: Array | None, masked: Callable[[Array, Array, Array], Array]
) -> Array:
    """Return `masked` of x (..., G, T, n) and y, a product that reads attended entries only.

    If G groups share y (..., 1, T_k, m), their rows are concatenated, and y is not repeated in
    memory.
    """
    shape, other = xp.shape(x), xp.shape(y)
    if len(shape) > 2 and len(other) > 2 and other[-3] == 1 < shape[-3]:
        *lead, groups, rows, _ = shape
        if mask is not None:
            *outer, _, _, keys = xp.shape(mask) if len(xp.shape(mask)) > 2 else (1, *xp.shape(mask))
            mask = xp.broadcast_to(mask, (*outer, groups, rows, keys))
            mask = xp.reshape(mask, (*outer, groups * rows, keys))
        flat = xp.reshape(x, (*lead, groups * rows, shape[-1]))
        out = _product(xp, flat, y[..., 0, :, :], mask, masked)
        return xp.reshape(out, (*xp.shape(out)[:-2], groups, rows, xp.shape(out)[-1]))
    if mask is not None:
        return masked(x, y, mask)
    return xp.matmul(x, xp.transpose(y) if masked == xp.masked_scores else y)
