"""A formula in Triton: its value and its two derivatives as Triton functions."""

from __future__ import annotations

import linecache
from functools import cache
from typing import Any

import triton
import triton.language as tl

from anyscore.kernels.triton.pairs import Functions, tanh
from anyscore.score.formula import Formula
from anyscore.score.formula.slopes import plain
from anyscore.score.formula.tape import ARITHMETIC, COMPARISONS, Row, reached

_OWN = {"tanh": "tanh", "log1p": "log1p", "expm1": "expm1"}


@triton.jit
def log1p(x):
    """Return ln(1 + x); near 0 by ln u · x/(u − 1) with u = 1 + x, whose errors cancel."""
    u = 1.0 + x
    near = tl.where(u == 1.0, x, tl.log(u) * (x / tl.where(u == 1.0, 1.0, u - 1.0)))
    return tl.where(tl.abs(x) < 1.0, near, tl.log(u))


@triton.jit
def expm1(x):
    """Return eˣ − 1; near 0 by (u − 1) x/ln u with u = eˣ, whose errors cancel."""
    u = tl.exp(x)
    log = tl.where(tl.abs(x) < 1.0, tl.log(u), 1.0)
    near = tl.where(log == 0.0, x, (u - 1.0) * (x / tl.where(log == 0.0, 1.0, log)))
    return tl.where(tl.abs(x) < 1.0, near, u - 1.0)


@cache
def of_formula(formula: Formula) -> Functions:
    """Return the functions of a formula."""
    names = "value", "d_a", "d_b"
    text, at = source(formula), f"<anyscore pair {formula.digest}>"
    # Triton reads the source of a function through `inspect`.
    linecache.cache[at] = len(text), None, text.splitlines(keepends=True), at
    made: dict[str, Any] = {
        "__name__": "anyscore_pair", "tl": tl, "tanh": tanh, "log1p": log1p, "expm1": expm1,
    }  # fmt: skip
    exec(compile(text, at, "exec"), made)  # the text of `source`
    return Functions(*(triton.jit(made[name]) for name in names))


def source(formula: Formula) -> str:
    """Return three functions of tiles a and b as text."""
    rows, places = plain(*formula.slopes())
    made = []
    for name, place in zip(("value", "d_a", "d_b"), places, strict=True):
        result = _name(rows, place)
        if rows[place][0] == "number":
            result = f"tl.zeros_like(a) + {result}"
        if name == "value" and formula.loses_nan:
            result = f"tl.where(a == a, tl.where(b == b, {result}, b), a)"
        lines = [f"def {name}(a, b):", *_lines(rows, place), f"return {result}"]
        made.append("\n    ".join(lines) + "\n")
    return "\n\n".join(made)


def _lines(rows: tuple[Row, ...], place: int) -> list[str]:
    """Return an assignment for each row that the given row depends on."""
    lines = []
    for i in reached(rows, (place,)):
        operation, *rest = rows[i]
        if operation == "number" or not rest:
            continue
        x = [_name(rows, one) for one in rest]
        if operation in COMPARISONS:
            made = f"{x[0]} {COMPARISONS[operation]} {x[1]}"
        elif operation in ARITHMETIC:
            made = f"{x[0]} {ARITHMETIC[operation]} {x[1]}"
        elif operation == "neg":
            made = f"-{x[0]}"
        elif operation == "where" and all(rows[one][0] == "number" for one in rest[1:]):
            sides = (f"tl.full({x[0]}.shape, {one}, a.dtype)" for one in x[1:])  # not float32
            made = f"tl.where({x[0]}, {', '.join(sides)})"
        elif operation == "where":
            made = f"tl.where({x[0]}, {x[1]}, {x[2]})"
        elif operation == "log1p_unit":
            made = f"tl.log(1.0 + {x[0]})"
        else:
            made = f"{_OWN.get(operation, f'tl.{operation}')}({x[0]})"
        lines.append(f"{_name(rows, i)} = {made}")
    return lines


def _name(rows: tuple[Row, ...], place: int) -> str:
    """Return the name of a row's variable."""
    operation, *rest = rows[place]
    if operation == "number":
        return f"({rest[0]!r})"
    return f"x{place}" if rest else str(operation)
