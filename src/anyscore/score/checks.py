"""Checks of a score together with the tensors of a call, and of a call as a whole."""

from __future__ import annotations

import math
import sys
from numbers import Real
from typing import Any

import numpy as np

from anyscore.ops import DTYPES, Array, Ops, accumulation, framework
from anyscore.ops.checks import (
    Sizes,
    brief,
    broadcasts,
    check_devices,
    check_tensors,
    find_framework,
    is_finite,
    remembered,
)
from anyscore.score.base import Projection, Score
from anyscore.score.factors import Factors
from anyscore.score.outer import Outer, check_outer
from anyscore.score.pairs import Pair

KEY_PARAMETERS = "W_k", "w_k"
"""The parameters that are combined with keys, not with queries, and so have key heads."""
POSITIVE = "sigma", "tau"
"""Parameters that a layer stores as their logarithm."""

_passed: dict[Any, Sizes] = {}
"""The sizes of calls that passed, by all inputs of the checks: most calls repeat an earlier one."""


def check_call(xp: Ops, query: Array, key: Array, value: Array, score: Any) -> Sizes:
    """Check query, key, value and the score together; return the sizes of the call.

    Raises:
        TypeError, ValueError: as `check_tensors` and `check_score`.
    """

    def check() -> Sizes:
        sizes = check_tensors(xp, query, key, value)
        check_score(xp, score, query, key, sizes)
        return sizes

    try:
        signature = None if xp.is_tracing() else _signature(xp, query, key, value, score)
    except (TypeError, AttributeError, RuntimeError, ValueError):  # no plain tensor of it
        signature = None
    return remembered(_passed, signature, check)


def _is_small(x: Any) -> bool:
    """Return whether a field of a score may be remembered."""
    is_plain = type(x) in (bool, int, str, Outer) or isinstance(x, np.generic)
    return is_plain and sys.getsizeof(x) <= 256


def _signature(xp: Ops, query: Array, key: Array, value: Array, score: Any) -> Any:
    """Return all that the checks of a call depend on, hashable; None if objects of the user do.

    A signature is kept. It has small numbers and texts, and classes, so that no tensor, function
    or large object of the user lives on with it.
    """
    signature: list[Any] = [type(score), callable(score)]
    for x in (query, key, value, *(vars(score).values() if isinstance(score, Score) else ())):
        shape = getattr(x, "shape", None)
        if not shape and (shape is None or isinstance(x, Real)):
            if isinstance(x, Pair):
                x = x.key
            if x is not None and type(x) is not float and not _is_small(x):
                return None
            signature.append((type(x), x))
        elif isinstance(x, Projection):
            of_tensors = callable(x.call), *map(type, x.tensors)
            signature.append((Projection, shape, x.dtype, *of_tensors))
        else:
            signature.append((type(x), shape, x.dtype, xp.placement(x)))
    return tuple(signature)


def check_score(xp: Ops, score: Any, query: Array, key: Array, sizes: Sizes) -> None:
    """Check that the score is an object or a callable, with parameters that fit the tensors.

    Raises:
        TypeError, ValueError: the score is neither, or a parameter does not fit.
    """
    if not isinstance(score, Score):
        if isinstance(score, str | type) or not callable(score):
            raise TypeError(
                f"score must be a score object, such as ScaledDot() or Additive(W_q, W_k, w_v), or "
                f"a callable (query, key) → (..., T_q, T_k), got {brief(score)}."
            )
        return
    d_q, d_k = xp.shape(query)[-1], xp.shape(key)[-1]
    check_widths(type(score), d_q, d_k)
    check_fields(xp, score, query=query)
    name, dtype = type(score).__name__, xp.dtype(query)
    parameters = parameters_of(xp, score)
    widths = {"d_q": d_q, "d_k": d_k, "d_q + d_k": d_q + d_k}
    projected = [field for field in ("W_q", "W_k") if field in set(score.shapes) - set(parameters)]
    if len(projected) == 2 and d_q != d_k:
        raise ValueError(
            f"{name} without W_q and W_k needs queries and keys projected to one width; got "
            f"d_q={d_q} and d_k={d_k}."
        )
    if projected:
        widths["h"] = d_q if "W_q" in projected else d_k
    for field, (shape, of_field) in parameters.items():
        expected = score.shapes.get(field)
        if expected is None:  # a user's score without this shape
            continue
        if expected and of_field != dtype:
            raise TypeError(
                f"query is {dtype} but {name}.{field} is {of_field}: convert them to one dtype."
            )
        if of_field not in DTYPES and "int" not in of_field:
            raise TypeError(f"{name}.{field} is {of_field}, expected one of {', '.join(DTYPES)}.")
        trailing = shape[len(shape) - len(expected) :]
        if len(trailing) == len(expected):
            for letter, n in zip(expected, trailing, strict=True):
                widths.setdefault(letter, n)
        if trailing != tuple(widths.get(letter) for letter in expected):
            known = " and ".join(f"{x}={widths[x]}" for x in expected if x in widths)
            raise ValueError(
                f"{name}.{field} has shape {shape}, expected (..., {', '.join(expected)})"
                f"{' with ' + known if known else ''}."
            )
        lead = shape[: len(shape) - len(expected)]
        uses_key_heads = field in score.uses_key_heads
        for who, meets in (("keys", sizes.kv_lead), ("queries", sizes.lead)):
            if (uses_key_heads or (field in KEY_PARAMETERS) == (who == "keys")) and not broadcasts(
                lead, meets
            ):
                raise ValueError(
                    f"{name}.{field} has shape {shape}: its leading dimensions {lead} do not "
                    f"broadcast to {meets}, those of the {who}."
                )


