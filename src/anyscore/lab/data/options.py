"""Options of a user's data, in one record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from anyscore.lab.errors import InputError

Column = str | int
"""A column by its number from 1, in digits or not, or by its name."""

Unit = Literal["character", "word", "token", "bpe", "label"]
"""The kind of a token; "token" is divided by spaces, "label" is the whole text."""

Format = Literal["auto", "tsv", "csv", "jsonl", "parquet"]

FEWEST_SOURCES = 10
"""The fewest distinct sources that can be split: a tenth of fewer is not one example."""

MAX_TOKENS = 100
"""The default bound of a side: attention costs the product of the two lengths."""

STDIN = "-"
"""The path that stands for standard input."""

LONGEST = 10_000
"""The largest bound of a side."""

_FEWEST_SUBWORDS, _MOST_SUBWORDS = 50, 100_000


@dataclass(frozen=True)
class DataOptions:
    """The files of pairs, which pairs are used, and what a token is.

    Attributes:
        path: a table of pairs, or the sources alone if there is a `target_path`; "-" is standard
            input; None stands for the dates, which need no file.
        target_path: the targets, line by line beside the sources of `path`.
        valid, test: published parts, used as they are, row by row; a part without a file is cut
            from the training data.
        valid_target, test_target: the targets of these parts, if they are in files of their own.
        source, target: columns of a table; None is the first, and the second.
        format: of tables; "auto" goes by the name, then by the first bytes.
        unit: of both sides; "auto" looks at the texts (see `units.choose_unit`).
        source_unit, target_unit: of one side, where it is not `unit`.
        subwords: how many kinds of token a side of unit "bpe" may have.
        max_tokens: an example with a longer side is left out, and counted.
        limit: how many distinct sources are kept, chosen by `split_seed`; None keeps all.
        split_seed: of the split and of what `limit` keeps; training has seeds of its own.
        skip_empty: leave out rows with an empty side and count them, instead of refusing the file.
    """

    path: str | Path | None = None
    target_path: str | Path | None = None
    valid: str | Path | None = None
    valid_target: str | Path | None = None
    test: str | Path | None = None
    test_target: str | Path | None = None
    source: Column | None = None
    target: Column | None = None
    format: Format = "auto"
    unit: Unit | Literal["auto"] = "auto"
    source_unit: Unit | Literal["auto"] | None = None
    target_unit: Unit | Literal["auto"] | None = None
    subwords: int = 1000
    max_tokens: int = MAX_TOKENS
    limit: int | None = None
    split_seed: int = 0
    skip_empty: bool = False

    @property
    def parts(self) -> dict[str, tuple[str | Path, str | Path | None]]:
        """The files of each part, "train" first: a table, or sources and targets."""
        files = {
            "train": (self.path, self.target_path),
            "valid": (self.valid, self.valid_target),
            "test": (self.test, self.test_target),
        }
        return {part: (path, other) for part, (path, other) in files.items() if path is not None}

    def check(self) -> None:
        """Raise InputError where options do not go together. No file is looked at."""
        if self.limit is not None:
            self._check_limit(self.limit)
        if self.split_seed < 0:
            raise InputError(f"the split's seed: expected 0 or more, got {self.split_seed}")
        if not _FEWEST_SUBWORDS <= self.subwords <= _MOST_SUBWORDS:
            raise InputError(
                f"subwords: expected {_FEWEST_SUBWORDS} to {_MOST_SUBWORDS:,}, got {self.subwords}"
            )
        if not 1 <= self.max_tokens <= LONGEST:
            raise InputError(
                f"the most tokens of a side: expected 1 to {LONGEST:,}, got {self.max_tokens}"
            )
        if self.format not in get_args(Format):
            raise InputError(
                f"the format: expected {', '.join(get_args(Format))}, got {self.format!r}"
            )
        units = ("auto", *get_args(Unit))
        for name in ("unit", "source_unit", "target_unit"):
            unit = getattr(self, name)
            if unit not in units and not (unit is None and name != "unit"):
                what = name.replace("_", " ")
                raise InputError(f"the {what}: expected {', '.join(units)}, got {unit!r}")
        if (self.source_unit or self.unit) == "label":
            raise InputError("a source cannot be one label; give the unit of the targets only")
        self._check_files()
        source = column_number(1 if self.source is None else self.source, "source")
        target = column_number(2 if self.target is None else self.target, "target")
        if source is not None and source == target:
            raise InputError(
                f"the source and the target are both column {source}: choose two different columns"
            )

    def _check_limit(self, limit: int) -> None:
        whole = self.path is not None and self.valid is not None and self.test is not None
        fewest = 1 if whole else FEWEST_SOURCES
        if limit < fewest:
            raise InputError(
                f"a limit of {limit} leaves too few pairs to split: at least {fewest} distinct "
                "sources are needed"
            )

    def _check_files(self) -> None:
        columns = self.source is not None or self.target is not None
        if self.path is None:
            if columns:
                raise InputError("columns can be chosen only in a file of pairs, none was given")
            for what in ("target_path", "valid", "test"):
                if getattr(self, what) is not None:
                    raise InputError(
                        "a file of targets, validation or test needs a file to train on; name it"
                    )
        for part, other in (("valid", self.valid_target), ("test", self.test_target)):
            if other is not None and getattr(self, part) is None:
                raise InputError(f"the {part} targets {other} have no sources; name their file too")
        for path, other in self.parts.values():
            if "" in (str(path), str(other)):
                raise InputError("expected the name of a file, got an empty one")
            if other is None and self.target_path is not None:
                raise InputError(
                    f"{path}: the training targets are in a file of their own, so these must be "
                    "too; name the file of their targets"
                )
            if other is not None and (columns or self.format != "auto"):
                raise InputError(
                    "two parallel files are plain text, a line for each side, without columns or "
                    "a format; leave those out, or give one table"
                )
            if other is not None and str(path) == str(other):
                raise InputError(f"{path}: the sources and the targets are the same file")
        named = [str(path) for pair in self.parts.values() for path in pair if path is not None]
        if named.count(STDIN) > 1:
            raise InputError("standard input (-) can be read only once; name the other files")


def column_number(column: Column, side: str) -> int | None:
    """Return the number of a column chosen by number; None for one chosen by name.

    Raises:
        InputError: the number is below 1, or too long to be meant.
    """
    text = str(column).strip()
    if not text.removeprefix("-").removeprefix("+").isdecimal():
        return None
    if len(text) > 9:
        raise InputError(
            f"the {side} column: expected a number from 1 or a name, got one of {len(text):,} "
            f"digits, {text[:9]}…"
        )
    if int(text) < 1:
        raise InputError(f"columns are counted from 1, got {column} for the {side}")
    return int(text)
