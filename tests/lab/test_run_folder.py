"""Files are whole or not there, and a folder for a run is empty."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anyscore.lab.errors import InputError, RunFailure
from anyscore.lab.run_folder import new_folder, write_whole


def raising(number: int) -> Callable[..., None]:
    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "metrics.json"
    write_whole(file, b"old")
    monkeypatch.setattr("os.fsync", raising(errno.EIO))
    with pytest.raises(RunFailure, match=r"metrics\.json: cannot be written \(Input/output"):
        write_whole(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_new_folder_is_empty_and_can_be_written_to(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "a" / "b")
    assert new_folder(folder) == folder
    assert list(folder.iterdir()) == []
    (folder / "x").touch()
    with pytest.raises(InputError, match="exists and is not empty; give another with --out"):
        new_folder(folder)
    with pytest.raises(InputError, match="expected a folder for the run, found a file"):
        new_folder(folder / "x")
    with pytest.raises(InputError, match=r"cannot be written to \(Not a directory\)"):
        new_folder(folder / "x" / "y")
    with pytest.raises(InputError, match="cannot be written to"):
        new_folder(Path("/proc/anyscore"))
