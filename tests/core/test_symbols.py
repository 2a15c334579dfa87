"""Kernels of two instruction sets share no function.

Each object has a copy of an inline function that was not inlined, and the linker keeps one copy. If
this copy has AVX instructions, a call of the function stops a processor without AVX.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.cpp import build as build_cpp

pytestmark = pytest.mark.sample

BUILD = Path(__file__).parents[2] / "build" / "core"  # the build of CONTRIBUTING.md


def symbols(path: Path) -> Iterator[tuple[str, str]]:
    """Yield name and kind of each symbol of an object; the linker may share kind W."""
    nm = shutil.which(os.environ.get("NM", "nm"))
    if nm is None:
        pytest.skip("no nm here")
    listed = subprocess.run([nm, str(path)], capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines():
        kind, name = line.split()[-2:]
        yield name, kind


def set_of(folder: str) -> str:
    """Return kernel_avx2 for kernel_avx2_float.dir: dtypes of one set may share functions."""
    return folder.removesuffix(".dir").removesuffix("_float").removesuffix("_double")


def shared(build: Path) -> list[str]:
    """Return functions in kernel_avx*.dir that an object of another set has or needs."""
    folders = [folder for folder in sorted((build / "CMakeFiles").glob("*.dir")) if folder.is_dir()]
    tables = {
        folder.name: [pair for path in sorted(folder.rglob("*.o")) for pair in symbols(path)]
        for folder in folders
    }
    return [
        f"{name} of {one} and {other}"
        for one in tables
        if one.startswith("kernel_avx")
        for other in tables
        if set_of(other) != set_of(one)
        for name in sorted(
            {name for name, kind in tables[one] if kind == "W"}
            & {name for name, _ in tables[other]}
        )
    ]


@pytest.mark.sanitize
def test_no_instruction_sets_share_a_function() -> None:
    core = os.environ.get("ANYSCORE_CORE")
    build = Path(core).parent if core else BUILD
    if not any(build.glob("CMakeFiles/kernel_avx*.dir/**/*.o")):
        pytest.skip("no objects of the core here")
    assert not shared(build)


@pytest.mark.parametrize("other", ["kernel_baseline_float", "_core", "kernel_avx512_double"])
def test_what_they_share_is_found(tmp_path: Path, other: str) -> None:
    code = """
    template <class T> __attribute__((noinline)) T twice(T x) { return x + x; }
    int f%s(int x) { return twice(x); }
    """
    for number, name in enumerate(("kernel_avx2_float", other)):
        folder = tmp_path / "CMakeFiles" / f"{name}.dir"
        folder.mkdir(parents=True)
        build_cpp(folder / "kernel.cpp.o", code % number, "-O2", "-c")
    found = shared(tmp_path)
    assert len(found) == (2 if other == "kernel_avx512_double" else 1), found
    assert all("twice" in one for one in found)


def test_types_of_the_sums_may_share(tmp_path: Path) -> None:
    for sums in ("float", "double"):
        folder = tmp_path / "CMakeFiles" / f"kernel_avx2_{sums}.dir"
        folder.mkdir(parents=True)
        code = "template <class T> T one() { return 1; }\nint %s() { return one<int>(); }"
        build_cpp(folder / "kernel.cpp.o", code % f"of_{sums}", "-O0", "-c")
    assert not shared(tmp_path)
