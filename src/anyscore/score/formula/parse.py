"""A formula as text, in a subset of Python's grammar; the text is parsed, not evaluated."""

from __future__ import annotations

import ast
import inspect
import math
import operator
from collections.abc import Callable
from typing import Any

from anyscore.ops.checks import brief
from anyscore.score.formula.functions import NAMES, where
from anyscore.score.formula.tape import A, B, Tape
from anyscore.score.formula.terms import Condition, Term, term

LONGEST_TEXT = 10_000

_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow, ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Lt: operator.lt, ast.LtE: operator.le,
}  # fmt: skip


def of_text(text: str, names: tuple[str, ...]) -> Term:
    """Return the term of a text of one or two named numbers.

    Raises:
        ValueError: the text is no formula.
    """
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"it has {len(text)} characters, more than {LONGEST_TEXT}.")
    try:
        read = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"it is no expression of Python: {error.msg}.") from None
    except (MemoryError, RecursionError):  # Python's own parser, of deep texts
        raise ValueError("it is nested too deeply for Python to read.") from None
    tape = Tape()
    known = dict(zip(names, _numbers(tape, names), strict=True))
    return _checked(_read(read, tape, known), tape)


def of_function(function: Callable[..., Any], names: tuple[str, ...]) -> Term:
    """Return the term that a function of one or two numbers returns.

    Raises:
        ValueError: the function returns no term.
    """
    try:
        taken = [
            name
            for name, x in inspect.signature(function).parameters.items()
            if x.default is x.empty and x.kind is not x.VAR_POSITIONAL
        ]
    except (TypeError, ValueError):
        taken = [*names]
    if len(taken) != len(names):
        expected = " and ".join(names)
        raise ValueError(f"it takes ({', '.join(taken)}), expected a function of {expected}.")
    tape = Tape()
    return _checked(function(*_numbers(tape, names)), tape)


def _numbers(tape: Tape, names: tuple[str, ...]) -> list[Term]:
    return [Term(tape, tape.put(row)) for _, row in zip(names, (A, B), strict=False)]


def _checked(found: Any, tape: Tape) -> Term:
    if isinstance(found, Condition):
        raise ValueError("it is a comparison: write where(condition, x, y).")
    return term(tape, found)


def _read(node: ast.expr, tape: Tape, known: dict[str, Term]) -> Any:
    """Return the term, or the condition, of a node of the parsed text."""

    def read(part: ast.expr) -> Any:
        return _read(part, tape, known)

    match node:
        case ast.Constant(value=float() | int() as x) if not isinstance(x, bool):
            return term(tape, float(x))
        case ast.Name(id=name) if name in known:
            return known[name]
        case ast.Name(id="pi"):
            return term(tape, math.pi)
        case ast.Name(id=name):
            if name in NAMES:
                raise ValueError(f"{name!r} is a function: write {name}(…).")
            raise ValueError(f"{brief(name)} is unknown: the formula is of {' and '.join(known)}.")
        case ast.UnaryOp(op=op, operand=x) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](read(x))
        case ast.BinOp(left=x, op=op, right=y) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](read(x), read(y))
        case ast.BinOp(op=ast.BitXor()):
            raise ValueError("^ is no power in Python: write **.")
        case ast.Compare(left=x, ops=[op], comparators=[y]) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](read(x), read(y))
        case ast.IfExp(test=condition, body=x, orelse=y):
            return where(read(condition), read(x), read(y))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in NAMES:
            return _called(name, [read(x) for x in args])
        case ast.Call(func=ast.Name(id=name)):
            raise ValueError(
                f"there is no function {brief(name)}: there are {', '.join(sorted(NAMES))}."
            )
    raise ValueError(
        f"{brief(ast.unparse(node))} is more than numbers, {', '.join(known)}, + − * / **, "
        f"comparisons in where(…) and the functions {', '.join(sorted(NAMES))}."
    )


def _called(name: str, args: list[Any]) -> Term:
    expected = len(inspect.signature(NAMES[name]).parameters)
    if len(args) != expected:
        raise ValueError(f"{name} takes {expected} of them, not {len(args)}.")
    return NAMES[name](*args)
