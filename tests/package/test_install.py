"""An installation from source works with a C++ compiler and without."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from anyscore.kernels import cpu
from helpers.checkout import copied

ROOT = Path(__file__).parents[2]

WITHOUT = """
import sys
sys.path[:0] = sys.argv[1:]  # the installed package, then NumPy's place
import numpy as np
import anyscore
from anyscore.kernels import cpu
assert anyscore.__file__.startswith(sys.argv[1])
assert "compiler" in cpu.problem(), cpu.problem()
x = np.ones((2, 3, 5))
plan = anyscore.plan(x, x, x, score=anyscore.Gaussian())
assert plan.route == "reference", plan
assert "compiler" in plan.reason, plan
assert anyscore.attention(x, x, x, score=anyscore.Gaussian()).shape == (2, 3, 5)
"""


@pytest.mark.skipif(
    shutil.which(os.environ.get("CXX") or "c++") is None, reason="there is no C++ compiler"
)
def test_where_there_is_a_compiler_there_is_a_core() -> None:
    """With a compiler the core is built; an installation would also end without the core."""
    assert cpu.problem() is None


@pytest.mark.skipif(cpu.problem() is not None, reason="the C++ core is not built")
def test_headers_come_with_the_core() -> None:
    """The installed core has the headers, since a user's pairs are compiled against them."""
    beside = Path(cpu._core.__file__).parent / "csrc"
    kept = [path for path in (ROOT / "csrc").glob("*/*.h") if path.parent.name != "bindings"]
    for path in [*kept, ROOT / "csrc/runtime/memory.cpp"]:
        installed = beside / path.relative_to(ROOT / "csrc")
        assert installed.read_bytes() == path.read_bytes(), path.name


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the sources alone, since a build walks through all files beside them."""
    folder = tmp_path_factory.mktemp("source") / "anyscore"
    copied(ROOT, folder)
    (folder / "build").mkdir()
    (folder / "build" / "leftover.o").touch()
    return folder


def test_without_a_compiler_the_reference_works(source: Path, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path)]
    environment = os.environ | {"CC": "/no/compiler", "CXX": "/no/compiler"}
    subprocess.run([*pip, *options, str(source)], check=True, env=environment)
    (wheel,) = tmp_path.glob("anyscore-*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    installed = tmp_path / "installed"
    shutil.unpack_archive(wheel, installed, "zip")
    numpy = next(path for path in sys.path if (Path(path) / "numpy" / "__init__.py").exists())
    # -S: without the packages of the environment, anyscore included.
    subprocess.run([sys.executable, "-S", "-c", WITHOUT, str(installed), numpy], check=True)


def test_the_source_archive_can_be_built(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = pytest.importorskip("scikit_build_core.build")
    (source / "src" / "anyscore" / "_core.abi3.so").touch()
    monkeypatch.chdir(source)
    name = build.build_sdist(str(tmp_path))
    with tarfile.open(tmp_path / name) as archive:
        packed = {path.partition("/")[2] for path in archive.getnames()}
    needed = ["CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE"]
    needed += [str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*.*")]
    assert set(needed) <= packed
    assert not [path for path in packed if path.endswith(".so") or path.startswith("build/")]
