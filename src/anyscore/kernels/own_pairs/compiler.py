"""The system's compiler, and a cache of what it made: libraries by the content they were made of.

The cache is the folder anyscore/pairs in XDG_CACHE_HOME, or else in ~/.cache. The name of a file is
a digest of source, headers, compiler and flags, and one of the file itself, so that a damaged file
is seen; a file is made elsewhere and then renamed, so that processes do not disturb each other.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

# As CMakeLists.txt has them for the kernels, with the reasons.
HIDDEN = "-fvisibility=hidden", "-fvisibility-inlines-hidden"
FLAGS = (
    "-std=c++17", "-O3", "-DNDEBUG", "-fPIC", "-shared", *HIDDEN, "-fno-math-errno",
    "-fno-trapping-math", "-fno-signed-zeros", "-ffinite-math-only", "-ffp-contract=fast",
    "-falign-loops=64", "-falign-functions=64",
)  # fmt: skip
_OF_ISA = {
    "avx2": ("-march=x86-64-v3",),
    "avx512": ("-march=x86-64-v4", "-mprefer-vector-width=512"),
}


class CannotCompileError(Exception):
    """Why there is no library: what a plan says."""


def libraries(source: str, headers: Path, isa: str) -> Iterator[Path]:
    """Yield the library of a source: the one that is kept, and if that is no use a new one.

    isa: as the core names its instruction sets.

    Raises CannotCompileError: there is no compiler, or it refuses.
    """
    command, version = _compiler()
    options = flags(isa)
    key = hashlib.sha256()
    for part in (source, version, *options, *_contents(headers)):
        key.update(hashlib.sha256(part.encode()).digest())
    folder, name = _kept_in(), key.hexdigest()[:40]
    for path in sorted(folder.glob(f"{name}-*.so")) if folder else ():
        if path.stem.partition("-")[2] == _digest(path):
            yield path
    command = [*command, *options, f"-I{headers}"]
    if folder:
        with suppress(OSError):  # as where a disk is full
            yield _compile(command, source, folder, name)
    try:
        yield _compile(command, source, _temporary(), name)
    except OSError as error:
        raise CannotCompileError(f"nothing can be written: {error}") from None


def flags(isa: str) -> tuple[str, ...]:
    """Return what the compiler is told, beside files."""
    base, *choices = isa.split("-")
    return (*FLAGS, *_OF_ISA.get(base, ()), *(("-DANYSCORE_DOTS",) if "bf16" in choices else ()))


def _compiler() -> tuple[list[str], str]:
    """Return the command of the compiler, and what it says of itself."""
    asked = os.environ.get("CXX")
    names = [asked] if asked else ["c++", "g++", "clang++"]
    for name in names:
        command = shlex.split(name)
        if found := shutil.which(command[0]):
            try:
                return [found, *command[1:]], _version((found, *command[1:]))
            except (OSError, subprocess.CalledProcessError) as error:
                raise CannotCompileError(
                    f"the C++ compiler {found} does not run: {error}"
                ) from None
    raise CannotCompileError(
        f"there is no C++ compiler: CXX is {asked}" if asked else "there is no C++ compiler: "
        "none of c++, g++ and clang++ is found; install one, or say in CXX where it is"
    )  # fmt: skip


@cache
def _version(command: tuple[str, ...]) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(
        [*command, "--version"], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout


@cache
def _contents(headers: Path) -> tuple[str, ...]:
    files = sorted(path for path in headers.iterdir() if path.suffix in (".h", ".cpp"))
    return tuple(path.read_text(encoding="utf-8") for path in files)


def _kept_in() -> Path | None:
    """Return the folder of the cache, None where nothing can be written."""
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = root / "anyscore" / "pairs"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


@cache
def _temporary() -> Path:
    """Return a folder for this process, removed when it ends."""
    folder = tempfile.mkdtemp(prefix="anyscore-pairs-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _digest(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:40]
    except OSError:
        return None


def _compile(command: list[str], source: str, folder: Path, name: str) -> Path:
    with tempfile.TemporaryDirectory(dir=folder, prefix="making-") as place:
        code, made = Path(place, "pair.cpp"), Path(place, "pair.so")
        code.write_text(source, encoding="utf-8")
        environment = {**os.environ, "LC_ALL": "C"}
        done = subprocess.run(
            [*command, str(code), "-o", str(made)], capture_output=True, text=True, env=environment
        )
        if done.returncode:
            raise CannotCompileError(f"{command[0]} cannot compile it: {_first_error(done.stderr)}")
        path = folder / f"{name}-{_digest(made)}.so"
        made.replace(path)
    return path


def _first_error(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line] or lines or ["it says nothing"]
    return errors[0][:300]
