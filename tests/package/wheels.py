"""Builds of source archives and wheels, and environments that contain nothing else but NumPy."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from types import ModuleType

from helpers import machine
from helpers.checkout import copied
from helpers.hang import HANG

ROOT = Path(__file__).parents[2]
SMOKE = Path(__file__).with_name("smoke.py")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def run(*command: str | Path, folder: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Return what a command prints; a failure shows it."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=HANG,
        cwd=folder, env=env,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}: {done.stdout[-8000:]}"
    return done.stdout


def load(path: Path) -> ModuleType:
    """Return a script of the checkout as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def backend() -> ModuleType:
    """Return the module of the build backend."""
    machine.package("scikit_build_core")
    return load(ROOT / "build_system" / "anyscore_build.py")


def sources(folder: Path) -> Path:
    """Return a copy of the checkout without the headers of others, with leftovers of a build."""
    copied(ROOT, folder)
    shutil.rmtree(folder / "third_party", ignore_errors=True)
    (folder / "build").mkdir()
    (folder / "build" / "leftover.o").touch()
    (folder / "src" / "anyscore" / "_core.abi3.so").touch()
    return folder


def wheel_of(
    source: Path, folder: Path, *options: str, before: tuple[str, ...] = (), **variables: str
) -> tuple[Path, str]:
    """Build a wheel with the tools of this environment; return its path and the build's output.

    before: a command that runs the build, such as one that takes the network away.
    """
    wheel = [*PIP, "wheel", "-v", "--no-index", "--no-deps", "--no-build-isolation"]
    said = run(
        *before, *wheel, "--wheel-dir", folder, *options, source, env={**os.environ, **variables}
    )
    (built,) = folder.glob("anyscore-*.whl")
    return built, said


def installed(wheel: Path, folder: Path, *packages: str) -> Path:
    """Return the Python of a new environment with a wheel and some packages of this environment."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    shutil.unpack_archive(wheel, site, "zip")
    for name in packages:
        found = importlib.util.find_spec(name)
        assert found is not None, name
        assert found.origin is not None, name
        place = Path(found.origin).parents[1] if found.submodule_search_locations else None
        assert place is not None, name
        for path in (place / name, place / f"{name}.libs", *place.glob(f"{name}-*.dist-info")):
            if path.exists():
                (site / path.name).symlink_to(path)
    return folder / "bin" / "python"
