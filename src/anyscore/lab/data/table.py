"""The rows of a table in any of its formats: tabs, commas, JSON lines, Parquet."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, BinaryIO

from anyscore.lab.data.opening import LONGEST_LINE, PARQUET, Input
from anyscore.lab.data.options import Format

Record = list[Any] | dict[str, Any]
"""The cells of a row, by number or by name."""

Rows = Iterator[tuple[int, Record]]
"""Non-blank records, each with the number of its first line, or of its row."""

_SUFFIXES: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}


_UNCLOSED = "close its quotation marks, or name the file .tsv if tabs divide its columns"


class Number(str):
    """A number of a JSON file, as it was written there."""


def find_format(source: Input, format: Format) -> Format:
    """Return the format of an open input: the chosen one, or by its name or its first bytes."""
    if format != "auto":
        return format
    name = source.name.lower().removesuffix(".gz")
    for suffix, format_ in _SUFFIXES.items():
        if name.endswith(suffix):
            return format_
    if source.head.startswith(PARQUET):
        return "parquet"
    if "." in name.rsplit("/", 1)[-1]:
        return "tsv"
    line = source.head.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0]
    if line[:1] in (b"{", b"[") and b"\t" not in line:
        return "jsonl"
    return "csv" if b"," in line and b"\t" not in line else "tsv"


def read_rows(source: Input, stream: BinaryIO, format: Format) -> Rows:
    """Yield the rows of an open input.

    Raises:
        InputError: a row cannot be read; the message names the line.
    """
    if format == "parquet":
        from anyscore.lab.data.parquet import parquet_rows

        return parquet_rows(source, stream)
    if source.head.startswith(PARQUET):
        raise source.error("expected text, found a Parquet file; end its name in .parquet")
    return {"csv": _csv_rows, "jsonl": _json_rows}.get(format, _tsv_rows)(source, stream)


def _tsv_rows(source: Input, stream: BinaryIO) -> Rows:
    """Yield rows divided by tabs; a quotation mark is a character like another."""
    for line, text in source.lines(stream):
        if text.strip():
            yield line, text.rstrip("\r\n").split("\t")


def _csv_rows(source: Input, stream: BinaryIO) -> Rows:
    csv.field_size_limit(LONGEST_LINE)  # Python's own is 131,072, for the whole process
    lines = source.lines(stream)
    first = next(lines, (1, ""))
    # Excel writes and reads such a first line.
    divider = re.fullmatch(r"sep=([^\w\s\"']|\t)[\r\n]*", first[1])
    line = taken = 0

    def texts() -> Iterator[str]:
        nonlocal taken
        for _, text in lines if divider else chain([first], lines):
            taken += len(text)
            if taken > 2 * LONGEST_LINE:  # quotation marks join lines
                raise source.error(
                    f"a row of more than {2 * LONGEST_LINE:,} characters begins here; {_UNCLOSED}",
                    line,
                )
            yield text

    reader = csv.reader(texts(), strict=True, delimiter=divider[1] if divider else ",")
    while True:
        line, taken = reader.line_num + (2 if divider else 1), 0
        try:
            cells = next(reader, None)
        except csv.Error as error:
            if "limit" in str(error):
                raise source.error(
                    f"a cell of more than {LONGEST_LINE:,} characters begins here; {_UNCLOSED}",
                    line,
                ) from None
            raise source.error(
                f"cannot be read as CSV ({error}): mend the quotation marks, or name the file "
                ".tsv if tabs divide its columns",
                line,
            ) from None
        if cells is None:
            return
        if any(cell.strip() for cell in cells):
            yield line, cells


def _json_rows(source: Input, stream: BinaryIO) -> Rows:
    """Yield the object or list on each line."""
    kind = ""
    for line, text in source.lines(stream):
        if not text.strip():
            continue
        try:
            record = json.loads(
                text,
                object_pairs_hook=_distinct,
                parse_int=Number,
                parse_float=Number,
                parse_constant=Number,
            )
        except _Twice as error:
            raise source.error(
                f"the key {shorten(json.dumps(str(error), ensure_ascii=False))} stands twice; "
                "keep one",
                line,
            ) from None
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", "nested too deeply")
            column = f" at position {error.colno}" if hasattr(error, "colno") else ""
            raise source.error(
                f"cannot be read as JSON ({reason}{column}): expected one whole object or list on "
                "each line; mend the line, or write a longer document so: jq -c '.[]'",
                line,
            ) from None
        if not isinstance(record, dict | list):
            raise source.error(
                f"expected an object or a list, found {shorten(text.strip())}; mend the line", line
            )
        found = "an object" if isinstance(record, dict) else "a list"
        kind = kind or found
        if found != kind:
            raise source.error(f"expected {kind} as before, found {found}; mend the line", line)
        if isinstance(record, list) and record and isinstance(record[0], dict):
            raise source.error(
                "expected one object a line, found a list of them; write each on a line of its "
                "own: jq -c '.[]'",
                line,
            )
        yield line, record


class _Twice(Exception):
    """A JSON object repeats a key."""


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict of pairs; raise _Twice if a key is repeated."""
    record = dict(pairs)
    if len(record) < len(pairs):
        raise _Twice(repeated(key for key, _ in pairs)[0])
    return record


def repeated(names: Iterable[str]) -> list[str]:
    """Return the repeated names, in their order."""
    return [name for name, count in Counter(names).items() if count > 1]


def shorten(text: str, width: int = 60) -> str:
    """Return the text, cut if it is longer than `width` characters."""
    return text if len(text) <= width else text[: width - 1] + "…"
