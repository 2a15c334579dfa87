"""The order in which a formula is computed so that a framework's own derivatives of it are right.

Derivatives go through both branches of a `where`, and 0 · ∞ of the one that is not chosen is NaN.
So a branch that is not finite everywhere is computed of features that are moved, where it is not
chosen, to a point at which it is.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from anyscore.ops import Array, Ops
from anyscore.pair_formula.slopes import with_slopes
from anyscore.pair_formula.tape import COMPARISONS, Row, numbers, operands, pruned, reached

_PARTIAL = frozenset(("div", "log", "log1p", "sqrt", "exp", "expm1"))
_POINTS = [(x / 2, y / 2) for n in range(9) for x in range(-n, n + 1) for y in range(-n, n + 1)
           if max(abs(x), abs(y)) == n]  # fmt: skip


class Branch(NamedTuple):
    """A branch of a `where`: its steps, and the point that it is computed at if not chosen."""

    steps: Steps
    point: tuple[float, float]


class Step(NamedTuple):
    """A row and where it stands; branches: those of a `where`, None where rows serve."""

    place: int
    row: Row
    branches: tuple[Branch | None, ...] = ()


class Steps(NamedTuple):
    """Steps in order, and the place of the last."""

    steps: tuple[Step, ...]
    place: int


def steps_of(rows: tuple[Row, ...]) -> Steps:
    """Return the steps that compute the last row."""
    needed: set[int] = set()
    waiting, branches = [len(rows) - 1], dict[int, tuple[Branch | None, ...]]()
    while waiting:
        place = waiting.pop()
        if place in needed:
            continue
        needed.add(place)
        row = rows[place]
        if row[0] == "where":
            found = tuple(_branch(rows, x) for x in row[2:])
            branches[place] = found
            waiting.append(row[1])
            waiting.extend(x for x, one in zip(row[2:], found, strict=True) if one is None)
        else:
            waiting.extend(operands(row))
    steps = (Step(place, rows[place], branches.get(place, ())) for place in sorted(needed))
    return Steps(tuple(steps), len(rows) - 1)


def _branch(rows: tuple[Row, ...], place: int) -> Branch | None:
    """Return the branch that a row is, None if it is finite everywhere or nowhere."""
    if not any(rows[x][0] in _PARTIAL for x in reached(rows, [place])):
        return None
    own, _ = pruned(rows, (place,))
    made, places = with_slopes(own)
    for point in _POINTS:
        found = numbers(made, *point)
        if all(math.isfinite(found[x]) for x in places):
            return Branch(steps_of(own), point)
    return None


def compute(xp: Ops, steps: Steps, a: Array, b: Array) -> Array:
    """Compute steps of features a and b."""
    found: dict[int, Any] = {}
    for place, row, branches in steps.steps:
        operation, *rest = row
        if operation == "number":
            found[place] = rest[0]
        elif operation == "a":
            found[place] = a
        elif operation == "b":
            found[place] = b
        elif operation == "where":
            found[place] = _where(xp, found, rest, branches, a, b)
        else:
            found[place] = _operation(xp, operation, [found[x] for x in rest])
    return found[steps.place]


def _where(
    xp: Ops, found: dict[int, Any], places: list[int], branches: tuple[Branch | None, ...],
    a: Array, b: Array,
) -> Array:  # fmt: skip
    condition, *sides = (found.get(place) for place in places)
    for i, branch in enumerate(branches):
        if branch is not None:
            pairs = zip((a, b), branch.point, strict=True)
            chosen = ((x, y) if i == 0 else (y, x) for x, y in pairs)
            sides[i] = compute(xp, branch.steps, *(xp.where(condition, x, y) for x, y in chosen))
    x, y = sides
    if isinstance(x, float) and isinstance(y, float):
        return xp.astype(condition, xp.dtype(a)) * (x - y) + y
    return xp.where(condition, x, y)


def _operation(xp: Ops, operation: str, x: list[Any]) -> Any:
    if operation == "add":
        return x[0] + x[1]
    if operation == "sub":
        return x[0] - x[1]
    if operation == "mul":
        return x[0] * x[1]
    if operation == "div":
        return x[0] / x[1]
    if operation == "neg":
        return -x[0]
    if operation in COMPARISONS:
        return _compare(operation, *x)
    if operation == "softplus":
        positive = x[0] > 0
        near = xp.exp(xp.where(positive, -x[0], x[0]))  # e^−|x|, with its derivative at 0
        return xp.where(positive, x[0], 0.0) + xp.log1p(near)
    if operation == "sigmoid":
        positive = x[0] > 0
        near = xp.exp(xp.where(positive, -x[0], x[0]))
        return xp.where(positive, 1.0, near) / (1.0 + near)
    return getattr(xp, operation)(x[0])


def _compare(operation: str, x: Any, y: Any) -> Any:
    if operation == "gt":
        return x > y
    if operation == "ge":
        return x >= y
    return x < y if operation == "lt" else x <= y
