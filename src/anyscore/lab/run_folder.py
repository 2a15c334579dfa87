"""Folders and files of a run: whole or not there, with one clear line when that is impossible."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from anyscore.lab.errors import InputError, RunFailure
from anyscore.plot.page import write_whole as write_beside


@contextmanager
def run_folder(out: Path | None, name: str) -> Iterator[Path]:
    """Give the folder of a run, runs/NAME-DATE-TIME unless given; remove it if it stays empty."""
    folder = new_folder(out or Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}")
    try:
        yield folder
    finally:
        with suppress(OSError):  # it holds something
            folder.rmdir()


def new_folder(path: Path) -> Path:
    """Make an empty folder that can be written to; return its path.

    Raises:
        InputError: the path holds something, is a file or cannot be written to.
    """
    try:
        if path.exists() and not path.is_dir():
            raise InputError(
                f"{path}: expected a folder for the run, found a file; give another name"
            )
        if path.is_dir() and any(path.iterdir()):
            raise InputError(
                f"{path}: the output folder is not empty; give another folder with --out, or "
                "remove this one first"
            )
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".probe"
        probe.write_bytes(b"can this folder be written to?")
        probe.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"{path}: cannot be written to ({reason}); give another folder with --out"
        ) from None
    return path


def part_of(folder: Path, *names: str) -> Path:
    """Return the path of a part of a run folder, to which no link leads.

    A folder may come from elsewhere, and a link in it would have other files read, written or
    removed. The folder itself may be reached by links: the user named it.

    Args:
        names: of a folder, of one in it, and so on.

    Raises:
        InputError: the part, or a folder around it, is a link.
    """
    path = folder
    for name in names:
        path /= name
        if os.path.islink(path):
            raise InputError(
                f"{path}: expected a file or folder of the run, found a link; replace it with a "
                "copy of its target, or remove it"
            )
    return path


def file_in(folder: Path, *names: str) -> Path:
    """Return the path of a file of a run folder, there or not; see `part_of`.

    Raises:
        InputError: something else is in its place, such as a pipe, which would block.
    """
    path = part_of(folder, *names)
    if os.path.lexists(path) and not os.path.isfile(path):
        raise InputError(f"{path}: expected a file, found something else; remove it")
    return path


def folder_in(folder: Path, *names: str) -> Path:
    """Return the path of a folder in a run folder, there or not; see `part_of`.

    Raises:
        InputError: something else is in its place.
    """
    path = part_of(folder, *names)
    if os.path.lexists(path) and not os.path.isdir(path):
        raise InputError(f"{path}: expected a folder, found something else; remove it")
    return path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file beside its place, then move it there: a reader never sees half of it.

    Raises:
        RunFailure: the disk is full or the file cannot be written.
    """
    try:
        write_beside(path, content)
    except OSError as error:
        raise RunFailure(f"{path}: {why(error)}") from None


_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, 524)
"""Errors of NFS without a lock server, and of others; 524 is Linux's ENOTSUPP, without a name."""


def why(error: OSError) -> str:
    """Return why a file cannot be written, and a way out."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full; free some space and give the same command again"
    if error.errno in _NO_LOCKS:
        return (
            f"its file system cannot lock files ({error.strerror or error}); give a folder on "
            "another one with --out"
        )
    return f"cannot be written ({error.strerror or error})"
