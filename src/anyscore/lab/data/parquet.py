"""The rows of a Parquet file, a batch in memory at a time."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from importlib import import_module
from typing import Any, BinaryIO

from anyscore.lab.data.opening import Input
from anyscore.lab.data.table import repeated
from anyscore.lab.errors import RunFailure
from anyscore.lab.extras import check_installed

_ROWS = 512  # in memory at a time; a row may hold a picture


def check_pyarrow(name: str) -> None:
    """Raise InputError if the package that reads Parquet is missing."""
    otherwise = ", or give the table as .csv or .jsonl"
    check_installed("pyarrow", f"{name}: Parquet", extra="parquet", otherwise=otherwise)


def parquet_rows(source: Input, stream: BinaryIO) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each row's number and its cells by name.

    Raises:
        InputError: the file is not whole, or two columns have one name.
    """
    check_pyarrow(source.name)
    pa, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    # Parquet is read from its end, a pipe only from its beginning.
    with tempfile.TemporaryFile() as whole:
        try:
            shutil.copyfileobj(stream, whole)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise RunFailure(
                f"{tempfile.gettempdir()}: the disk is full, a Parquet file is copied there; free "
                "some space, or name another folder with TMPDIR"
            ) from None
        if not whole.tell():
            return
        whole.seek(0)
        try:
            table = parquet.ParquetFile(whole)
            twice = sorted(repeated(table.schema_arrow.names))
            if twice:
                raise source.error(
                    f'two columns are called "{twice[0]}"; give each a name of its own'
                )
            row, rows = 0, table.metadata.num_rows
            for batch in table.iter_batches(_ROWS):
                for record in batch.to_pylist():
                    row += 1
                    source.share = row / rows
                    yield row, record
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise source.error(
                f"cannot be read as Parquet ({reason[:120]}); write or download it again"
            ) from None
