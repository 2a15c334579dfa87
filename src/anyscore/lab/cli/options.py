"""The options of a command are made, for Typer, from the fields of the records that take them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import Field, fields
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer

JSON_HELP = "Print the content of comparison.json, and nothing else."
QUIET_HELP = "Print the verdict without progress and table."

_F = TypeVar("_F", bound=Callable[..., None])


def with_options(*records: type[Any]) -> Callable[[_F], _F]:
    """Let a command take the fields of records that have an `Option` as options of the same names.

    The command's own parameters come first; its own behind a `*` come last.
    """

    def decorate(command: _F) -> _F:
        own_parameters = inspect.signature(command, eval_str=True).parameters.values()
        fields_of_records = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=_annotation(field, record),
            )
            for record in records
            for field in _options(record)
        ]
        parameters = [
            *(x for x in own_parameters if x.kind is x.POSITIONAL_OR_KEYWORD),
            *fields_of_records,
            *(x for x in own_parameters if x.kind is x.KEYWORD_ONLY),
        ]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {x.name: x.annotation for x in parameters}
        return command

    return decorate


def record_of(record: type[Any], values: dict[str, Any], **others: Any) -> Any:
    """Make a record of a command's values, and of others."""
    names = [field.name for field in fields(record) if field.name not in others]
    return record(**{name: values[name] for name in names}, **others)


def _options(record: type[Any]) -> list[Field[Any]]:
    """Return the fields of a record that are options."""
    hints = get_type_hints(record, include_extras=True)
    return [field for field in fields(record) if get_origin(hints[field.name]) is Annotated]


def _annotation(field: Field[Any], record: type[Any]) -> Any:
    """Return the type of a field and its option, as Typer takes them."""
    hint, option = get_args(get_type_hints(record, include_extras=True)[field.name])
    kinds = get_args(hint) or (hint,)
    kind = next((x for x in (int, float, bool, Path) if x in kinds and str not in kinds), str)
    names = [option.name] if option.name else []
    keywords = {"help": option.help, "show_default": option.shown, "rich_help_panel": record.panel}
    return Annotated[kind | None if NoneType in kinds else kind, typer.Option(*names, **keywords)]
