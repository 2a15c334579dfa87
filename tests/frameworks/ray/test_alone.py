"""A comparison begins and ends Ray on this machine alone, in a process of its own."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from anyscore.lab.comparison import Comparison
from helpers.hang import HANG
from lab.command_line import SMALL, call, plain, start


def given(pairs: Path, out: Path) -> tuple[Any, ...]:
    return ("compare", pairs, "--scores", "dot", *SMALL, "--out", out, "--engine", "ray")


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the processes")
def test_ctrl_c_ends_ray_too(pairs: Path, tmp_path: Path) -> None:
    process = start(*given(pairs, tmp_path / "run"), "--epochs", "60000")
    assert process.stdout is not None
    while "Ctrl-C" not in process.stdout.readline():
        assert process.poll() is None
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=HANG)
    assert process.returncode == 130, error
    assert "Interrupted: the results cover the finished trials" in plain(out)
    assert Comparison(tmp_path / "run").names() == set()
    mine = [x for x in Path("/proc").glob("[0-9]*/cmdline") if _says(x, f"_{process.pid}/")]
    assert mine == []  # names of Ray's processes have this id in the session


def _says(path: Path, text: str) -> bool:
    try:
        return text.encode() in path.read_bytes()
    except OSError:  # the process has ended
        return False


@pytest.mark.parametrize("address", ["127.0.0.1:9", "nowhere:x", "auto"])
def test_an_address_where_nobody_answers_is_told(pairs: Path, tmp_path: Path, address: str) -> None:
    result = call(*given(pairs, tmp_path / "run"), "--address", address)
    assert result.exit_code == 2, result.output
    assert f"--address {address}: no Ray cluster can be used there" in plain(result.stderr)
