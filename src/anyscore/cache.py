"""Keys prepared once for many calls: a decoder that attends to one sequence step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from anyscore import ops, seams
from anyscore.autocast import autocast
from anyscore.checks import OF_KEYS, check_score, check_tensors, find_framework
from anyscore.factors import Factors
from anyscore.masks import Interval, Keys, Lengths, parts
from anyscore.ops import Array, Ops
from anyscore.routes import kinds_of
from anyscore.score import Score
from anyscore.scores import ScaledDot
from anyscore.task import lower
from anyscore.unread import zero


@dataclass(frozen=True, eq=False)
class PreparedKeys:
    """All that a score needs of keys (..., T_k, d_k); made by `prepare_keys`.

    key: the keys themselves. score: the class of the score. b, key_bias: their part of its
    `Factors`. packed: what the fused implementation made of that, None if nothing.
    """

    key: Array
    score: type[Score]
    b: Array
    key_bias: Array | None
    packed: Array | None

    def meet(self, xp: Ops, score: Any, query: Array) -> Factors:
        """The factors of these keys and of the query, which is all that is lowered anew."""
        if type(score) is not self.score:
            got = type(score).__name__ if isinstance(score, Score) else repr(score)
            raise ValueError(
                f"the keys were prepared for the score {self.score.__name__}, got {got}: prepare "
                "them with prepare_keys(key, score)."
            )
        f = score.lower(xp, query, self.key[..., :0, :])
        if xp.shape(f.a)[-1] != xp.shape(self.b)[-1]:
            raise ValueError(
                f"the keys were prepared for a score of width {xp.shape(self.b)[-1]}, got "
                f"{xp.shape(f.a)[-1]}: prepare them with the parameters that the queries meet."
            )
        return Factors(f.a, self.b, f.pair, f.weight, f.scale, f.query_bias, self.key_bias)

    def map(self, function: Callable[[Array], Array]) -> PreparedKeys:
        """These keys with a function applied to what the framework differentiates."""
        bias = None if self.key_bias is None else function(self.key_bias)
        return replace(self, key=function(self.key), b=function(self.b), key_bias=bias)


def prepare_keys(
    key: Array,
    score: Score = ScaledDot(),  # noqa: B008 (frozen)
    *,
    mask: Any = None,
    valid_lens: Any = None,
) -> PreparedKeys:
    """What a score needs of the keys, computed once: projections, biases, packed exponentials.

    Pass it as `key` to `attention`, as often as there are queries, with the same score; masks and
    values are given to each call as before. It keeps the graph of the keys and parameters, so that
    gradients reach them; after an update of the parameters, prepare anew.

    Args:
        key: (..., T_k, d_k).
        score: a score object; a callable has nothing to prepare.
        mask, valid_lens: keys that no query of any call may attend, so that nothing reads them
            here either. Not of use where padding is finite. `Lengths`, `Interval` and `Keys`.

    Raises:
        TypeError, ValueError: on wrong input, before any work.

    >>> import numpy as np
    >>> from anyscore import Additive, attention
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
            f"keys are prepared for a score object, such as ScaledDot(), got {score!r}."
        )
    name = find_framework(key=key)
    xp, seam = ops.load(name), seams.load(name)
    own, dtype = seam.precision(key)
    kinds = kinds_of(seam)
    if kinds is not None:
        (key,), score = kinds.enter((key,), score)
    with own():
        if dtype is not None:
            (key,), score = autocast(xp, dtype, [key], score)
        check_tensors(xp, key, key, key)
        query = _no_queries(xp, score, key)
        sizes = check_tensors(xp, query, key, key)
        check_score(xp, score, query, key, sizes)
        for part in parts(mask):
            if not isinstance(part, Lengths | Interval | Keys):
                raise TypeError(
                    f"keys are prepared for all queries, so their mask must not depend on them: "
                    f"expected Lengths, Interval or Keys, got {type(part).__name__}. Give it to "
                    "`attention` instead."
                )
        attendable = lower(xp, replace(sizes, queries=1), query, mask, valid_lens)
        if attendable is not None:
            _, used = attendable.used(xp, sizes.keys)
            key, _ = zero(xp, key, used, sizes.groups)
        f = score.lower(xp, query, key)
        return PreparedKeys(key, type(score), f.b, f.key_bias, seam.pack_keys(f))


vars(prepare_keys)["autograph_info__"] = None  # as of `attention`


def _none_of(xp: Ops, x: Array, width: int, lead: tuple[int, ...] = ()) -> Array:
    """No tokens of the width, (*lead, 0, width), of the kind of x."""
    nothing = xp.reshape(x[..., :0, :], (*(1,) * len(lead), 0, 1))
    return xp.broadcast_to(nothing, (*lead, 0, width))


def _no_queries(xp: Ops, score: Score, key: Array) -> Array:
    """No queries, of the width and with the heads that the parameters of the score expect."""
    d_k = width = xp.shape(key)[-1]
    lead = xp.shape(key)[:-2]
    own: tuple[int, ...] = ()
    tensors = score.tensors()
    for field, x in tensors.items():
        shape, letters = xp.shape(x), score.shapes.get(field, ())
        if field not in OF_KEYS and len(shape) - len(letters) > len(own):
            own = shape[: len(shape) - len(letters)]
        if "d_q" in letters and len(shape) >= len(letters):
            width = shape[len(shape) - len(letters) + letters.index("d_q")]
        elif "d_q + d_k" in letters:
            width = shape[-1] - d_k
        elif "W_q" in score.shapes and "W_q" not in tensors and letters == ("h",):
            width = shape[-1]
    if score.equal_widths:
        width = d_k
    if own and own[-1] > 1:
        lead = (*lead[:-1], own[-1]) if lead else own
    return _none_of(xp, key, max(width, 0), lead)
