"""The partial derivatives of a formula as more rows; safe functions in terms of plain ones."""

from __future__ import annotations

import math

from anyscore.score.formula.tape import COMPARISONS, A, B, Row, Tape, pruned


def with_slopes(rows: tuple[Row, ...]) -> tuple[tuple[Row, ...], tuple[int, int, int]]:
    """Return all rows, and the indices of the value, of its derivative in a and in b.

    rows: the last row is the value.

    Raises:
        ValueError: a derivative is not a number.
    """
    more, slopes = with_every_slope(rows)
    made, (value, by_a, by_b) = pruned(more, (len(rows) - 1, *slopes[-1]))
    return made, (value, by_a, by_b)


def with_every_slope(rows: tuple[Row, ...]) -> tuple[list[Row], list[tuple[int, int]]]:
    """Return rows with derivatives appended, and for each row the indices of its derivatives.

    Raises:
        ValueError: a derivative is not a number.
    """
    tape = Tape(rows)
    zero, one = tape.number(0), tape.number(1)
    slopes: list[tuple[int, int]] = []
    for place, row in enumerate(rows):
        if row == A:
            slopes.append((one, zero))
        elif row == B:
            slopes.append((zero, one))
        elif row[0] == "number" or row[0] in COMPARISONS:
            slopes.append((zero, zero))
        else:
            da, db = (_slope(tape, place, row, [slopes[x][i] for x in row[1:]]) for i in (0, 1))
            slopes.append((da, db))
    return tape.rows, slopes


def _slope(tape: Tape, y: int, row: Row, dx: list[int]) -> int:
    """Return the derivative of row y from the derivatives of its operands."""
    operation, *x = row
    if not any(tape.known(d) != 0 for d in dx):
        return tape.number(0)
    if operation == "add":
        return tape.add(*dx)
    if operation == "sub":
        return tape.sub(*dx)
    if operation == "neg":
        return tape.neg(dx[0])
    if operation == "mul":
        return tape.add(tape.mul(dx[0], x[1]), tape.mul(x[0], dx[1]))
    if operation == "div":
        return tape.div(tape.sub(dx[0], tape.mul(y, dx[1])), x[1])
    if operation == "where":
        return tape.where(x[0], dx[1], dx[2])
    return tape.mul(_of_function(tape, operation, x[0], y), dx[0])


def _of_function(tape: Tape, name: str, x: int, y: int) -> int:
    """Return the row of the derivative of y = name(x) in x."""
    one = tape.number(1)
    if name == "exp":
        return y
    if name == "expm1":
        return tape.function("exp", x)
    if name == "log":
        return tape.div(one, x)
    if name == "log1p":
        return tape.div(one, tape.add(one, x))
    if name == "sqrt":
        return tape.div(tape.number(0.5), y)
    if name == "abs":
        return tape.sign(x)
    if name == "tanh":
        return tape.mul(tape.sub(one, y), tape.add(one, y))
    if name == "sigmoid":
        return tape.mul(y, tape.function("sigmoid", tape.neg(x)))
    if name == "softplus":
        return tape.function("sigmoid", x)
    if name == "erf":
        bell = tape.function("exp", tape.neg(tape.mul(x, x)))
        return tape.mul(tape.number(2 / math.sqrt(math.pi)), bell)
    if name == "sin":
        return tape.function("cos", x)
    return tape.neg(tape.function("sin", x))


def plain(
    rows: tuple[Row, ...], places: tuple[int, ...]
) -> tuple[tuple[Row, ...], tuple[int, ...]]:
    """Return the rows with softplus and sigmoid in terms of e^−|x| ≤ 1, which both share.

    softplus x = max(x, 0) + ln(1 + e^−|x|), sigmoid x = {1 or e^−|x|} / (1 + e^−|x|): `log1p_unit`
    is ln(1 + x) for x in [0, 1]. For printing alone: |x| has no derivative at 0.
    """
    tape, new = Tape(), dict[int, int]()
    for place, row in enumerate(rows):
        operation, *rest = row
        if operation == "number" or not rest:
            new[place] = tape.put(row)
        elif operation in ("softplus", "sigmoid"):
            new[place] = _plain(tape, operation, new[rest[0]])
        else:
            new[place] = tape.put((operation, *(new[x] for x in rest)))
    return pruned(tape.rows, tuple(new[place] for place in places))


def _plain(tape: Tape, operation: str, x: int) -> int:
    zero, one, flipped = tape.number(0), tape.number(1), tape.rows[x][0] == "neg"
    of = tape.rows[x][1] if flipped else x  # x and −x share rows
    e, above = (
        tape.function("exp", tape.neg(tape.function("abs", of))),
        tape.compare("gt", of, zero),
    )

    def where(positive: int, negative: int) -> int:
        return tape.where(above, *((negative, positive) if flipped else (positive, negative)))

    if operation == "softplus":
        return tape.add(where(x, zero), tape.put(("log1p_unit", e)))
    return tape.div(where(one, e), tape.add(one, e))
