"""Scores by name, and the parameters of a layer for its score, in all frameworks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any, TypeAlias

from anyscore.modifiers.sinks import check_finite
from anyscore.ops import Array
from anyscore.ops.checks import brief, check_integers, check_numbers, suggest
from anyscore.score import SCORES, Concat
from anyscore.score.base import Init, Score
from anyscore.score.checks import KEY_PARAMETERS, POSITIVE

AnyScore: TypeAlias = str | type[Score] | Score | Callable[[Array, Array], Array]
"""A name or class, a score object, or a callable (queries, keys) → (..., T_q, T_k)."""

PROJECTIONS = "W_q", "W_k"
"""Parameters that a score lacks if queries and keys are already projected."""

SINK = "sink"
"""The name of the parameter of a learned sink."""

_SIZES = "hidden", "d_q", "d_k", "heads", "kv_heads"
_ARGUMENTS = *_SIZES, "dropout", "bias", "projected", "impl", "softcap", "sink", "normalizer"
"""The arguments of every layer of a named score, besides its scales."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a layer.

    field: the field of the score, or `SINK`.
    init: the shape in the layer, and the initial values.
    row: True if a vector (n,) is stored as (1, n), as in a linear layer with one output.
    per_head: True if each head has its own values.
    """

    field: str
    init: Init
    row: bool = False
    per_head: bool = False

    @cached_property
    def logarithm(self) -> bool:
        """True if the parameter is the logarithm of the field."""
        return self.field in POSITIVE

    @cached_property
    def name(self) -> str:
        """The name of the parameter in the layer and its state dict."""
        return f"log_{self.field}" if self.logarithm else self.field


def is_named(score: AnyScore) -> bool:
    """Check if a score is a name or a class: then a layer creates the score's parameters."""
    return isinstance(score, str) or (isinstance(score, type) and issubclass(score, Score))


def makes_parameters(score: AnyScore, sink: Any) -> bool:
    """Check if a layer creates parameters: for a named score, or a learned sink."""
    return is_named(score) or sink is True


def sink_of_layer(sink: Any, heads: int | None) -> Parameter | float | None:
    """Return the sink of a layer: a `Parameter` if learned, a number if fixed; None if no sink.

    Raises:
        TypeError, ValueError: sink is not True, False, None or a finite number.
    """
    if sink is None or sink is False:
        return None
    if sink is True:
        shape = () if heads is None else (heads,)
        return Parameter(SINK, Init(shape), per_head=heads is not None)
    if not isinstance(sink, Real):
        raise TypeError(
            "sink must be True for a learned one, a number for a fixed one, or None, got "
            f"{brief(sink)}."
        )
    check_finite(sink)
    return float(sink)


def find_score(name: str) -> type[Score]:
    """Return the score of a name of `SCORES`.

    Raises:
        ValueError: an unknown name; the message has the nearest one.
    """
    if name in SCORES:
        return SCORES[name]
    hint = suggest(name, SCORES, "no name is like it. ")
    raise ValueError(f"unknown score {name!r}: {hint}Known: {', '.join(SCORES)}.")


def parameter_specs(
    score: type[Score],
    d_q: int,
    d_k: int,
    *,
    hidden: int | None = None,
    bias: bool = False,
    heads: int | None = None,
    kv_heads: int | None = None,
    projected: bool = False,
    scales: Mapping[str, float] | None = None,
) -> tuple[list[Parameter], dict[str, float | None]]:
    """Return the parameters that a layer creates for a score, in order, and its fixed fields.

    hidden: width of the hidden layer; by default d_q. scales: fields with fixed numbers in place
    of parameters. Other arguments: as for layers.

    Raises:
        TypeError, ValueError: an argument is missing, or the score does not take it.
    """
    scales = scales or {}
    _check_scales(score, scales)
    if hidden is None:
        if not projected and has_hidden(score):
            raise ValueError(f"{score.__name__} needs hidden=, the width of its hidden layer.")
        hidden = d_q
    fields: dict[str, Init | float | None] = {**score.parameters(d_q, d_k, hidden)}
    if bias and "bias" not in score.shapes:
        raise ValueError(f"{score.__name__} has no bias: leave out bias=True.")
    if "bias" in score.shapes:
        fields["bias"] = Init((hidden,)) if bias else None
    if projected:
        fields |= {name: None for name in PROJECTIONS if name in score.shapes}
    fields |= {name: scale for name, scale in scales.items() if scale is not None}
    if heads != kv_heads and any(isinstance(fields[name], Init) for name in score.uses_key_heads):
        hint = "use Additive" if score is Concat else f"give {score.uses_key_heads[0]} as a number"
        raise ValueError(f"{score.__name__} cannot have fewer key heads than query heads: {hint}.")
    parameters, fixed = [], {}
    for field, init in fields.items():
        if not isinstance(init, Init):
            fixed[field] = init
            continue
        init = _checked(f"{score.__name__}.{field}", init, field in POSITIVE)
        n_heads = kv_heads if field in KEY_PARAMETERS else heads
        row = field == "w_v" and n_heads is None
        if n_heads is not None or row:
            init = replace(init, shape=(n_heads or 1, *init.shape))
        if field in POSITIVE:
            init = replace(init, value=math.log(init.value))
        parameters.append(Parameter(field, init, row, n_heads is not None))
    return parameters, fixed


def _checked(name: str, init: Init, positive: bool) -> Init:
    """Return initial values as plain numbers: a score of a user may return any.

    Raises:
        TypeError, ValueError: the shape is no tuple of integers, or a number does not fit float32.
    """
    if not isinstance(init.shape, tuple):
        raise TypeError(f"the shape of Init of {name} is {brief(init.shape)}, expected a tuple.")
    for n in init.shape:
        check_integers(0, **{f"the shape of Init of {name}": n})
    check_numbers(0.0, 1e38, **{f"bound of Init of {name}": init.bound})
    check_numbers(1e-38 if positive else -1e38, 1e38, **{f"value of Init of {name}": init.value})
    return Init(tuple(map(int, init.shape)), float(init.bound), float(init.value))


def has_hidden(score: type[Score]) -> bool:
    """Check if a score has a hidden layer."""
    return any("h" in shape for shape in score.shapes.values())


def _check_scales(score: type[Score], arguments: Mapping[str, Any]) -> None:
    """Check the keyword arguments of a layer: each must be a scale of its score, and a number."""
    scales = [field for field, shape in score.shapes.items() if shape == ()]
    known = {name for other in SCORES.values() for name, shape in other.shapes.items() if not shape}
    for name, scale in arguments.items():
        if name in known and name not in scales:
            raise TypeError(
                f"{score.__name__} has no scale {name!r}; it has {', '.join(scales) or 'none'}."
            )
        if name not in scales:
            takes = (*_ARGUMENTS, *scales)
            raise TypeError(
                f"unknown argument {name!r}: {suggest(name, takes, 'leave it out. ')}A layer of "
                f"{score.__name__} takes {', '.join(takes)}."
            )
        if scale is not None and not isinstance(scale, Real):
            raise TypeError(f"{name} must be a number, got {brief(scale)}.")
