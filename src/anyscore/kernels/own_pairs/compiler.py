"""The system's compiler, and a cache of what it made: libraries by the content they were made of.

The cache is the folder anyscore/pairs in XDG_CACHE_HOME, or else in ~/.cache. The name of a file is
a digest of source, headers, compiler and flags, and one of the file itself, so that a damaged file
is seen; a file is made elsewhere and then renamed, so that processes do not disturb each other. A
library is code: the cache is used where this user alone can have written it.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
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
LONGEST: float = 300
"""Seconds that a compiler may take: five times what it takes for the largest formula."""
KEPT = 256
"""The most libraries in the cache, each of 0.1 to 1 MB."""


class CannotCompileError(Exception):
    """Why there is no library: what a plan says."""


def libraries(source: str, headers: Path, isa: str) -> Generator[Path, None, None]:
    """Yield the library of a source: the one that is kept, and if that is no use a new one.

    isa: as the core names its instruction sets. A path is good until the next one is asked for.

    Raises CannotCompileError: there is no compiler, or it refuses.
    """
    command, version = _compiler()
    options = flags(isa)
    key = hashlib.sha256()
    for part in (source, version, *options, *_contents(headers)):
        key.update(hashlib.sha256(part.encode()).digest())
    name = key.hexdigest()[:40]
    with _kept_in() as folder:
        for path in sorted(folder.glob(f"{name}-*.so")) if folder else ():
            if _is_whole(path):
                with suppress(OSError):
                    os.utime(path)  # it was used now
                yield path
        with _written(source) as code:
            made = _compile([*command, *options, f"-I{headers}"], code, name)
            if folder and (kept := _keep(made, folder)):
                yield kept
            yield made


def flags(isa: str) -> tuple[str, ...]:
    """Return what the compiler is told, beside files."""
    base, *choices = isa.split("-")
    return (*FLAGS, *_OF_ISA.get(base, ()), *(("-DANYSCORE_DOTS",) if "bf16" in choices else ()))


def _compiler() -> tuple[list[str], str]:
    """Return the command of the compiler, and what it says of itself."""
    asked = os.environ.get("CXX", "").strip()
    try:
        commands = [shlex.split(asked)] if asked else [["c++"], ["g++"], ["clang++"]]
    except ValueError as error:
        raise CannotCompileError(f"CXX is {asked!r}, which is no command: {error}") from None
    for name, *options in commands:
        if found := shutil.which(name):
            return [found, *options], _version((found, *options))
    raise CannotCompileError(
        f"there is no C++ compiler: CXX is {asked}" if asked else "there is no C++ compiler: "
        "none of c++, g++ and clang++ is found; install one, or say in CXX where it is"
    )  # fmt: skip


@cache
def _version(command: tuple[str, ...]) -> str:
    status, said, _ = _run([*command, "--version"])
    if status:
        raise CannotCompileError(
            f"the C++ compiler {command[0]} does not run: it ends with {status}"
        )
    return said


def _run(command: list[str]) -> tuple[int, str, str]:
    """Run a compiler; return its status, what it says and its errors."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            encoding="utf-8", errors="replace", env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise CannotCompileError(f"the C++ compiler {command[0]} does not run: {error}") from None
    with process:
        try:
            said, errors = process.communicate(timeout=LONGEST)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with all that it has started
            if isinstance(error, subprocess.TimeoutExpired):
                raise CannotCompileError(
                    f"the C++ compiler {command[0]} was stopped: it takes more than {LONGEST:g} "
                    "seconds"
                ) from None
            raise
    return process.returncode, said, errors


@cache
def _contents(headers: Path) -> tuple[str, ...]:
    try:
        files = sorted(path for path in headers.rglob("*") if path.suffix in (".h", ".cpp"))
        return tuple(path.read_text(encoding="utf-8") for path in files)
    except (OSError, UnicodeDecodeError) as error:
        raise CannotCompileError(f"the headers in {headers} cannot be read: {error}") from None


@contextmanager
def _kept_in() -> Iterator[Path | None]:
    """Give the folder of the cache, None where there is none that is this user's alone.

    It is held open: where its name leads elsewhere meanwhile, the files are still those of the
    folder that was looked at.
    """
    descriptor = None
    with suppress(OSError, RuntimeError):  # the latter of Path.home
        asked = Path(os.environ.get("XDG_CACHE_HOME", ""))
        folder = (asked if asked.is_absolute() else Path.home() / ".cache") / "anyscore" / "pairs"
        if folder.is_absolute():
            folder.parents[1].mkdir(0o700, parents=True, exist_ok=True)
            folder.parent.mkdir(0o700, exist_ok=True)
            folder.mkdir(0o700, exist_ok=True)
            descriptor = os.open(folder, os.O_RDONLY)
    if descriptor is None:
        yield None
        return
    try:
        held = Path(f"/proc/self/fd/{descriptor}")
        is_ours = _is_ours(os.fstat(descriptor))
        yield (held if held.exists() else folder) if is_ours else None
    finally:
        os.close(descriptor)


def _is_ours(status: os.stat_result) -> bool:
    """Return whether a file is of this user, and nobody else can write to it."""
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _is_whole(path: Path) -> bool:
    """Return whether a library of the cache is this user's, and what its name says."""
    with suppress(OSError):
        # A link is nobody's: all may write to it, as its mode says.
        return _is_ours(path.lstat()) and path.stem.partition("-")[2] == _digest(path)
    return False


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:40]


@contextmanager
def _written(source: str) -> Iterator[Path]:
    """Write a source to a file in a folder of its own, which goes afterwards."""
    folder = None
    try:
        try:
            folder = Path(tempfile.mkdtemp(prefix="anyscore-pair-"))
            code = folder / "pair.cpp"
            code.write_text(source, encoding="utf-8")
        except OSError as error:
            raise CannotCompileError(f"nothing can be written: {error}") from None
        yield code
    finally:  # not when Python ends, which would be in a forked child too
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _compile(command: list[str], code: Path, name: str) -> Path:
    """Return the library of a source, beside it."""
    made = code.with_name(f"{name}.so")
    status, _, errors = _run([*command, str(code), "-o", str(made)])
    if status:
        raise CannotCompileError(f"{command[0]} cannot compile it: {_first_error(errors)}")
    if not made.is_file():
        raise CannotCompileError(f"the C++ compiler {command[0]} makes no library")
    return made


def _keep(made: Path, folder: Path) -> Path | None:
    """Copy a library into the cache, from which the ones go that were used long ago.

    Returns None where that is not possible, as where a disk is full.
    """
    try:
        path = folder / f"{made.stem}-{_digest(made)}.so"
        handle, half = tempfile.mkstemp(dir=folder, prefix="making-")
        os.close(handle)
        try:
            shutil.copyfile(made, half)
            os.replace(half, path)
        finally:
            Path(half).unlink(missing_ok=True)
        by_use = sorted(folder.iterdir(), key=lambda x: x.lstat().st_mtime)
        for old in by_use[:-KEPT]:
            old.unlink(missing_ok=True)
    except OSError:
        return None
    return path


def _first_error(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    # A linker says that it failed, and then the compiler that there was an error.
    errors = [line for line in lines if "error" in line or "failed" in line]
    return (errors or lines or ["it says nothing"])[0][:300]
