"""Parameters of each day and of each week; of scores, one of each pair is daily."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from helpers.cases import OPTIONS, SCORES, WIDE
from helpers.table_scores import PAIRS, TABLE

_PARAMETERS = type(pytest.param())
_CLASSES = {row.kind.__name__: name for name, row in TABLE.items()}
_NAMES = {
    **{name: name for name in TABLE},
    **_CLASSES,
    **{name: _CLASSES.get(x.kind, "") for name, x in (SCORES | OPTIONS | WIDE).items()},
}
"""The row of TABLE of a score's name, of its class, or of a case; "" of a callable."""


def by_pair(
    arguments: str | tuple[str, ...], values: Iterable[Any], *, score: int = 0, **options: Any
) -> pytest.MarkDecorator:
    """Parametrize a test; scores that share their pair with one of `PAIRS` are marked weekly.

    Args:
        arguments, values, options: those of `pytest.mark.parametrize`.
        score: index of the argument that names the score, or is a tuple that begins with its name.
            A value that names no score of the package is kept.
    """

    def parameter(value: Any) -> Any:
        if not isinstance(value, _PARAMETERS):
            value = pytest.param(*([value] if isinstance(arguments, str) else value))
        named = value.values[score]
        named = named[0] if isinstance(named, tuple) else named
        weekly = isinstance(named, str) and _NAMES.get(named, "") not in {"", *PAIRS}
        return value._replace(marks=[*value.marks, pytest.mark.weekly]) if weekly else value

    return pytest.mark.parametrize(arguments, [parameter(x) for x in values], **options)


def also_weekly(*values: Any) -> list[Any]:
    """Return parameters of a test that run each week; others of the test run each day."""
    return [pytest.param(value, marks=pytest.mark.weekly) for value in values]
