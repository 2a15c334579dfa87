"""The cells of the source and of the target in each row, as texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from anyscore.lab.data.opening import Input
from anyscore.lab.data.options import Column, Format, column_number
from anyscore.lab.data.table import Number, Record, Rows, shorten
from anyscore.lab.errors import InputError
from anyscore.lab.phrases import counted
from anyscore.ops.checks import suggest

SIDES = ("source", "target")

_UNFIT = re.compile("[\0\ud800-\udfff]")  # JSON can escape them, a text file cannot hold them


class Columns:
    """The two columns of a table that are the pairs.

    Args:
        table: the open input, for messages.
        format: of the table.
        source, target: columns by number or name; None is the first, and the second.
        skip_empty: leave out rows with an empty side instead of refusing the table.

    Attributes:
        counts: values that were "numbers" or "lists", and rows that were "empty" and left out.
    """

    def __init__(
        self,
        table: Input,
        format: Format,
        source: Column | None,
        target: Column | None,
        skip_empty: bool = False,
    ) -> None:
        self.table = table
        self.format = format
        self.columns: tuple[Column, Column] = (
            1 if source is None else source,
            2 if target is None else target,
        )
        self.skip_empty = skip_empty
        self.row = "row" if format == "parquet" else "line"
        self.counts: Counter[str] = Counter()

    def pairs(self, rows: Rows) -> Iterator[tuple[str, str]]:
        """Yield the pair of each row.

        Raises:
            InputError: a row has no pair; the message names the line.
        """
        keys: list[int | str] | None = None
        for line, record in rows:
            if keys is None:
                header = self._header(record)
                keys = self._keys(header, line, isinstance(record, dict))
                if header is record and isinstance(record, list):
                    continue
            texts = [
                self._text(line, record, key, side) for key, side in zip(keys, SIDES, strict=True)
            ]
            if all(texts):
                yield texts[0], texts[1]
            else:
                self.counts["empty"] += 1

    def _header(self, record: Record) -> Record:
        """Return the names of the columns: the first row, if a column was chosen by its name."""
        if isinstance(record, dict):
            return record
        named = any(column_number(c, s) is None for c, s in zip(self.columns, SIDES, strict=True))
        return record if named else []

    def _keys(self, header: Record, line: int, by_name: bool) -> list[int | str]:
        """Return the keys of the two columns in a row."""
        names = [str(name).strip() for name in header]
        keys: list[int | str] = []
        for column, side in zip(self.columns, SIDES, strict=True):
            number = column_number(column, side)
            if number is None:
                keys.append(self._find(str(column).strip(), names, header, line))
            elif by_name and number > len(names):
                raise self.error(
                    line,
                    f"expected at least {counted(number, 'column')}, found {len(names)}: "
                    f"{shorten(', '.join(names))}; choose other columns{_inner_columns(header)}",
                )
            else:
                keys.append(list(header)[number - 1] if by_name else number - 1)
        if keys[0] == keys[1]:
            raise InputError(
                f"the source and the target are both column {self.columns[1]}: choose two "
                "different columns"
            )
        return keys

    def _find(self, name: str, names: list[str], header: Record, line: int) -> int | str:
        """Return the key of the column called `name`."""
        if name in names:
            if names.count(name) > 1:
                raise self.error(
                    line, f'there are two columns "{name}" in the header; give their numbers'
                )
            place = names.index(name)
            return list(header)[place] if isinstance(header, dict) else place
        if isinstance(header, dict) and _inner(header, name) is not None:
            return name
        known = ", ".join(f'"{title}"' for title in names) or "none"
        raise self.error(
            line,
            f'there is no column "{shorten(name)}" in the header; {suggest(name, names)}there is '
            f"{shorten(known, 200)}",
        )

    def _text(self, line: int, record: Record, key: int | str, side: str) -> str:
        """Return the text of a cell; "" if the row is to be left out."""
        if isinstance(record, dict):
            value = record[key] if key in record else _inner(record, str(key))
        elif isinstance(key, int) and key < len(record):
            value = record[key]
        else:
            raise self._too_few(line, record, key)
        name = f"column {key + 1}" if isinstance(key, int) else f'column "{key}"'
        text = self._as_text(line, value, side, name)
        if not text.strip():
            if self.skip_empty:
                return ""
            raise self.error(
                line,
                f"the {side} ({name}) is empty: fill it in or remove the {self.row}",
            )
        if not text.isprintable() and (bad := _UNFIT.search(text)):
            what = "a NUL character" if bad[0] == "\0" else "half a character (a lone surrogate)"
            raise self.error(line, f"the {side} ({name}) holds {what}; remove it")
        return text

    def _as_text(self, line: int, value: Any, side: str, name: str) -> str:
        """Return a value as text: tokens of a list are joined by spaces."""
        if value is None:
            return ""
        text = _plain(value)
        if text is not None:
            self.counts["numbers"] += isinstance(value, Number) or not isinstance(value, str)
            return text
        if isinstance(value, list):
            tokens = [_plain(part) or "" for part in value]
            if all(len(token.split()) == 1 for token in tokens):
                self.counts["lists"] += 1
                return " ".join(tokens)
        if isinstance(value, dict):
            inner = next(iter(value), "name")
            column = name.removeprefix("column ").strip('"')
            remedy = f'choose a part of it, as in "{column}.{inner}"'
            found = "an object"
        else:
            found = (
                "a list of other things than tokens"
                if isinstance(value, list)
                else (f"a value of type {type(value).__name__}")
            )
            remedy = "choose another column, or make it text"
        raise self.error(
            line, f"the {side} ({name}): expected text, found {found}; {shorten(remedy, 100)}"
        )

    def _too_few(self, line: int, record: list[Any], key: int | str) -> InputError:
        """Return the error of a row with too few columns."""
        numbers = [column_number(c, side) or 1 for c, side in zip(self.columns, SIDES, strict=True)]
        needed = max(*numbers, key + 1 if isinstance(key, int) else 1)
        found = shorten((" ⇥ " if self.format == "tsv" else ", ").join(map(str, record)))
        dividers = {"csv": ("commas", "tsv", "tabs"), "tsv": ("tabs", "csv", "commas")}
        divided = advice = ""
        if self.format in dividers:
            divider, other, other_divider = dividers[self.format]
            divided = f" divided by {divider}"
            advice = f", or name the file .{other} if {other_divider} divide them"
            if len(record) == 1 and ";" in record[0]:
                advice = f", or save the file with {divider} if semicolons divide them"
        return self.error(
            line,
            f"expected at least {counted(needed, 'column')}{divided}, found {len(record)}: "
            f"{found}; mend the line, choose other columns{advice}",
        )

    def error(self, line: int, text: str) -> InputError:
        """Return an InputError that names the line or row."""
        return self.table.error(text, line, row=self.row)


def _inner_columns(header: Record) -> str:
    """Name two parts of the first object in a row, which may be the pair."""
    for name, value in header.items() if isinstance(header, dict) else ():
        if isinstance(value, dict) and len(value) > 1:
            one, other = list(value)[:2]
            return shorten(f', as in --source "{name}.{one}" --target "{name}.{other}"', 100)
    return ""


def _inner(record: dict[str, Any], path: str) -> Any:
    """Return the value at "a.b" in objects within objects; None if there is none."""
    value: Any = record
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _plain(value: Any) -> str | None:
    """Return the text of a text or a number; None for anything else."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float | Decimal) else None
