"""The order of a formula's steps, so that a framework's automatic derivatives are right.

Derivatives go through both branches of a `where`, and 0 · ∞ of the branch that is not chosen is
NaN. Where a branch is not chosen, its features are therefore moved to a point with a finite value.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from anyscore.ops import Array, Ops
from anyscore.score.formula.slopes import with_every_slope
from anyscore.score.formula.tape import COMPARISONS, Row, numbers, operands, reached

MOST = 3000
"""The most steps of a formula; steps of a branch count once for each `where` around it."""
_PARTIAL = frozenset(("div", "log", "log1p", "sqrt", "exp", "expm1"))
_POINTS = [(x / 2, y / 2) for n in range(9) for x in range(-n, n + 1) for y in range(-n, n + 1)
           if max(abs(x), abs(y)) == n]  # fmt: skip


class Branch(NamedTuple):
    """A branch of a `where`: its steps, and the point at which it is computed if not chosen."""

    steps: Steps
    point: tuple[float, float]


class Step(NamedTuple):
    """A row and its index; branches: the two branches of a `where`, None if plain rows suffice."""

    place: int
    row: Row
    branches: tuple[Branch | None, ...] = ()


class Steps(NamedTuple):
    """Steps in order, the index of the last, and the number of steps including branches."""

    steps: tuple[Step, ...]
    place: int
    total: int


def steps_of(rows: tuple[Row, ...]) -> Steps:
    """Return the steps that compute the last row.

    Raises:
        ValueError: the steps are more than MOST.
    """
    branches: dict[int, Branch] = {}
    for place, point in _points(rows).items():  # in order: branches have branches
        branches[place] = Branch(_steps_to(place, rows, branches), point)
    steps = _steps_to(len(rows) - 1, rows, branches)
    if steps.total > MOST:
        raise ValueError(
            f"it takes more than {MOST} operations, as choices of where, relu, maximum and "
            "minimum are nested: each computes both its sides."
        )
    return steps


def _points(rows: tuple[Row, ...]) -> dict[int, tuple[float, float]]:
    """Return, by row, a point where the branch is finite, for branches not finite everywhere."""
    partial: set[int] = set()
    for place, row in enumerate(rows):
        if row[0] in _PARTIAL or not partial.isdisjoint(_values(row)):
            partial.add(place)
    sides = sorted({x for row in rows if row[0] == "where" for x in row[2:] if x in partial})
    if not sides:
        return {}
    more, slopes = with_every_slope(rows)
    found = [np.isfinite(x) for x in numbers(more, *np.transpose(_POINTS))]
    points = {}
    for side in sides:
        by_a, by_b = slopes[side]
        finite = np.broadcast_to(found[side] & found[by_a] & found[by_b], len(_POINTS))
        if finite.any():
            points[side] = _POINTS[int(finite.argmax())]
    return points


def _values(row: Row) -> tuple[int, ...]:
    """Return the operands of a row with respect to which it has a derivative."""
    if row[0] in COMPARISONS:
        return ()
    return row[2:] if row[0] == "where" else operands(row)


def _steps_to(last: int, rows: tuple[Row, ...], branches: dict[int, Branch]) -> Steps:
    """Return the steps that compute a row.

    Rows that only conditions read have no derivative, and are computed at unmoved features.
    """
    values: set[int] = set()
    waiting = [last]
    while waiting:
        place = waiting.pop()
        if place not in values:
            values.add(place)
            is_choice = rows[place][0] == "where"
            waiting.extend(x for x in _values(rows[place]) if not is_choice or x not in branches)
    choices = {place for place in values if rows[place][0] == "where"}
    conditions = [rows[place][1] for place in choices]
    steps = [
        Step(x, rows[x], tuple(map(branches.get, rows[x][2:])) if x in choices else ())
        for x in sorted(values.union(reached(rows, conditions)))
    ]
    inner = sum(branch.steps.total for step in steps for branch in step.branches if branch)
    return Steps(tuple(steps), last, len(steps) + inner)


def compute(xp: Ops, steps: Steps, a: Array, b: Array) -> Array:
    """Return the value of steps at features a and b."""
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
    if isinstance(x, float) and isinstance(y, float):  # their own dtype would be the framework's
        zeros = 0.0 * xp.astype(condition, xp.dtype(a))
        x, y = zeros + x, zeros + y
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
