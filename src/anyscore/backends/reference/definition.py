"""The definition: factors, mask and value to output, weights and statistics, in plain operations.

    weights = softmax over the attended keys of s(q, k)        output = weights · value

It computes in float32 or better, holds all scores at once, and can be differentiated as often as
the framework can. Masked entries are masked twice, as scores and as products: what is masked is
never read, so no NaN in it reaches an output or a gradient.
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
    """Output (..., T_q, d_v), statistics (..., 2, T_q), scores (..., T_q, T_k), −∞ where masked.

    score: factors, or the scores themselves. value: None for no output. mask: boolean, True = may
    attend. per_query: whether some key may be attended by one query and not by another; if not, the
    caller has zeroed what nobody attends. softcap, biases: see `scores`. normalizer: the softmax or
    a sigmoid, whose functions in `normalizers` say what statistics are. dropout_mask: boolean, what
    is kept at dropout rate p. All in float32 or better. A query bias cancels in the softmax, so the
    caller adds it to the statistics and the scores; under an outer function, a cap for one, it does
    not cancel, and is in all three.
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
    """Output (..., T_q, d_v): the values weighed by what dropout keeps of the weights.

    mask: None where no value that is not attended can be NaN or infinite.
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
    """The scores s (..., T_q, T_k) without the query bias; meaningless where not attended.

    With softcap c > 0 they are c · tanh(s / c). An outer function takes them with their query bias,
    which then does not cancel in the softmax. biases: (…, T_q, T_k), and whether each is added
    after all that, else before. Source: Gemma Team 2024 (Gemma 2), section 2, logit
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
    if mask is not None:  # masked here too, lest a NaN that is not attended have a gradient
        s = xp.where(mask, s, 0.0)
    for outer in outers:
        s = outer.value(xp, s)
    return _add_late_biases(s, biases)


def _add_late_biases(s: Array, biases: Sequence[tuple[Array, bool]]) -> Array:
    """s and the biases that come last."""
    for one, after in biases:
        s = s + one if after else s
    return s


def _scores(xp: Ops, f: Factors, mask: Array | None) -> Array:
    """s (..., T_q, T_k) without the query bias; meaningless where not attended."""
    if f.pair == PRODUCT:
        a = f.a
        if f.weight is not None:
            if mask is not None:  # heads may share a query that some of them read and some do not
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
    context = MaskContext(xp, x, tuple(lead), queries, keys)
    attended = None if mask is None else mask.lower(context).boolean
    s = accumulated(xp, x)
    s = s if attended is None else xp.where(attended, s, -math.inf)
    weights, _ = softmax(xp, s, attended)
    return xp.astype(weights, xp.dtype(x))


def _product(
    xp: Ops, x: Array, y: Array, mask: Array | None, masked: Callable[[Array, Array, Array], Array]
) -> Array:
    """The product of rows x (..., G, T, n) with y, read where attended, by one of the two `masked`.

    A y (..., 1, T_k, m) that G groups share is not repeated in memory: their rows are laid end to
    end instead.
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
