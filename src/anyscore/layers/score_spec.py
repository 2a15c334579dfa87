"""The score of a layer, with its sink: checked, and bound to the widths of queries and keys.

A layer holds a `ScoreSpec`. Once the widths of queries and keys are known, `bind` returns a
`BoundScore` with the parameters: at once if the user gives both widths, else at the first call.
Each call of the layer builds the score from the values of the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from anyscore.layers.parameters import (
    SINK,
    AnyScore,
    Parameter,
    find_score,
    has_hidden,
    is_named,
    parameter_specs,
    sink_of_layer,
)
from anyscore.ops import Array, Ops
from anyscore.ops.checks import brief, check_size
from anyscore.score.base import Score
from anyscore.score.checks import check_widths


@dataclass(frozen=True)
class BoundScore:
    """A score with known widths.

    parameters: the learned fields, in order. fixed: the fields that are numbers or None.
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


def replaced_score(score: Any) -> Any:
    """Return the score that a user has put in place of a layer's: an object or a callable.

    Raises:
        TypeError: it is a name or a class, whose parameters the layer lacks.
    """
    if isinstance(score, str | type):
        raise TypeError(
            f"the layer's score was replaced by {brief(score)}, and the parameters are of the "
            "first score: put a score object there, such as Gaussian(1.0), or make another layer."
        )
    return score


class ScoreSpec:
    """The score of a layer, checked.

    score: a name of `SCORES` or a class, with hidden, d_q, … as for `parameter_specs`; or a score
        object or a callable, without these arguments.
    sink: a `Parameter` if learned, one for each head if there are heads; a number if fixed; None.
    names: the names of all parameters of the layer.
    score_parameters: the names of the score's parameters.
    linears: the names of the parameters that are matrices of linear layers.

    Raises:
        TypeError, ValueError: an unknown score; a missing size; a size or scale that the score
            does not take.
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
        sink: Any = None,
        **scales: Any,
    ) -> None:
        sizes = {"hidden": hidden, "d_q": d_q, "d_k": d_k, "heads": heads, "kv_heads": kv_heads}
        check_size(**sizes)
        if heads and kv_heads and heads % kv_heads:
            raise ValueError(f"kv_heads={kv_heads} must divide heads={heads}.")
        self.score: Any = find_score(score) if isinstance(score, str) else score
        self.named = is_named(score)
        self.d_q, self.d_k = d_q, d_k
        self.sink = sink_of_layer(sink, heads)
        self.score_parameters: tuple[str, ...] = ()
        self.linears: tuple[str, ...] = ()
        if self.named:
            self._options: dict[str, Any] = {"hidden": hidden, "bias": bias, "heads": heads}
            self._options |= {"kv_heads": kv_heads or heads, "projected": projected}
            self._options["scales"] = scales
            self._check_hidden(d_q)
            named = cast(type[Score], self.score)
            parameters, _ = parameter_specs(named, 1, 1, **self._options)
            self.score_parameters = tuple(parameter.name for parameter in parameters)
            if heads is None:
                self.linears = tuple(
                    name for name in named.linears if name in self.score_parameters
                )
        else:
            if isinstance(self.sink, Parameter):
                sizes["heads"] = None  # the sink takes them
            of_names = {**sizes, "bias": bias or None, "projected": projected or None, **scales}
            self._check_own(score, [name for name, x in of_names.items() if x is not None])
            self.score_parameters = tuple(score.tensors()) if isinstance(score, Score) else ()
        self.names = self.score_parameters
        if isinstance(self.sink, Parameter):
            if SINK in self.score_parameters:
                raise ValueError(f"{self} has a parameter {SINK!r} already: leave out sink=True.")
            self.names = (*self.score_parameters, SINK)

    @staticmethod
    def _check_own(score: Any, given: list[str]) -> None:
        """Check a score object or a callable, and that no argument of a named score is given."""
        if given:
            raise ValueError(
                f"{', '.join(given)}: for scores given by name; a score object or a callable has "
                "its own parameters."
            )
        if not callable(score) and not isinstance(score, Score):
            raise TypeError(
                f"score must be a name, a score object or a callable, got {brief(score)}."
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
    def widths_known(self) -> bool:
        """True if the parameters can be created without queries and keys."""
        return not self.named or (self.d_q is not None and self.d_k is not None)

    def bind(self, d_q: int | None = None, d_k: int | None = None) -> BoundScore:
        """Bind the score to the widths of queries and keys; None: the widths of the layer.

        Raises:
            ValueError: the widths are not those of the layer, or do not fit the score.
        """
        if not self.named:
            return BoundScore(self.score)
        d_q, d_k = self._width("d_q", d_q), self._width("d_k", d_k)
        check_widths(self.score, d_q, d_k)
        self._check_hidden(d_q)
        parameters, fixed = parameter_specs(self.score, d_q, d_k, **self._options)
        return BoundScore(self.score, tuple(parameters), fixed)

    def check_widths(self, d_q: int, d_k: int) -> None:
        """Check the widths of a call against those that the layer was made with.

        Raises:
            ValueError: a width is another one.
        """
        if (d_q, d_k) != (self.d_q, self.d_k):
            self._width("d_q", d_q)
            self._width("d_k", d_k)

    def _width(self, name: str, width: int | None) -> int:
        """Return the width of a call; the width of the layer if None. The two must agree."""
        expected: int | None = getattr(self, name)
        if expected is not None and width not in (None, expected):
            raise ValueError(f"the layer was made with {name}={expected}, got {name}={width}.")
        return cast(int, expected if width is None else width)

    def scale_of(self, d_q: int, d_k: int) -> float:
        """Return the fixed scale of a bilinear layer with these widths."""
        _, fixed = parameter_specs(self.score, d_q, d_k, **self._options)
        return float(fixed["scale"] or 1.0)

    def __str__(self) -> str:
        return (self.score if isinstance(self.score, type) else type(self.score)).__name__
