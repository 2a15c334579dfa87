"""User-defined pairs and outer functions for the core: compiled by the system, cached, loaded."""

from __future__ import annotations

import ctypes
import hashlib
from contextlib import closing
from pathlib import Path

from anyscore.kernels.own_formulas.compiler import CannotCompileError, libraries
from anyscore.kernels.own_formulas.source import cpp, kind
from anyscore.score.formula import Formula

__all__ = ["CannotCompileError", "load"]

_SHARED = "runtime/call.h", "runtime/parallel.h", "runtime/own_formulas.h"


def load(formula: Formula, sums: str, isa: str, core: Path, headers: str) -> int:
    """Return the address of the function of a formula that the core registers, see own_formulas.h.

    sums: "float" or "double". isa: the core's instruction set. core: the path of the core. headers:
    the core's digest of the headers that libraries share with it.

    Raises:
        CannotCompileError: there is no compiler, or compiling fails, or the headers differ.
    """
    folder = _headers(core)
    if "".join(_digest(folder / name) for name in _SHARED) != headers:
        raise CannotCompileError(f"the headers in {folder} are not the core's: reinstall anyscore")
    reason: Exception | None = None
    with closing(libraries(cpp(formula, sums), folder, isa)) as found:
        for path in found:
            try:
                entry = getattr(ctypes.CDLL(str(path)), f"anyscore_own_{kind(formula)}")
            except (OSError, AttributeError) as error:  # no library, or of no formula
                reason = error
                continue
            address = ctypes.cast(entry, ctypes.c_void_p).value
            assert address is not None
            return address
    raise CannotCompileError(f"the library made of it cannot be loaded: {reason}")


def _headers(core: Path) -> Path:
    """Return the folder of the headers: beside the core, or in the source tree."""
    beside = core.parent / "csrc"
    return beside if beside.is_dir() else Path(__file__).parents[4] / "csrc"


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "none"
