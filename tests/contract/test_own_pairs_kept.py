"""Libraries of formulas: the owners of loaded files, the folders, and the time files are kept."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from anyscore.kernels.own_formulas import compiler
from helpers import machine
from helpers.hang import HANG

HEADERS = Path(__file__).parents[2] / "csrc"
SOURCE = 'extern "C" int anyscore_own_pair() { return 0; }'
OTHER = 65534

Library = Callable[[], Path]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the cache, which does not exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    machine.compiler()
    return tmp_path / "cache/anyscore/pairs"


def first(source: str = SOURCE) -> Path:
    """Return the real path of the library that would be loaded."""
    with closing(compiler.libraries(source, HEADERS, "baseline")) as found:
        return next(found).resolve()


def planted(cache: Path) -> Path:
    """Replace the library by a file of other content, named after its hash; return its path."""
    made = first()
    content = b"of somebody else"
    path = made.with_name(
        f"{made.name.partition('-')[0]}-{hashlib.sha256(content).hexdigest()[:40]}.so"
    )
    made.unlink()
    path.write_bytes(content)
    path.chmod(0o600)
    assert first() == path, "that of this user is taken"
    return path


def of_another(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a file to a user other than the test's."""
    if os.geteuid() == 0:
        os.chown(path, OTHER, OTHER, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: OTHER)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_nothing_is_loaded_from_a_folder_that_others_write_to(cache: Path, mode: int) -> None:
    path = planted(cache)
    cache.chmod(mode)
    assert cache not in first().parents
    assert list(cache.iterdir()) == [path], "nor is anything written there"


