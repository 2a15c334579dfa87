"""The options of a user's data are one record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

from anyscore.lab.errors import InputError, check_name

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
"""The path of standard input."""

LONGEST = 10_000
"""The largest bound of a side."""


def built_in_task(model: str) -> str:
    """Return the name of the task that a model has where no file is given."""
    return "sorting" if model == "pointer" else "dates"


_FEWEST_SUBWORDS, _MOST_SUBWORDS = 50, 100_000


@dataclass(frozen=True)
class Option:
    """The help of a field that is an option of `anyscore compare`.

    Attributes:
        help: the meaning of the field.
        name: the option's name, if it differs from the field's.
        shown: the text shown as the default.
    """

    help: str
    name: str | None = None
    shown: str | bool = True


@dataclass(frozen=True)
class DataOptions:
    """The files of pairs, the choice of pairs, and the units of tokens.

    Attributes:
        path: a table of pairs, or the sources alone if there is a `target_path`. "-" is standard
            input. None is the built-in task of the model, which needs no file.
    """

    panel: ClassVar[str] = "Data"

    path: str | Path | None = None
    target_path: Annotated[
        str | Path | None,
        Option("File of targets, one a line, in the order of the sources.", name="--target-file"),
    ] = None
    valid: Annotated[
        str | Path | None,
        Option(
            "File of validation pairs, in the form of the training pairs.",
            shown="a tenth of the sources, at most 1,000",
        ),
    ] = None
    valid_target: Annotated[
        str | Path | None, Option("File of validation targets, one a line; needs --valid.")
    ] = None
    test: Annotated[
        str | Path | None,
        Option(
            "File of test pairs, in the form of the training pairs.",
            shown="a tenth of the sources, at most 1,000",
        ),
    ] = None
    test_target: Annotated[
        str | Path | None, Option("File of test targets, one a line; needs --test.")
    ] = None
    source: Annotated[
        Column | None,
        Option("Column of the sources: its number from 1, or its name in the header.", shown="1"),
    ] = None
    target: Annotated[
        Column | None,
        Option("Column of the targets: its number from 1, or its name in the header.", shown="2"),
    ] = None
    format: Annotated[
        Format,
        Option(
            "Format of the tables: tsv, csv, jsonl or parquet; auto reads it from the file's name, "
            "else from its content."
        ),
    ] = "auto"
    unit: Annotated[
        Unit | Literal["auto"],
        Option(
            "Unit of a token: character, word, token (text between spaces) or bpe (subwords learnt "
            "from the training pairs). auto takes words if most of them recur, else characters."
        ),
    ] = "auto"
    source_unit: Annotated[
        Unit | Literal["auto"] | None,
        Option("Unit of a token of the sources, as in --unit.", shown="--unit"),
    ] = None
    target_unit: Annotated[
        Unit | Literal["auto"] | None,
        Option(
            "Unit of a token of the targets, as in --unit, or label (the whole text).",
            shown="--unit",
        ),
    ] = None
    subwords: Annotated[int, Option("Largest number of subwords of a bpe side, 50 to 100,000.")] = (
        1000
    )
    max_tokens: Annotated[
        int,
        Option("Largest number of tokens of a side, 1 to 10,000; longer pairs are left out."),
    ] = MAX_TOKENS
    limit: Annotated[
        int | None,
        Option("Number of different sources in a random sample, 10 or more.", shown="all sources"),
    ] = None
    split_seed: Annotated[
        int, Option("Seed of the split into three parts and of the sample of --limit, 0 or more.")
    ] = 0
    skip_empty: Annotated[
        bool,
        Option("Leave out rows with an empty side; without it they stop the run.", shown="off"),
    ] = False

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
        """Raise InputError if options exclude each other. No file is opened."""
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
        check_name("the format", self.format, get_args(Format))
        units = ("auto", *get_args(Unit))
        for name in ("unit", "source_unit", "target_unit"):
            unit = getattr(self, name)
            if unit is not None or name == "unit":
                check_name(f"the {name.replace('_', ' ')}", unit, units)
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
