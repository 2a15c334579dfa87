"""Files are whole or absent, and a folder for a run is empty."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anyscore.lab.errors import InputError, RunFailure
from anyscore.lab.run_folder import new_folder, write_whole

pytestmark = pytest.mark.sample


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


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o666])
def test_a_file_keeps_who_may_read_it(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "report.html"
    file.write_bytes(b"old")
    file.chmod(mode)
    write_whole(file, b"new")
    assert file.read_bytes() == b"new"
    assert stat.S_IMODE(file.stat().st_mode) == mode


def test_a_file_is_never_more_open_than_it_will_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A temporary file has the permissions of the final file from its first byte on."""
    file = tmp_path / "report.html"
    file.touch(0o600)
    modes = []
    whole = os.fsync

    def noted(number: int) -> None:
        modes.extend(stat.S_IMODE(x.stat().st_mode) for x in tmp_path.glob(".*"))
        whole(number)

    monkeypatch.setattr("os.fsync", noted)
    write_whole(file, b"secret")
    assert modes == [0o600]


def test_a_new_file_has_the_mode_that_the_user_asks_for(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "new", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


def test_a_new_folder_is_empty_and_can_be_written_to(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "a" / "b")
    assert new_folder(folder) == folder
    assert list(folder.iterdir()) == []
    (folder / "x").touch()
    with pytest.raises(
        InputError, match="the output folder is not empty; give another folder with --out"
    ):
        new_folder(folder)
    with pytest.raises(InputError, match="expected a folder for the run, found a file"):
        new_folder(folder / "x")
    with pytest.raises(InputError, match=r"cannot be written to \(Not a directory\)"):
        new_folder(folder / "x" / "y")
    with pytest.raises(InputError, match="cannot be written to"):
        new_folder(Path("/proc/anyscore"))
