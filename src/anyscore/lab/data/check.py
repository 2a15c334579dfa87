"""Checks of data options and files that come before anything slow is imported."""

from __future__ import annotations

from pathlib import Path

from anyscore.lab.data.opening import check_readable, readable_name
from anyscore.lab.data.options import DataOptions, built_in_task
from anyscore.lab.data.parquet import check_pyarrow
from anyscore.lab.data.tokenisers import check_subwords
from anyscore.lab.extras import check_installed


def check_files(options: DataOptions, model: str = "recurrent") -> None:
    """Check the options and the first bytes of every file, in milliseconds.

    model: the model that learns, which has a task of its own where no file is given.

    Raises:
        InputError: options do not go together, a file is missing, empty, a directory or no text,
            standard input is a terminal, or a package is missing.
    """
    options.check()
    if options.path is None and built_in_task(model) == "dates":
        otherwise = ", or give a file of pairs"
        check_installed("babel", "the dates", extra="lab", otherwise=otherwise)
    for files in options.parts.values():
        for path in files:
            if path is not None:
                _check_file(path, options)
    if "bpe" in (options.unit, options.source_unit, options.target_unit):
        check_subwords()


def _check_file(path: str | Path, options: DataOptions) -> None:
    """Raise InputError if a file cannot be read, or lacks the package that reads it."""
    check_readable(path)
    name = readable_name(path)
    plain = name.lower().removesuffix(".gz")
    if options.format == "parquet" or (options.format == "auto" and plain.endswith(".parquet")):
        check_pyarrow(name)
