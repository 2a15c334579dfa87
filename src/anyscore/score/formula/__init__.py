"""Pairs and outer functions of formulas are read, differentiated and computed in any framework.

`Pair.from_formula` and `Outer.from_formula` are the public entries. A Python function may use the
functions named here, and NumPy's functions of the same names.
"""

from __future__ import annotations

from anyscore.score.formula.formula import OUTER, PAIR, Formula, formula_of
from anyscore.score.formula.functions import (
    cos,
    erf,
    exp,
    expm1,
    log,
    log1p,
    maximum,
    minimum,
    relu,
    sigmoid,
    sign,
    sin,
    softplus,
    sqrt,
    tanh,
    where,
)

__all__ = [
    "OUTER", "PAIR", "Formula", "cos", "erf", "exp", "expm1", "formula_of", "log", "log1p",
    "maximum", "minimum", "relu", "sigmoid", "sign", "sin", "softplus", "sqrt", "tanh", "where",
]  # fmt: skip
