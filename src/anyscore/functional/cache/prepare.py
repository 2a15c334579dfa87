"""Keys prepared once for many calls: a decoder that attends to one sequence step by step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from anyscore import backends
from anyscore.call.autocast import autocast
from anyscore.call.lowering import lower_mask
from anyscore.call.prepared import PreparedKeys
from anyscore.kernels import cpu
from anyscore.masks.lowered import zero_unread
from anyscore.masks.objects import parts
from anyscore.ops import Array, Ops
from anyscore.ops.checks import brief, check_devices, check_tensors, find_framework
from anyscore.score import ScaledDot
from anyscore.score.base import Score
from anyscore.score.checks import (
    KEY_PARAMETERS,
    check_fields,
    check_score,
    factors_of,
    parameters_of,
)

__all__ = ["PreparedKeys", "prepare_keys"]


def prepare_keys(
    key: Array,
    score: Score = ScaledDot(),  # noqa: B008 (frozen)
    *,
    mask: Any = None,
    valid_lens: Any = None,
) -> PreparedKeys:
    """Prepare keys once for many calls: their projections, biases and packed exponentials.

    Pass the result as `key` to `attention` with the same score; each call takes its own masks and
    values. Prepared keys are a snapshot: later changes of the key in place, as in a preallocated
    buffer, do not reach them. Prepare again after such a change, and after an update of the
    parameters. Gradients reach the key and the parameters.

    Args:
        key: (..., T_k, d_k).
        score: a score object, by default `ScaledDot()`. A callable is refused: it has nothing to
            prepare.
        mask: keys that no query of any call may attend, so that their rows are not read here
            either. Needed only if padding is not finite. `Lengths`, `Interval` or `Keys`; by
            default None.
        valid_lens: the argument of `Lengths`; intersected with `mask`. By default None.

    Returns:
        `PreparedKeys`.

    Raises:
        TypeError, ValueError: An argument is wrong. The error comes before any work.

    >>> import numpy as np
    >>> from anyscore import Additive, attention, prepare_keys
    >>> rng = np.random.default_rng(0)
    >>> score = Additive(rng.normal(size=(8, 4)), rng.normal(size=(8, 6)), rng.normal(size=8))
    >>> keys, values = rng.normal(size=(2, 10, 6)), rng.normal(size=(2, 10, 3))
    >>> prepared = prepare_keys(keys, score)
    >>> for step in range(3):
    ...     query = rng.normal(size=(2, 1, 4))
    ...     output = attention(query, prepared, values, score=score, valid_lens=[2, 6])
    >>> np.allclose(output, attention(query, keys, values, score=score, valid_lens=[2, 6]))
    True
    """
    if not isinstance(score, Score):
        raise TypeError(
            f"keys are prepared for a score object, such as ScaledDot(), got {brief(score)}."
        )
    name = find_framework(key=key)
    backend = backends.load(name)
    xp = backend.xp
    context, dtype = backend.precision(key)
    check_devices(xp, key, key=key)  # ragged and nested keys are refused
    (key,), score = backend.adapter(key, key, key).take((key,), score)
    with context():
        if dtype is not None:
            (key,), score = autocast(xp, dtype, [key], score)
        check_tensors(xp, key, key, key)
        query = empty_queries(xp, score, key)
        sizes = check_tensors(xp, query, key, key)
        check_score(xp, score, query, key, sizes)
        for part in parts(mask):
            if not part.of_all_queries:
                raise TypeError(
                    f"keys are prepared for all queries, so their mask must not depend on them: "
                    f"expected Lengths, Interval or Keys, got {type(part).__name__}. Give it to "
                    "`attention` instead."
                )
        lowered = lower_mask(xp, replace(sizes, queries=1), query, mask, valid_lens)
        if lowered is None:
            key = xp.copy(key)
        else:
            key, _ = zero_unread(xp, key, lowered.attending_attended[1], sizes.groups)
        f = factors_of(xp, score, query, key)
        nothing = _empty_rows(xp, key, xp.shape(key)[-1])
        packed = backend.pack_keys(f) if cpu.packs(f.pair) else None
        return PreparedKeys(key, type(score), f.b, f.key_bias, packed, nothing)


vars(prepare_keys)["autograph_info__"] = None  # as for `attention`


def _empty_rows(xp: Ops, x: Array, width: int, lead: tuple[int, ...] = ()) -> Array:
    """Return an empty (*lead, 0, width) array like x."""
    nothing = xp.reshape(x[..., :0, :], (*(1,) * len(lead), 0, 1))
    return xp.broadcast_to(nothing, (*lead, 0, width))


def empty_queries(xp: Ops, score: Score, key: Array) -> Array:
    """Return empty queries, of the width and leading dimensions that the score expects.

    Raises:
        TypeError, ValueError: fields of the score are wrong, or do not fit the key.
    """
    check_fields(xp, score, key=key)
    d_k = width = xp.shape(key)[-1]
    of_queries: list[tuple[int, ...]] = []
    of_keys = [xp.shape(key)[:-2]]
    parameters = parameters_of(xp, score)
    for field, (shape, _) in parameters.items():
        letters = score.shapes.get(field, ())
        if len(shape) < len(letters):  # `check_score` refuses it
            continue
        own = shape[: len(shape) - len(letters)]
        (of_keys if field in KEY_PARAMETERS else of_queries).append(own)
        if "d_q" in letters:
            width = shape[len(shape) - len(letters) + letters.index("d_q")]
        elif "d_q + d_k" in letters:
            width = shape[-1] - d_k
        elif "W_q" in score.shapes and "W_q" not in parameters and letters == ("h",):
            width = shape[-1]
    if score.equal_widths:
        width = d_k
    leads = [*of_queries, *of_keys]  # queries may have more heads, so they come first
    rank = max(map(len, leads))
    padded = [(1,) * (rank - len(lead)) + lead for lead in leads]
    lead = tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*padded, strict=True))
    query = _empty_rows(xp, key, max(width, 0), lead)
    try:
        check_tensors(xp, query, key, key)
    except ValueError:
        shapes = ", ".join(f"{field} {shape}" for field, (shape, _) in parameters.items())
        raise ValueError(
            f"the leading dimensions of the parameters of {type(score).__name__} ({shapes}) do not "
            f"broadcast with those of key, {xp.shape(key)}."
        ) from None
    return query