def check_class_of_score(name: str, x: Any) -> None:
    """Raise TypeError: x is no class of scores."""
    if not (isinstance(x, type) and issubclass(x, Score)):
        raise TypeError(f"{name} is {brief(x)}, expected the class of a score.")


def check_fields(xp: Ops, score: Score, **tokens: Array) -> None:
    """Check that the fields of a score are numbers, projections, and tensors like the tokens.

    tokens: queries or keys by their name.

    Raises:
        TypeError, ValueError: a field is not, or a tensor is of another framework or device.
    """
    name, tensors = type(score).__name__, score.tensors()
    (like,) = tokens.values()
    for field in score.shapes:
        x = getattr(score, field)
        fixed = field in score.number_fields
        if fixed and not isinstance(x, Real):
            raise TypeError(f"{name}.{field} must be a number, got {brief(x)}.")
        if field in tensors:
            continue
        if isinstance(x, Real) and not score.shapes[field]:
            _check_number(f"{name}.{field}", x, xp.dtype(like), fixed or field in POSITIVE)
        elif isinstance(x, Projection):
            _check_projection(f"{name}.{field}", x)
        elif x is not None or not _may_lack(type(score), field):
            raise TypeError(f"{name}.{field} is a {type(x).__name__}, expected a tensor.")
    named = {f"{name}.{field}": x for field, x in tensors.items()}
    if any(framework(x) != framework(like) for x in named.values()):
        find_framework(**tokens, **named)
    check_devices(xp, like, **named)


def _may_lack(score: type[Score], field: str) -> bool:
    """Return whether a field may be None: by default it is, or the tokens are projected."""
    return field in ("W_q", "W_k") or getattr(score, field, score) is None


def _check_projection(name: str, x: Projection) -> None:
    if not callable(x.call):
        raise TypeError(f"{name}.call is {brief(x.call)}, expected a function of tokens.")
    if not isinstance(x.shape, tuple):
        raise TypeError(f"{name} has the shape {brief(x.shape)}, expected a tuple such as (h, d).")
    if not isinstance(x.dtype, str) or x.dtype not in DTYPES:
        expected = ", ".join(DTYPES)
        raise TypeError(f"{name} has the dtype {brief(x.dtype)}, expected one of {expected}.")
    if not isinstance(x.tensors, tuple) or None in map(framework, x.tensors):
        raise TypeError(f"{name}.tensors is {brief(x.tensors)}, expected a tuple of tensors.")


def factors_of(xp: Ops, score: Score, query: Array, key: Array) -> Factors:
    """Return the score of queries and keys as checked factors.

    Raises:
        TypeError, ValueError: `lower` of a user's score returned something else, or an outer
            function that does not exist.
    """
    f = score.lower(xp, query, key)
    if not isinstance(f, Factors) or not isinstance(f.pair, Pair):
        got = brief(f.pair) if isinstance(f, Factors) else brief(f)
        raise TypeError(
            f"{type(score).__name__}.lower returned {got}, expected Factors of tensors and a Pair."
        )
    for x, token in ((f.a, query), (f.b, key)):
        if type(x) is not type(token) and framework(x) is None:
            raise TypeError(
                f"{type(score).__name__}.lower returned Factors of {brief(x)}, expected tensors."
            )
    if f.outer is not None:
        check_outer(f.outer, accumulation(xp.dtype(query)))
    return f


def parameters_of(xp: Ops, score: Score) -> dict[str, tuple[tuple[int, ...], str]]:
    """Map the fields of tensors and projections to (shape, dtype), in the order of the fields."""
    known = {field: (xp.shape(x), xp.dtype(x)) for field, x in score.tensors().items()}
    known |= {field: (x.shape, x.dtype) for field, x in score.projections().items()}
    return {field: known[field] for field in vars(score) if field in known}


def _check_number(name: str, x: Any, dtype: str, positive: bool) -> None:
    """Check a scale: its inverse square must be finite in the accumulation dtype."""
    least = 1e-154 if dtype == "float64" else 1e-19
    if positive and not x > 0:
        raise ValueError(f"{name} must be > 0, got {brief(x)}.")
    number = float(x) if is_finite(x) else math.inf  # NumPy's floats would overflow below
    if positive and number < least:
        raise ValueError(f"{name} must be ≥ {least} in {dtype}, got {brief(x)}.")
    if not abs(number) <= 1 / least**2:
        raise ValueError(f"{name} must be a finite number in {dtype}, got {brief(x)}.")


def check_widths(score: type[Score], d_q: int, d_k: int) -> None:
    """Check the widths of queries and keys for a score.

    Raises:
        ValueError: the score needs equal widths.
    """
    if score.equal_widths and d_q != d_k:
        raise ValueError(
            f"{score.__name__} needs queries and keys of one width: project them, or use Bilinear "
            f"or Additive; got d_q={d_q} and d_k={d_k}."
        )


def check_scores(xp: Ops, scores: Any, query: Array, sizes: Sizes) -> None:
    """Check the scores of a callable: a tensor that broadcasts to (*lead, T_q, T_k).

    Raises:
        TypeError, ValueError: the scores are no such tensor.
    """
    if framework(scores) is None:
        raise TypeError(f"the score gave a {type(scores).__name__}, expected a tensor.")
    find_framework(query=query, score=scores)
    if xp.dtype(scores) not in DTYPES:
        raise TypeError(f"the score gave {xp.dtype(scores)}, expected one of {', '.join(DTYPES)}.")
    shape, full = xp.shape(scores), (*sizes.lead, sizes.queries, sizes.keys)
    if shape[-2:] != full[-2:] or not broadcasts(shape, full):
        raise ValueError(f"the score gave shape {shape}, expected {full}.")
