"""Parts that a machine may lack: a test that needs one is skipped, and the summary has the remedy.

With ANYSCORE_TESTS_COMPLETE=1 a missing part is a failure: continuous integration sets it.
"""

from __future__ import annotations

import os
import shutil
from typing import Any, TypeVar

import pytest

from anyscore.kernels import cpu

PROGRAMS = {
    "a browser": (("chromium", "chromium-browser", "google-chrome"), "apt-get install chromium"),
    "node": (("node",), "apt-get install nodejs"),
    "qemu-aarch64": (("qemu-aarch64",), "apt-get install qemu-user"),
    "aarch64-linux-gnu-g++": (
        ("aarch64-linux-gnu-g++",),
        "apt-get install g++-aarch64-linux-gnu libc6-dev-arm64-cross",
    ),
    "g++": (("g++",), "apt-get install g++"),
    "a C++ compiler": (("c++", "g++", "clang++"), "apt-get install g++"),
}
"""Part → (names of its program, remedy on Debian)."""

_LACKS = "this machine lacks"
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def program(part: str) -> str:
    """Return the path of a program of `PROGRAMS`; skip the test where there is none."""
    names, remedy = PROGRAMS[part]
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip(lacks(part, remedy))
    return path


def compiler() -> list[str]:
    """Return the command of the C++ compiler: CXX, or the first of the usual ones."""
    return os.environ.get("CXX", "").split() or [program("a C++ compiler")]


def package(name: str) -> Any:
    """Return a package of the extra `dev`; skip the test where it is missing."""
    return pytest.importorskip(name, reason=lacks(name))


def lacks(part: str, remedy: str = "make .venv/dev") -> str:
    """Return the reason of a skip, also for `pytest.importorskip`."""
    return f"{_LACKS} {part}: {remedy}"


CORE = lacks("the C++ core", "`anyscore info` says why")
needs_core = pytest.mark.skipif(cpu.problem() is not None, reason=CORE)


def judged(report: Report) -> Report:
    """Return the report; where no part may be missing, a skip for want of one is a failure.

    Skips get one place, so that pytest counts those of a part in one line of its summary.
    """
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    if _LACKS in reason:
        complete = os.environ.get("ANYSCORE_TESTS_COMPLETE")
        report.outcome = "failed" if complete else "skipped"
        report.longrepr = reason if complete else (__file__, None, reason)
    return report
