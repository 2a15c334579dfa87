"""Helpers compile C++ against the headers of `csrc` and call it through ctypes."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

from helpers.machine import compiler

CSRC = Path(__file__).parents[2] / "csrc"


def build(target: Path, code: str, *flags: str) -> None:
    """Write an object or a library, by `flags`; skip the test without a compiler."""
    source = target.with_suffix(".cpp")
    source.write_text(code, encoding="utf-8")
    command = [*compiler(), "-std=c++17", "-fPIC", f"-I{CSRC}", str(source), *flags]
    done = subprocess.run([*command, "-o", str(target)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def library(folder: Path, code: str, *flags: str) -> Any:
    """Return a library with the functions that `code` declares extern "C"."""
    target = folder / "library.so"
    build(target, code, "-shared", "-pthread", *flags)
    return ctypes.CDLL(str(target))
