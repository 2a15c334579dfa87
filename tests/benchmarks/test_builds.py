"""`benchmarks/builds.py`: a build has the bits of itself; a missing file gives one sentence."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import machine
from helpers.hang import HANG

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "builds.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG)


@pytest.mark.weekly
def test_a_build_beside_itself() -> None:
    core = pytest.importorskip("anyscore._core", reason=machine.CORE)
    done = run(core.__file__, core.__file__, "--shapes", "2,3,5,8,4", "2,3,70,8,4", "--rounds", "3")
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows = done.stdout.splitlines()
    assert head.count("|") == 4
    assert len(rows) == 2 * 5 * 2  # shapes, pairs, passes
    ratio = r"\d+\.\d\d \(\d+\.\d\d to \d+\.\d\d\), same bits"
    for row in rows:
        assert re.fullmatch(rf"2,3,\d+,8,4 \| \w+ \| \w+ \| \d+\.\d \| {ratio} \| {ratio}", row), (
            row
        )


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT))["main"](list(arguments))
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "nowhere.so")
    assert "expected the file of a build, got nowhere.so, which is not there" in said


def test_an_instruction_set_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    core = pytest.importorskip("anyscore._core", reason=machine.CORE)
    said = refused(capsys, core.__file__, "--isa", "sse9")
    assert "has no --isa sse9, expected one of " in said


@pytest.mark.parametrize(
    ("option", "said"),
    [("--shapes=2,3", "expected five whole numbers"), ("--rounds=0", "of 1 or more")],
)
def test_other_mistakes_are_sentences(
    option: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, __file__, option)
