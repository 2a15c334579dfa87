"""Scores of one head with biases, outer functions and caps, and their derivatives."""

from __future__ import annotations

from dataclasses import dataclass, field

from fuzz import formulas, outers
from fuzz.beside import Beside
from fuzz.formulas import Form, Parameters
from fuzz.rounding import Number


@dataclass
class Scored:
    """s: final scores. slopes: of the outer functions, in the order of application."""

    kind: str
    p: Parameters
    q: Number
    k: Number
    form: Form
    beside: Beside
    s: Number
    slopes: list[Number] = field(default_factory=list)

    def back(self, d_s: Number, d_row: Number) -> dict[str, Number | None]:
        """Return derivatives by name, from d_s by the scores; d_row: sum of d_s for each query.

        d_row is exact where a query bias is added to the log-sum-exp instead.
        """
        found: dict[str, Number | None] = {}
        if self.beside.bias_after is not None:
            found["bias_after="] = self.beside.bias_after.slopes(d_s)
        for slope in reversed(self.slopes):
            d_s = d_s * slope
        if self.slopes:
            d_row = d_s.tokens(1)
        if self.beside.bias is not None:
            found["bias="] = self.beside.bias.slopes(d_s)
        return found | formulas.slopes(self.kind, self.p, self.q, self.k, self.form, d_s, d_row)


def scored(
    kind: str,
    p: Parameters,
    q: Number,
    k: Number,
    form: Form,
    beside: Beside,
    softcap: float,
    exact: bool = False,
    function: str = "",
) -> Scored:
    """Return the scores of one head. exact: whether the sums have no rounding. function: see
    `outers.FORMULAS`.
    """
    sums = formulas.sums(form, formulas.pairs(form))
    out = Scored(kind, p, q, k, form, beside, formulas.scores(form, sums))
    size = out.s.x.shape
    if exact:
        out.s = out.s.like(out.s.x)
    if beside.bias is not None:
        out.s = out.s.plus(beside.bias.matrix(p["bias="], *size))
    if form.outer is not None:
        out.s, slope = outers.of_distance(*form.outer, out.s)
        out.slopes.append(slope)
    if function:
        out.s, slope = outers.of_formula(function, out.s)
        out.slopes.append(slope)
    if softcap:
        out.s, slope = outers.cap(out.s, softcap, form.tanh)
        out.slopes.append(slope)
    if beside.bias_after is not None:
        out.s = out.s.plus(beside.bias_after.matrix(p["bias_after="], *size))
    return out
