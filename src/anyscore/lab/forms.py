"""Forms describe the plain data that a file must have; a form is written like its data.

    TRIAL = having({"score": TEXT, "seed": WHOLE}, {"learning_rate": maybe(NUMBER)})
    TRIAL({"score": "dot", "seed": "3"}, "trial")
    ValueError: trial.seed: expected a whole number, found '3'

A form is a function of a value and its place; it raises ValueError, in one line, where the value
has another form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeGuard

from anyscore.ops.checks import brief

LARGEST = 1e50
"""The bound of numbers that are computed with: squares, and sums of many, are still numbers."""
_DEEPEST = 32

Form = Callable[[Any, str], None]


def is_number(x: object) -> TypeGuard[float]:
    """Return whether x is a number that can be computed with: finite, not huge, and no bool."""
    return isinstance(x, int | float) and not isinstance(x, bool) and abs(x) < LARGEST


def numbers(values: Iterable[object]) -> list[float]:
    """Return the values that are numbers, as `is_number` has them."""
    return [float(v) for v in values if is_number(v)]


def _one(expected: str, holds: Callable[[Any], bool]) -> Form:
    def check(value: Any, place: str) -> None:
        if not holds(value):
            raise ValueError(f"{place}: expected {expected}, found {brief(value)}")

    return check


NUMBER = _one("a number", is_number)
WHOLE = _one("a whole number", lambda x: is_number(x) and isinstance(x, int))
TEXT = _one("a text", lambda x: isinstance(x, str))
BOOL = _one("true or false", lambda x: isinstance(x, bool))
PLAIN = _one(f"data that are nested at most {_DEEPEST} deep", lambda x: not _deeper(x, _DEEPEST))
_LIST = _one("a list", lambda x: isinstance(x, list))
_OBJECT = _one("an object", lambda x: isinstance(x, dict))


def count(most: int) -> Form:
    """Return the form of a whole number from 1 to `most`."""
    return _one(
        f"a whole number from 1 to {most:,}",
        lambda x: isinstance(x, int) and not isinstance(x, bool) and 1 <= x <= most,
    )


def _deeper(x: Any, most: int) -> bool:
    """Return whether lists and dicts are nested deeper than `most`."""
    parts = x.values() if isinstance(x, dict) else x if isinstance(x, list) else ()
    return any(not most or _deeper(part, most - 1) for part in parts)


def maybe(form: Form) -> Form:
    """Return the form of a value that may be null."""

    def check(value: Any, place: str) -> None:
        if value is not None:
            form(value, place)

    return check


def each(form: Form, *, least: int = 0) -> Form:
    """Return the form of a list of at least so many values of a form."""

    def check(value: Any, place: str) -> None:
        _LIST(value, place)
        if len(value) < least:
            raise ValueError(f"{place}: expected {least} or more, found {len(value)}")
        for number, part in enumerate(value):
            form(part, f"{place}[{number}]")

    return check


def named(form: Form) -> Form:
    """Return the form of an object whose values, of any names, are of a form."""

    def check(value: Any, place: str) -> None:
        _OBJECT(value, place)
        for name, part in value.items():
            form(part, f"{place}.{brief(name)[1:-1]}")

    return check


def having(there: Mapping[str, Form], may_be: Mapping[str, Form] | None = None) -> Form:
    """Return the form of an object with values by name; others in it are plain data.

    Args:
        there: values that it has.
        may_be: values that it may have.
    """
    forms = {**there, **(may_be or {})}

    def check(value: Any, place: str) -> None:
        _OBJECT(value, place)
        missing = [name for name in there if name not in value]
        if missing:
            raise ValueError(f"{place}: expected {', '.join(missing)}, found no such value")
        for name, part in value.items():
            forms.get(name, PLAIN)(part, f"{place}.{brief(name)[1:-1]}")

    return check
