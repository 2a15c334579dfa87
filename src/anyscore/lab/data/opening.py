"""A file, a pipe or standard input is read as lines of bounded length, with its checksum."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import select
import stat
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from anyscore.lab.data.decoding import NotText, decode
from anyscore.lab.data.options import STDIN
from anyscore.lab.errors import InputError

LONGEST_LINE = 2**24
"""Most bytes of a line and characters of a cell: a file without line ends must not fill memory."""

_HEAD = 2**16  # bytes looked at before reading
_WAIT = 10.0  # seconds until somebody writes into a named pipe
_GZIP = b"\x1f\x8b"
PARQUET = b"PAR1"
_KINDS = (
    (b"PK\x03\x04", "a zip archive or an Office document", "unpack it, or save its sheet as CSV"),
    (b"\x7fELF", "a program", "give a table of pairs"),
    (b"MZ\x90", "a program", "give a table of pairs"),
    (b"BZh91AY&SY", "a bzip2 archive", "unpack it, or pack it with gzip"),
    (b"\xfd7zXZ\0", "an xz archive", "unpack it, or pack it with gzip"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive", "unpack it, or pack it with gzip"),
    (b"7z\xbc\xaf", "a 7z archive", "unpack it"),
    (b"%PDF-", "a PDF document", "save its table as text"),
    (b"\x89PNG", "a picture", "give a table of pairs"),
    (b"\xff\xd8\xff", "a picture", "give a table of pairs"),
    (b"SQLite format 3\0", "an SQLite database", "export its table as CSV"),
    (b"\xd0\xcf\x11\xe0", "an old Office document", "save its sheet as CSV"),
    (b"\x80\x04\x95", "a pickle", "save its table as CSV"),
)


def readable_name(path: str | Path) -> str:
    """Return a path as it can be printed and saved, even if its bytes are not valid text."""
    if str(path) == STDIN:
        return "standard input"
    return os.fsencode(path).decode("utf-8", "replace")


class Input:
    """A file, a pipe or standard input, read once from its beginning to its end.

    Args:
        path: "-" is standard input.
        of: the expected content, for messages.

    Attributes:
        name: for messages.
        packed: whether gzip packed it; known while it is open.
        head: its first bytes, unpacked; known while it is open.
        share: the share of it that was read; 1 where its size is not known.
    """

    def __init__(self, path: str | Path, of: str = "pairs") -> None:
        self.path, self._of = path, of
        self.name = readable_name(path)
        self.packed = False
        self.head = b""
        self.share = 1.0
        self._size = 0
        self._sum = hashlib.sha256()

    @property
    def facts(self) -> dict[str, Any]:
        """The name, and the size and checksum of all that was read, as it is stored."""
        return {"file": self.name, "bytes": self._size, "sha256": self._sum.hexdigest()}

    def error(self, text: str, line: int | None = None, *, row: str = "line") -> InputError:
        """Return an InputError that names the file and the line."""
        place = "" if line is None else f", {row} {line}"
        return InputError(f"{self.name}{place}: {text}")

    def without_pairs(self) -> InputError:
        """Return the InputError of an input without a pair."""
        what = "on it; pipe some into it" if str(self.path) == STDIN else "in this file; give one"
        end = "" if str(self.path) == STDIN else " that has some"
        return self.error(f"there are no pairs {what}{end}")

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Open the input; give its bytes, unpacked.

        Raises:
            InputError: anything is wrong with the file or its bytes.
        """
        with self._clear_errors(), _raw(self) as raw:
            stream = _Replay(self._counted(raw))
            self.packed = stream.head.startswith(_GZIP)
            if not self.packed and self.name.lower().endswith(".gz") and stream.head:
                raise gzip.BadGzipFile
            if self.packed:
                packed = gzip.GzipFile(fileobj=cast(Any, io.BufferedReader(stream)))
                stream = _Replay(packed.read1)
            self.head = stream.head
            for magic, kind, advice in _KINDS:
                if self.head.startswith(magic):
                    advice = advice.replace("pairs", self._of)
                    raise self.error(f"expected text, found {kind}; {advice}")
            # Old Macs ended lines with a carriage return alone.
            text = not self.head.startswith(PARQUET)
            if text and b"\r" in self.head.rstrip(b"\r") and b"\n" not in self.head:
                stream.change = lambda piece: piece.replace(b"\r", b"\n")
            yield io.BufferedReader(stream, _HEAD)

    def lines(self, stream: BinaryIO) -> Iterator[tuple[int, str]]:
        """Yield the number and the text of each line, its end included.

        Raises:
            InputError: a line is too long or no text.
        """
        line = 0
        while raw := stream.readline(LONGEST_LINE + 1):
            line += 1
            if len(raw) > LONGEST_LINE:
                raise self.error(
                    f"expected lines of at most {LONGEST_LINE:,} bytes, this one is longer; give "
                    f"a text with one {self._of[:-1]} a line",
                    line,
                )
            try:
                yield line, decode(raw, self.name, first=line == 1, packed=self.packed)
            except NotText as error:
                raise self.error(str(error), line) from None

    def _counted(self, raw: BinaryIO) -> Callable[[int], bytes]:
        """Wrap `raw.read1` so that it counts the bytes, their share and their checksum."""
        whole = 0 if str(self.path) == STDIN else os.stat(self.path).st_size  # 0 of a pipe

        def read(size: int) -> bytes:
            piece: bytes = cast(Any, raw).read1(size)
            self._size += len(piece)
            self._sum.update(piece)
            if whole:
                self.share = min(1.0, self._size / whole)
            return piece

        return read

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        """Turn errors inside into InputErrors with a way out."""
        try:
            yield
        except FileNotFoundError:
            raise self.error("there is no such file; check the name") from None
        except IsADirectoryError:
            raise self.error(f"this is a directory; give a file of {self._of}") from None
        except PermissionError:
            raise self.error("no permission to read this file; change it, or give a copy") from None
        except EOFError:
            raise self.error("this gzip file is cut short; download or pack it again") from None
        except (gzip.BadGzipFile, zlib.error):
            raise self.error(
                "this is not a whole gzip file; pack it again, or take .gz off its name if it is "
                "not packed"
            ) from None
        except OSError as error:
            raise self.error(f"cannot be read ({error.strerror or error})") from None
        except ValueError as error:  # a NUL in the name
            if "null" not in str(error):
                raise
            raise self.error("no file has a NUL character in its name; check it") from None


