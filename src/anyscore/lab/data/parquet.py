"""The rows of a Parquet file, a batch in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any, BinaryIO

from anyscore.lab.data.disk import failures_told, new_file
from anyscore.lab.data.opening import Input
from anyscore.lab.data.table import repeated
from anyscore.lab.errors import InputError

_ROWS = 512  # in memory at a time; a row may hold a picture


def check_pyarrow(name: str) -> None:
    """Raise InputError if the package that reads Parquet is missing."""
    if find_spec("pyarrow") is None:
        raise InputError(
            f"{name}: a Parquet file needs the package pyarrow, which is not installed; "
            "pip install pyarrow, or give the table as .csv or .jsonl"
        )


def parquet_rows(source: Input, stream: BinaryIO) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each row's number and its cells by name.

    Raises:
        InputError: the file is not whole, or two columns have one name.
    """
    check_pyarrow(source.name)
    pa, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    # Parquet is read from its end, a pipe only from its beginning.
    with new_file() as whole:
        while piece := stream.read(2**20):
            with failures_told():
                whole.write(piece)
        if not whole.tell():
            return
        with failures_told():
            whole.seek(0)
        try:
            table = parquet.ParquetFile(whole)
            twice = sorted(repeated(table.schema_arrow.names))
            if twice:
                raise source.error(
                    f'two columns are called "{twice[0]}"; give each a name of its own'
                )
            row = 0
            for batch in table.iter_batches(_ROWS):
                for record in batch.to_pylist():
                    row += 1
                    yield row, record
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise source.error(
                f"cannot be read as Parquet ({reason[:120]}); write or download it again"
            ) from None
