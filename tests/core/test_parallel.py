"""The core's threads do all the work, from many threads, in tasks and after a fork."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from helpers.hang import HANG
from helpers.machine import compiler

HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the checks are written for Linux")


def build(program: Path, *options: str) -> Path:
    core = HERE.parents[1] / "csrc"
    sources = [
        HERE / "parallel.cpp",
        core / "runtime/parallel.cpp",
        core / "runtime/own_formulas.cpp",
    ]
    command = [*compiler(), "-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]
    command += [f"-I{core}", *options, *map(str, sources), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("parallel") / "plain")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same program under ThreadSanitizer; skip the test if it is missing."""
    folder = tmp_path_factory.mktemp("watched")
    (folder / "empty.cpp").write_text("int main() {}\n")
    empty = [*compiler(), "-fsanitize=thread", folder / "empty.cpp", "-o", folder / "empty"]
    if subprocess.run(empty, capture_output=True).returncode:  # type: ignore[arg-type]
        pytest.skip("the compiler has no ThreadSanitizer")
    if subprocess.run([folder / "empty"], capture_output=True).returncode:
        pytest.skip("ThreadSanitizer does not run here")
    return build(folder / "watched", "-fsanitize=thread")


def check(program: Path, name: str) -> None:
    done = subprocess.run([program, name], capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "name", ["covers", "shares", "concurrent", "nested", "forked", "forked_pairs", "no_threads"]
)
def test_tasks_are_shared_out(program: Path, name: str) -> None:
    check(program, name)


@pytest.mark.parametrize("name", ["covers", "shares", "concurrent", "nested"])
def test_threads_do_not_race(watched: Path, name: str) -> None:
    check(watched, name)
