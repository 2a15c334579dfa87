"""Sources come from the user: a text, or the lines of a file or of standard input."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator

from anyscore.lab.data.opening import Input, readable_name
from anyscore.lab.data.options import STDIN
from anyscore.lab.errors import InputError


def is_text(text: str | None) -> bool:
    """Return whether the argument is a source itself, rather than a file's name or nothing.

    Raises:
        InputError: a directory is given.
    """
    if text is None or text == STDIN:
        return False
    try:
        mode = os.stat(text).st_mode
    except (OSError, ValueError):  # no such file, or no name that a file could have
        return True
    if stat.S_ISDIR(mode):
        raise InputError(
            f"{readable_name(text)}: this is a directory; give a text or a file of sources, one a "
            "line (pipe the text in if it is also the name of a directory)"
        )
    return False


def read_sources(text: str | None) -> Iterator[str]:
    """Yield the sources, each without its line end.

    Raises:
        InputError: nothing is given and nothing piped in; or the file cannot be read or is no text.
    """
    if text is not None and is_text(text):
        yield text
        return
    path = STDIN if text is None else text
    if path == STDIN and sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty():
        raise InputError(
            "expected a source, and standard input is a terminal; give a text or a file of "
            "sources, one a line, or pipe them in"
        )
    file = Input(path, of="sources")
    with file.opened() as stream:
        for _, line in file.lines(stream):
            yield line.rstrip("\r\n")
