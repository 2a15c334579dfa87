"""An installation from source works with a C++ compiler and without."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from sysconfig import get_path

import pytest

from anyscore.kernels import cpu
from core.cpp import build
from helpers import machine
from package.wheels import ROOT, SMOKE, installed, run, sources, wheel_of

WITHOUT = """
import numpy as np
import anyscore
from anyscore.kernels import cpu
assert "compiler" in cpu.problem(), cpu.problem()
x = np.ones((2, 3, 5))
plan = anyscore.plan(x, x, x, score=anyscore.Gaussian())
assert plan.route == "reference", plan
assert "compiler" in plan.reason, plan
assert anyscore.attention(x, x, x, score=anyscore.Gaussian()).shape == (2, 3, 5)
"""


def test_where_there_is_a_compiler_there_is_a_core() -> None:
    """With a compiler the core is built; an installation would also end without the core."""
    machine.compiler()
    assert cpu.problem() is None


@machine.needs_core
def test_headers_come_with_the_core() -> None:
    """The installed core has the headers, since a user's pairs are compiled against them."""
    beside = Path(cpu._core.__file__).parent / "csrc"
    kept = [path for path in (ROOT / "csrc").glob("*/*.h") if path.parent.name != "bindings"]
    for path in [*kept, ROOT / "csrc/runtime/memory.cpp"]:
        copy = beside / path.relative_to(ROOT / "csrc")
        assert copy.read_bytes() == path.read_bytes(), path.name


def test_without_a_compiler_the_reference_works(tmp_path: Path) -> None:
    """Also the command `anyscore info`, which the build names, with NumPy alone."""
    source = sources(tmp_path / "anyscore")
    wheel, said = wheel_of(source, tmp_path, CC="/no/compiler", CXX="/no/compiler")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "`anyscore info` says what to do." in said
    python = installed(wheel, tmp_path / "environment", "numpy")
    run(python, "-c", WITHOUT, env={"PATH": ""})
    info = run(python, "-m", "anyscore", "info", env={"PATH": ""})
    assert "compiler" in info
    assert "numpy: dot, " in info
    run(python, SMOKE, "reference", env={"PATH": ""})


SINCE_3_12 = {"PyObject_Vectorcall"}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="arrays of others are in it since 3.11")
def test_the_core_calls_only_python_s_stable_interface(tmp_path: Path) -> None:
    """One wheel serves Python 3.12 and later: it is compiled with these functions and no others."""
    sources = (ROOT / "csrc").glob("bindings/*")
    names = {x for path in sources for x in re.findall(r"\bPy\w*_\w+(?=\()", path.read_text())}
    assert names >= {"PyTuple_New", "Py_TYPE"}
    names -= {"Py_ssize_t"} | (SINCE_3_12 if sys.version_info < (3, 12) else set())
    lines = (f"#ifndef {name}\n    (void)&{name};\n#endif\n" for name in sorted(names))
    version = "0x030C0000" if sys.version_info >= (3, 12) else "0x030B0000"
    begin = f"#define Py_LIMITED_API {version}\n#include <Python.h>\nvoid all() {{\n"
    code = "".join([begin, *lines, "}\n"])
    build(tmp_path / "all.o", code, "-c", f"-I{get_path('include')}")
