"""Every entry point works as the first call of a process; see `first_calls.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from frameworks.torch import first_calls
from helpers import hang


@cache
def problems(cases: tuple[str, ...]) -> dict[str, str | None]:
    """Return the problem of each case, None if there is none; all cases fork one process."""
    command = [sys.executable, str(Path(first_calls.__file__)), *cases]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=hang.HANG)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, str | None] = json.loads(ran.stdout)
    return found


@pytest.mark.parametrize("case", first_calls.FEW)
def test_some_first_calls(case: str) -> None:
    assert problems(first_calls.FEW)[case] is None


@pytest.mark.weekly
@pytest.mark.parametrize("case", first_calls.CASES)
def test_a_first_call(case: str) -> None:
    assert problems(first_calls.CASES)[case] is None
