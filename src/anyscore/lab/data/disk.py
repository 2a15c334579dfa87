"""Temporary files for data that memory does not hold.

No file has a name: the system removes each with the last process that has it, however that ends.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

from anyscore.lab.errors import RunFailure
from anyscore.lab.run_folder import why

_CACHE = 2**15  # KiB of a database in memory
_LOOK = 10**6  # of the database's own steps between two looks for Ctrl-C


def folder() -> str:
    """Return the folder that TMPDIR names, else /var/tmp: /tmp is often kept in memory.

    SQLite chooses so too.
    """
    for place in (os.environ.get("TMPDIR"), "/var/tmp"):
        if place and os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK):
            return place
    return tempfile.gettempdir()


def new_file() -> IO[bytes]:
    """Open an empty temporary file.

    Raises:
        RunFailure: no file can be made.
    """
    with failures_told():
        return tempfile.TemporaryFile(dir=folder())


class Database:
    """A temporary database. Its methods raise RunFailure where the disk is full or fails."""

    def __init__(self) -> None:
        with failures_told():
            self._connection = sqlite3.connect("", check_same_thread=False)  # no name
            weakref.finalize(self, self._connection.close)
            self._connection.execute(f"PRAGMA cache_size = -{_CACHE}")
            for setting in ("journal_mode = OFF", "synchronous = OFF", "temp_store = FILE"):
                self._connection.execute(f"PRAGMA {setting}")
        # While SQLite sorts, Python would not see a signal.
        self._connection.set_progress_handler(lambda: 0, _LOOK)

    def do(self, statement: str, *values: Any) -> None:
        """Execute a statement."""
        with failures_told():
            self._connection.execute(statement, values)

    def add(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute a statement for each row, as the rows come."""
        with failures_told():
            self._connection.executemany(statement, rows)

    def rows(self, query: str, *values: Any) -> Iterator[Any]:
        """Yield the rows of a query, as they are taken."""
        with failures_told():
            yield from self._connection.execute(query, values)

    def function(self, name: str, function: Callable[[Any], Any]) -> None:
        """Let statements call a function of one argument."""
        self._connection.create_function(name, 1, function)


@contextmanager
def failures_told() -> Iterator[None]:
    """Turn errors of the disk and the database inside into a RunFailure of one line."""
    try:
        yield
    except OSError as error:
        reason = why(error)
    except sqlite3.DatabaseError as error:
        if str(error) == "interrupted":  # by the look for signals: Ctrl-C
            raise KeyboardInterrupt from None
        full = "full" in str(error)
        reason = "the disk is full" if full else f"cannot be written ({error})"
    else:
        return
    raise RunFailure(
        f"{folder()}: {reason.split(';')[0]}; the data do not fit into memory and are kept there: "
        "free some space, name another folder with TMPDIR, or give --limit"
    )
