"""The names of scores, and the parameters that layers of all frameworks hold for them.

A layer holds the `ScoreSpec` of its score. At its first call, or when it is made with both widths,
the spec is bound to the widths, which gives its parameters; from their values the layer builds the
score at every call.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any, TypeAlias, cast

from anyscore import formulas
from anyscore.checks import check_size
from anyscore.messages import shown
from anyscore.normalizers import Normalizer
from anyscore.ops import Array, Ops
from anyscore.score import Init, Score
from anyscore.score_checks import KEY_PARAMETERS, POSITIVE, check_widths

SCORES: dict[str, type[Score]] = {
    "dot": formulas.Dot,
    "scaled_dot": formulas.ScaledDot,
    "bilinear": formulas.Bilinear,
    "cosine": formulas.Cosine,
    "trilinear": formulas.Trilinear,
    "gaussian": formulas.Gaussian,
    "laplace": formulas.Laplace,
    "euclidean": formulas.Euclidean,
    "student_t": formulas.StudentT,
    "lorentz": formulas.Lorentz,
    "additive": formulas.Additive,
    "concat": formulas.Concat,
    "gatv2": formulas.GATv2,
}
"""The names that layers and the command line know scores by."""

AnyScore: TypeAlias = str | type[Score] | Score | Callable[[Array, Array], Array]
"""A name or class, a score object, or a callable (queries, keys) → (..., T_q, T_k)."""

PROJECTIONS = "W_q", "W_k"
"""Parameters left out where queries and keys come already projected."""

_SIZES = "hidden", "d_q", "d_k", "heads", "kv_heads"
_ARGUMENTS = *_SIZES, "dropout", "bias", "projected", "impl", "softcap", "normalizer"
"""The arguments of every layer of a named score, besides its scales."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a layer.

    field: the field of the score that it fills. init: its shape in the layer and its initial
    values. row: whether a vector is kept as one row, as a linear layer with one output keeps it.
    per_head: whether each head has its own.
    """

    field: str
    init: Init
    row: bool = False
    per_head: bool = False

    @cached_property
    def logarithm(self) -> bool:
        """True if the layer keeps the logarithm of the field."""
        return self.field in POSITIVE

    @cached_property
    def name(self) -> str:
        """The name of the parameter in the layer and its state dict."""
        return f"log_{self.field}" if self.logarithm else self.field


@dataclass(frozen=True)
class BoundScore:
    """A score whose widths are known.

    parameters: what the layer learns, in order. fixed: the fields that are numbers or None.
    """

    score: AnyScore
    parameters: tuple[Parameter, ...] = ()
    fixed: Mapping[str, float | None] | None = None

    def build(self, xp: Ops, values: Mapping[str, Array]) -> Any:
        """Build the score from the values of the parameters, by name."""
        if isinstance(self.score, Score):
            return replace(self.score, **values)
        if not isinstance(self.score, type):
            return self.score
        fields: dict[str, Any] = dict(self.fixed or {})
        for p in self.parameters:
            x = values[p.name]
            fields[p.field] = x[..., 0, :] if p.row else xp.exp(x) if p.logarithm else x
        return self.score(**fields)


class ScoreSpec:
    """The score of a layer, checked.

    score: a name of `SCORES` or a class, with hidden, d_q, … as `parameter_specs` takes them; or a
    score object or a callable, which take none of these. names: of the parameters that the layer
    holds; linears: those that are the matrices of linear layers.

    Raises TypeError, ValueError: an unknown score, or sizes and scales that it lacks or has not.
    """

    def __init__(
        self,
        score: AnyScore,
        *,
        hidden: int | None = None,
        d_q: int | None = None,
        d_k: int | None = None,
        bias: bool = False,
        heads: int | None = None,
        kv_heads: int | None = None,
        projected: bool = False,
        **scales: Any,
    ) -> None:
        sizes = {"hidden": hidden, "d_q": d_q, "d_k": d_k, "heads": heads, "kv_heads": kv_heads}
        check_size(**sizes)
        if heads and kv_heads and heads % kv_heads:
            raise ValueError(f"kv_heads={kv_heads} must divide heads={heads}.")
        self.score: Any = find_score(score) if isinstance(score, str) else score
        self.named = is_named(score)
        self.d_q, self.d_k = d_q, d_k
        self.names: tuple[str, ...] = ()
        self.linears: tuple[str, ...] = ()
        if self.named:
            self._options: dict[str, Any] = {"hidden": hidden, "bias": bias, "heads": heads}
            self._options |= {"kv_heads": kv_heads or heads, "projected": projected}
            self._options["scales"] = scales
            self._check_hidden(d_q)
            named = cast(type[Score], self.score)
            parameters, _ = parameter_specs(named, 1, 1, **self._options)
            self.names = tuple(parameter.name for parameter in parameters)
            if heads is None:
                self.linears = tuple(name for name in named.linears if name in self.names)
            return
        of_names = {**sizes, "bias": bias or None, "projected": projected or None, **scales}
        refused = [name for name, x in of_names.items() if x is not None]
        if refused:
            raise ValueError(
                f"{', '.join(refused)}: for scores given by name; a score object or a callable has "
                "its own parameters."
            )
        if isinstance(score, Score):
            self.names = tuple(score.tensors())
        elif not callable(score):
            raise TypeError(
                f"score must be a name, a score object or a callable, got {shown(score)}."
            )

    def _check_hidden(self, d_q: int | None) -> None:
        """Check hidden= against the score, and against the width of projected queries."""
        hidden = self._options["hidden"]
        if hidden is None:
            return
        if not has_hidden(self.score):
            raise ValueError(f"{self} has no hidden layer: leave out hidden={hidden}.")
        if self._options["projected"] and d_q not in (None, hidden):
            raise ValueError(
                f"hidden={hidden}, but {self} meets queries and keys projected to width {d_q}"
                ", which is the width of its hidden layer here: leave out hidden=."
            )

    @property
    def sized(self) -> bool:
        """True if the parameters can be made without looking at queries and keys."""
        return not self.named or (self.d_q is not None and self.d_k is not None)

    def bind(self, d_q: int | None = None, d_k: int | None = None) -> BoundScore:
        """Bind the score to the widths of queries and keys; None: those the layer was made with.

        Raises ValueError: other widths than the layer was made with, or that the score cannot have.
        """
        if not self.named:
            return BoundScore(self.score)
        d_q, d_k = self._width("d_q", d_q), self._width("d_k", d_k)
        check_widths(self.score, d_q, d_k)
        self._check_hidden(d_q)
        parameters, fixed = parameter_specs(self.score, d_q, d_k, **self._options)
        return BoundScore(self.score, tuple(parameters), fixed)

    def _width(self, name: str, width: int | None) -> int:
        """Return the width of a call, or where it is None that of the layer; they must agree."""
        expected: int | None = getattr(self, name)
        if expected is not None and width not in (None, expected):
            raise ValueError(f"the layer was made with {name}={expected}, got {name}={width}.")
        return cast(int, expected if width is None else width)

    def scale_of(self, d_q: int, d_k: int) -> float:
        """Return the fixed scale of a bilinear layer of these widths."""
        _, fixed = parameter_specs(self.score, d_q, d_k, **self._options)
        return float(fixed["scale"] or 1.0)

    def __str__(self) -> str:
        return (self.score if isinstance(self.score, type) else type(self.score)).__name__


def describe(
    spec: ScoreSpec, dropout: float, softcap: float, normalizer: Normalizer = "softmax"
) -> str:
    """Describe a layer for its repr: its score, its dropout, and what else it has."""
    text = f"{spec}, dropout={dropout}" + (f", softcap={softcap}" if softcap else "")
    return text if normalizer == "softmax" else f"{text}, normalizer={normalizer!r}"


def is_named(score: AnyScore) -> bool:
    """Check if a layer makes the parameters of this score itself: it is a name or a class."""
    return isinstance(score, str) or (isinstance(score, type) and issubclass(score, Score))


def find_score(name: str) -> type[Score]:
    """Return the score of a name of `SCORES`.

    Raises ValueError: an unknown name; the message has the nearest one.
    """
    if name in SCORES:
        return SCORES[name]
    near = difflib.get_close_matches(name.lower(), SCORES, n=1, cutoff=0.0)[0]
    raise ValueError(f"unknown score {name!r}: did you mean {near!r}? Known: {', '.join(SCORES)}.")


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
    """List the parameters that a layer creates for a score, in order, and its fixed fields.

    hidden: width of a hidden layer; d_q if `projected`. scales: fields that are numbers, not
    learned. The other arguments are those of the layers.

    Raises TypeError, ValueError: arguments that the score lacks or has not.
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
    if heads != kv_heads and any(isinstance(fields[name], Init) for name in score.of_both):
        hint = (
            "use Additive" if score is formulas.Concat else f"give {score.of_both[0]} as a number"
        )
        raise ValueError(f"{score.__name__} cannot have fewer key heads than query heads: {hint}.")
    parameters, fixed = [], {}
    for field, init in fields.items():
        if not isinstance(init, Init):
            fixed[field] = init
            continue
        n_heads = kv_heads if field in KEY_PARAMETERS else heads
        row = field == "w_v" and n_heads is None
        if n_heads is not None or row:
            init = replace(init, shape=(n_heads or 1, *init.shape))
        if field in POSITIVE:
            init = replace(init, value=math.log(init.value))
        parameters.append(Parameter(field, init, row, n_heads is not None))
    return parameters, fixed


def has_hidden(score: type[Score]) -> bool:
    """Check if a score has a hidden layer, of the width `hidden`."""
    return any("h" in shape for shape in score.shapes.values())


def _check_scales(score: type[Score], arguments: Mapping[str, Any]) -> None:
    """Check the arguments that a layer does not name: scales of its score, which are numbers."""
    scales = [field for field, shape in score.shapes.items() if shape == ()]
    known = {name for other in SCORES.values() for name, shape in other.shapes.items() if not shape}
    for name, scale in arguments.items():
        if name in known and name not in scales:
            raise TypeError(
                f"{score.__name__} has no scale {name!r}; it has {', '.join(scales) or 'none'}."
            )
        if name not in scales:
            near = difflib.get_close_matches(name, [*_ARGUMENTS, *scales], n=1)
            hint = f"did you mean {near[0]!r}?" if near else "leave it out."
            takes = ", ".join((*_ARGUMENTS, *scales))
            raise TypeError(
                f"unknown argument {name!r}: {hint} A layer of {score.__name__} takes {takes}."
            )
        if scale is not None and not isinstance(scale, Real):
            raise TypeError(f"{name} must be a number, got {shown(scale)}.")
