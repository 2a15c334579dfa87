"""Two columns of a text table, line by line, and one clear sentence for what is wrong with it."""

from __future__ import annotations

import codecs
import csv
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from anyscore.lab.errors import InputError

Column = str | int  # a number from 1, in digits or not, or a name in the first line

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_columns(
    path: str | Path, *, source: Column = 1, target: Column = 2
) -> Iterator[tuple[str, str]]:
    """The `source` and `target` cell of each row of a UTF-8 table, as they stand there.

    Commas divide the columns of a .csv, which may quote its cells; tabs those of any other file,
    where a quotation mark is a character like another. Either may end in .gz besides. If a column
    is given by name the first line is the header. Blank lines are skipped, and neither cell is
    ever blank. Raises InputError, naming the line.
    """
    table = _Table(Path(path))
    columns = [_number(source, "source"), _number(target, "target")]
    rows = table.rows()
    if None in columns:
        line, header = next(rows, (0, []))
        if not line:
            raise table.without_pairs()
        header = [name.strip() for name in header]
        for place, column in enumerate((source, target)):
            if columns[place] is None:
                columns[place] = table.find(str(column), header, line)
    first, second = (column or 0 for column in columns)
    if first == second:
        raise InputError(
            f"the source and the target are both column {first}: choose two different columns"
        )
    needed = max(first, second)
    empty = True
    for line, cells in rows:
        if len(cells) < needed:
            raise table.too_few(line, cells, needed)
        pair = cells[first - 1], cells[second - 1]
        for side, column, cell in zip(("source", "target"), (first, second), pair, strict=True):
            if not cell.strip():
                raise table.error(
                    line, f"the {side} (column {column}) is empty: fill it in or remove the line"
                )
        empty = False
        yield pair
    if empty:
        raise table.without_pairs()


def _number(column: Column, side: str) -> int | None:
    """The number of a column given by number; None for one given by name."""
    if isinstance(column, str) and not column.strip().isdecimal():
        return None
    if int(column) < 1:
        raise InputError(f"columns are counted from 1, got {column} for the {side}")
    return int(column)


class _Table:
    def __init__(self, path: Path) -> None:
        self.path = path
        name = path.name.lower()
        self.packed = name.endswith(".gz")
        self.quoted = name.removesuffix(".gz").endswith(".csv")

    def error(self, line: int, text: str) -> InputError:
        return InputError(f"{self.path}, line {line}: {text}")

    def without_pairs(self) -> InputError:
        return InputError(f"{self.path}: there are no pairs in this file; give one that has some")

    def too_few(self, line: int, cells: list[str], needed: int) -> InputError:
        divider, other = ("commas", "tabs") if self.quoted else ("tabs", "commas")
        kind = "tsv" if self.quoted else "csv"
        found = _shorten((", " if self.quoted else " ⇥ ").join(cells))
        return self.error(
            line,
            f"expected at least {needed} columns divided by {divider}, "
            f"found {len(cells)}: {found}; mend the line, choose other columns, or "
            f"name the file .{kind} if {other} divide them",
        )

    def find(self, name: str, header: list[str], line: int) -> int:
        """The number of the column called `name`."""
        if name.strip() not in header:
            known = ", ".join(f'"{title}"' for title in header) or "none"
            raise self.error(
                line,
                f'there is no column "{name}" in the header; there is {_shorten(known, 200)}',
            )
        return header.index(name.strip()) + 1

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """The number of the first line and the cells of each row that is not blank."""
        if not self.quoted:
            for line, text in self.lines():
                if text.strip():
                    yield line, text.rstrip("\r\n").split("\t")
            return
        reader = csv.reader((text for _, text in self.lines()), strict=True)
        while True:
            line = reader.line_num + 1
            try:
                cells = next(reader, None)
            except csv.Error as error:
                raise self.error(
                    line,
                    f"cannot be read as CSV ({error}): mend the quotation marks, or name the file "
                    ".tsv if tabs divide its columns",
                ) from None
            if cells is None:
                return
            if any(cell.strip() for cell in cells):
                yield line, cells

    def lines(self) -> Iterator[tuple[int, str]]:
        """The number and the text of each line, its end included."""
        opener = gzip.open if self.packed else open
        try:
            # Bytes first, so that a wrong byte can be reported with its line.
            with opener(self.path, "rb") as stream:
                for line, raw in enumerate(stream, 1):
                    yield line, self.decode(line, raw)
        except FileNotFoundError:
            raise InputError(f"{self.path}: there is no such file; check the name") from None
        except IsADirectoryError:
            raise InputError(f"{self.path}: this is a directory; give a file of pairs") from None
        except PermissionError:
            raise InputError(
                f"{self.path}: no permission to read this file; change it, or give a copy"
            ) from None
        except EOFError:
            raise InputError(
                f"{self.path}: this gzip file is cut short; download or pack it again"
            ) from None
        except (gzip.BadGzipFile, zlib.error):
            raise InputError(
                f"{self.path}: this is not a whole gzip file; pack it again, or take .gz off its "
                "name if it is not packed"
            ) from None
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror or error})") from None

    def decode(self, line: int, raw: bytes) -> str:
        if line == 1:
            if raw.startswith(_UTF16):
                raise self.error(line, f"expected UTF-8, found UTF-16; {self.convert('UTF-16')}")
            raw = raw.removeprefix(codecs.BOM_UTF8)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            byte = f"found the byte 0x{raw[error.start]:02x} at position {error.start + 1}"
            raise self.error(
                line, f"expected UTF-8, {byte}; {self.convert('ISO-8859-1')}"
            ) from None
        if "\0" in text:
            position = text.index("\0") + 1
            raise self.error(
                line,
                f"expected text, found a NUL character at position {position}; remove it, or save "
                "the file as UTF-8 text",
            )
        return text

    def convert(self, encoding: str) -> str:
        if self.packed:
            return "unpack the file and save it as UTF-8"
        return f"save it as UTF-8, for example: iconv -f {encoding} -t UTF-8 {self.path} > utf8.tsv"


def _shorten(text: str, width: int = 60) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