def check_readable(path: str | Path) -> None:
    """Refuse a file that is missing, a directory, empty or no text, or a terminal.

    Pipes and standard input are not read from, for they can be read only once.

    Raises:
        InputError: the file is one of these.
    """
    source = Input(path)
    if str(path) == STDIN:
        _stdin(source)
        return
    with source._clear_errors():
        mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
        with source.opened():
            if not source.head:
                raise source.without_pairs()
            if not source.head.startswith(PARQUET):
                whole_lines = source.head[: source.head.rfind(b"\n") + 1]
                deque(source.lines(io.BytesIO(whole_lines)), maxlen=0)


@contextmanager
def _raw(source: Input) -> Iterator[BinaryIO]:
    """Open the file as it is stored."""
    if str(source.path) == STDIN:
        yield _stdin(source)
        return
    if stat.S_ISFIFO(os.stat(source.path).st_mode):
        # To open a pipe that nobody writes into would wait for ever.
        descriptor = os.open(source.path, os.O_RDONLY | os.O_NONBLOCK)
        with open(descriptor, "rb") as stream:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            if not poll.poll(_WAIT * 1000):
                raise source.error(
                    f"this is a pipe, and nothing came in {_WAIT:g} s; start what writes into it, "
                    "or give a file"
                )
            os.set_blocking(descriptor, True)
            yield stream
        return
    with open(source.path, "rb") as stream:
        yield stream


def _stdin(source: Input) -> BinaryIO:
    """Return standard input, if something is piped into it."""
    if sys.stdin is None or sys.stdin.closed:
        raise source.error(
            f"expected {source._of}, but it is closed; pipe a table into it, or name a file"
        )
    if sys.stdin.isatty():
        raise source.error(
            "expected pairs, but it is a terminal; pipe a table into it, as in "
            "anyscore compare - < pairs.tsv, or name a file"
        )
    return sys.stdin.buffer


class _Replay(io.RawIOBase):
    """Bytes from `read`, of which the first are known beforehand as `head`.

    `change` is applied to every piece; it must keep its length.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self.change: Callable[[bytes], bytes] = bytes
        self.head = b""
        while len(self.head) < _HEAD and (piece := read(_HEAD - len(self.head))):
            self.head += piece
        self._waiting = self.head

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = len(buffer)
        piece = self._waiting[:size] or self._read(size)
        self._waiting = self._waiting[size:]
        buffer[: len(piece)] = self.change(piece)
        return len(piece)