def test_nothing_is_loaded_from_a_folder_of_another_user(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(cache)
    of_another(cache, monkeypatch)
    assert cache not in first().parents


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_nothing_is_loaded_where_others_can_exchange_the_folder(cache: Path, mode: int) -> None:
    """The folder belongs to this user, but the folder above it is open to others."""
    path = planted(cache)
    cache.parent.chmod(mode)
    assert cache not in first().parents
    assert list(cache.iterdir()) == [path]


def test_a_link_of_another_user_leads_to_no_folder(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a shared cache folder, a link leads to this user's own files: none is added or removed."""
    monkeypatch.setattr(compiler, "KEPT", 1)
    letters = tmp_path / "letters"
    letters.mkdir(0o755)
    for name in "abc":
        (letters / name).touch()
    cache.parent.mkdir(parents=True)
    cache.symlink_to(letters)
    of_another(cache.parent, monkeypatch)
    assert letters not in first().parents
    assert {path.name for path in letters.iterdir()} == {*"abc"}


def test_a_link_above_the_folder_is_not_followed(cache: Path, tmp_path: Path) -> None:
    elsewhere = planted(cache)
    cache.parent.rename(tmp_path / "elsewhere")
    cache.parent.symlink_to(tmp_path / "elsewhere")
    assert first().name != elsewhere.name


def test_no_other_file_is_removed_from_the_folder(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "KEPT", 1)
    cache.mkdir(parents=True, mode=0o700)
    for folder in (cache, cache.parent):
        folder.chmod(0o700)
    (cache / "letter").touch()
    os.utime(cache / "letter", (0, 0))
    path = first()
    assert set(cache.iterdir()) == {path, cache / "letter"}


def test_without_open_folders_by_name_all_folders_above_are_checked(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """macOS has no /proc: nobody else may be able to exchange the folder between check and use."""
    monkeypatch.setattr(compiler, "_BY_DESCRIPTOR", "/no/proc/{}")
    path = planted(cache)
    shared = cache.parents[1]
    shared.chmod(0o1777)
    assert first() == path, "in a folder with the sticky bit only an owner renames"
    shared.chmod(0o777)
    assert cache not in first().parents
    shared.chmod(0o700)
    assert first() == path
    of_another(shared, monkeypatch)
    assert cache not in first().parents


@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
def test_a_file_that_others_write_to_is_not_loaded(cache: Path, mode: int) -> None:
    path = planted(cache)
    path.chmod(mode)
    assert first() != path


def test_a_file_of_another_user_is_not_loaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = planted(cache)
    of_another(path, monkeypatch)
    assert first() != path


@pytest.mark.parametrize("mode", [0o777, 0o755])
def test_a_link_is_not_followed_to_a_library(
    cache: Path, tmp_path: Path, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link is not followed, whatever its mode: on macOS others cannot write to it."""
    path = planted(cache)
    path.rename(tmp_path / "elsewhere.so")
    path.symlink_to(tmp_path / "elsewhere.so")
    status = [stat.S_IFLNK | mode, *path.lstat()[1:]]
    lstat = Path.lstat
    monkeypatch.setattr(
        Path, "lstat", lambda x: os.stat_result(status) if x.name == path.name else lstat(x)
    )
    assert first() != tmp_path / "elsewhere.so"


def test_the_folder_of_the_cache_is_for_this_user_alone(cache: Path) -> None:
    """The folder and the library are private to the user at any umask."""
    umask = os.umask(0)
    try:
        path = first()
    finally:
        os.umask(umask)
    assert path.parent == cache
    assert [x.stat().st_mode & 0o777 for x in (path, cache, cache.parent)] == [0o600, 0o700, 0o700]


def test_a_cache_relative_to_the_current_folder_is_ignored(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative XDG_CACHE_HOME is ignored, as its specification says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert first().parent == tmp_path / "home/.cache/anyscore/pairs"
    monkeypatch.setenv("HOME", "home")
    first()
    assert not (tmp_path / "cache").exists()


def test_a_folder_that_is_exchanged_while_it_is_looked_at(cache: Path, tmp_path: Path) -> None:
    """A library is loaded from the checked folder, not from a later folder of the same name."""
    path = planted(cache)
    content = path.read_bytes()
    with closing(compiler.libraries(SOURCE, HEADERS, "baseline")) as found:
        given = next(found)
        cache.rename(tmp_path / "away")
        cache.mkdir()
        (cache / path.name).write_bytes(b"exchanged")
        assert given.read_bytes() == content


def said_of(script: Path, what: str) -> str:
    script.write_text(f"#!/bin/sh\n{what}\n")
    script.chmod(0o755)
    return str(script)


def why(source: str = SOURCE) -> str:
    with pytest.raises(compiler.CannotCompileError) as raised:
        first(source)
    return str(raised.value)


def test_a_full_disk_is_no_reason_to_go_without(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk keeps no library, but this process uses it."""

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    assert cache not in first().parents
    assert list(cache.iterdir()) == [], "no part of it stays"


def test_what_the_linker_says_is_said(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = (
        "echo '/usr/bin/ld: final link failed: No space left on device' >&2\n"
        "echo 'collect2: error: ld returned 1 exit status' >&2\nexit 1"
    )
    script = 'case "$*" in *--version*) exit 0;; esac\n' + says
    monkeypatch.setenv("CXX", said_of(tmp_path / "linker", script))
    assert "cannot compile it: /usr/bin/ld: final link failed: No space left on device" in why()


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("'", 'CXX is "\'", which is no command: No closing quotation'),
        ("true", "the C++ compiler {true} makes no library"),
        ("false", "the C++ compiler {false} does not run: it ends with 1"),
        ("/bin", "there is no C++ compiler: CXX is /bin"),
    ],
)
def test_what_is_no_compiler(
    cache: Path, command: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", command)
    assert why() == reason.format(true=shutil.which("true"), false=shutil.which("false"))


def test_a_blank_is_no_wish_for_a_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "  ")
    assert first().parent == cache


def test_a_compiler_that_speaks_no_utf8(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", said_of(tmp_path / "odd", r"printf '\377 error \377' >&2; exit 1"))
    assert "does not run: it ends with 1" in why()
    script = 'case "$*" in *--version*) printf "\\377";; *) printf "\\377 error" >&2; exit 1;; esac'
    monkeypatch.setenv("CXX", said_of(tmp_path / "odder", script))
    assert "cannot compile it: \ufffd error" in why()


def test_headers_that_cannot_be_read(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers/no.h").symlink_to(tmp_path / "nowhere")
    with pytest.raises(compiler.CannotCompileError, match=r"the headers in .* cannot be read"):
        next(compiler.libraries(SOURCE, tmp_path / "headers", "baseline"))


def test_a_compiler_that_hangs_is_ended_with_all_that_it_started(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "LONGEST", 0.2)
    hangs = f'case "$*" in *--version*) ;; *) sleep 5000 & echo $! > {tmp_path}/pid; wait;; esac'
    monkeypatch.setenv("CXX", said_of(tmp_path / "hangs", hangs))
    assert "it takes more than 0.2 seconds" in why()
    started = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    until = time.monotonic() + HANG  # a busy machine ends a killed process late
    while started.exists() and started.read_text().split()[2] != "Z":
        assert time.monotonic() < until
        time.sleep(0.01)


def test_the_cache_holds_what_was_used_last(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "KEPT", 3)
    source = [SOURCE.replace("0", str(n)) for n in range(5)]
    paths = [first(x) for x in source[:3]]
    for n, path in enumerate(paths):
        os.utime(path, (n, n))
    assert first(source[0]) == paths[0]
    paths += [first(x) for x in source[3:]]
    assert set(cache.iterdir()) == {paths[0], *paths[3:]}


def test_nothing_stays_in_the_folder_of_temporary_files(cache: Path, tmp_path: Path) -> None:
    first()
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


CHILD = """
import os, sys
from contextlib import closing
from pathlib import Path
from threading import Event, Thread
from anyscore.kernels.own_formulas import compiler

def compiles():
    with closing(compiler.libraries(sys.argv[1], Path(sys.argv[2]), "baseline")) as found:
        paths.append(next(found))
        there.set()
        ended.wait()

paths, there, ended = [], Event(), Event()
thread = Thread(target=compiles)
thread.start()
there.wait()
if not (child := os.fork()):
    sys.exit()
_, status = os.waitpid(child, 0)
is_there = paths[0].exists()
ended.set()
thread.join()
print(status, is_there, paths[0].exists())
"""


def test_a_child_leaves_the_folder_of_its_parent(cache: Path) -> None:
    """A child of a fork while a thread compiles ends without removing its parent's folder."""
    cache.parent.mkdir(parents=True)
    cache.touch()  # nothing can be kept
    command = [sys.executable, "-c", CHILD, SOURCE, str(HEADERS)]
    assert subprocess.check_output(command, timeout=HANG, text=True) == "0 True False\n"
