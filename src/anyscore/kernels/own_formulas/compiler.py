"""The system's compiler, and a cache of compiled libraries by a digest of their content.

The cache is the folder anyscore/pairs in XDG_CACHE_HOME, or else in ~/.cache. A file's name has two
digests. One is of source, headers, compiler and flags; the other is of the file, and detects
damage. Each file is written elsewhere and then renamed, so that processes do not disturb each
other. A library is code, so a cache is used only if no other user can write to it.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

# The flags of the kernels in CMakeLists.txt, which has the reasons.
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
"""The time limit of a compiler in seconds: five times its time for the largest formula."""
KEPT = 256
"""The most libraries in the cache, each of 0.1 to 1 MB."""
_BY_DESCRIPTOR = "/proc/self/fd/{}"
"""The path of an open folder, whatever its name is now; macOS has none."""


class CannotCompileError(Exception):
    """Raised without a library; the message is the reason in a plan."""


def libraries(source: str, headers: Path, isa: str) -> Generator[Path, None, None]:
    """Yield the library of a source: the cached one, and on request a new one after it.

    isa: an instruction set by the core's name. A path is valid until the next one is requested.

    Raises:
        CannotCompileError: there is no compiler, or compiling fails.
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
                    os.utime(path)  # marks it as used now
                yield path
        with _written(source) as code:
            made = _compile([*command, *options, f"-I{headers}"], code, name)
            if folder and (kept := _keep(made, folder)):
                yield kept
            yield made


def flags(isa: str) -> tuple[str, ...]:
    """Return the compiler's flags for an instruction set."""
    base, *choices = isa.split("-")
    return (*FLAGS, *_OF_ISA.get(base, ()), *(("-DANYSCORE_DOTS",) if "bf16" in choices else ()))


def _compiler() -> tuple[list[str], str]:
    """Return the command of the compiler, and its version text."""
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
    """Run a compiler; return its status, output and errors."""
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
                os.killpg(process.pid, signal.SIGKILL)  # and its children
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
    """Yield the folder of the cache; None if no folder belongs to this user alone.

    The folder is held open, so its files stay the checked ones even if its name changes.
    """
    with ExitStack() as held:
        yield _opened(held)


def _opened(held: ExitStack) -> Path | None:
    """Return the folder of the cache, made if it is missing; None if others can write to it.

    Another user of a shared cache folder may have put anything there under these names, also links
    to other folders of this user. So a link at `anyscore` is refused, and `pairs` is looked up in
    the folder that was checked.
    """
    with suppress(OSError, RuntimeError):  # RuntimeError: Path.home
        asked = Path(os.environ.get("XDG_CACHE_HOME", ""))
        shared = asked if asked.is_absolute() else Path.home() / ".cache"
        if not shared.is_absolute():
            return None
        shared.mkdir(0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(shared / "anyscore", 0o700)
        own = os.open(shared / "anyscore", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        held.callback(os.close, own)
        if not _is_ours(os.fstat(own)):
            return None
        with suppress(FileExistsError):
            os.mkdir("pairs", 0o700, dir_fd=own)
        pairs = os.open("pairs", os.O_RDONLY | os.O_DIRECTORY, dir_fd=own)
        held.callback(os.close, pairs)
        if not _is_ours(os.fstat(pairs)):
            return None
        by_descriptor = Path(_BY_DESCRIPTOR.format(pairs))
        if by_descriptor.exists():
            return by_descriptor
        if _is_reached_safely(shared.resolve()):
            return shared / "anyscore" / "pairs"
    return None


def _is_reached_safely(folder: Path) -> bool:
    """Return whether no user but this one and root can exchange what is in a folder."""
    for part in (folder, *folder.parents):
        status = part.stat()
        writable = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
        if status.st_uid not in (0, os.geteuid()) or writable:
            return False
    return True


def _is_ours(status: os.stat_result) -> bool:
    """Return whether a file belongs to this user, and no other user can write to it."""
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _is_whole(path: Path) -> bool:
    """Return whether a cached library belongs to this user, and its digest is in its name."""
    with suppress(OSError):
        status = path.lstat()  # of a link itself, which is no regular file
        if stat.S_ISREG(status.st_mode) and _is_ours(status):
            return path.stem.partition("-")[2] == _digest(path)
    return False


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:40]


@contextmanager
def _written(source: str) -> Iterator[Path]:
    """Yield a file with a source, in a temporary folder that is removed afterwards."""
    folder = None
    try:
        try:
            folder = Path(tempfile.mkdtemp(prefix="anyscore-pair-"))
            code = folder / "pair.cpp"
            code.write_text(source, encoding="utf-8")
        except OSError as error:
            raise CannotCompileError(f"nothing can be written: {error}") from None
        yield code
    finally:  # not at exit, which a forked child also reaches
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _compile(command: list[str], code: Path, name: str) -> Path:
    """Return the path of the compiled library, beside the source."""
    made = code.with_name(f"{name}.so")
    status, _, errors = _run([*command, str(code), "-o", str(made)])
    if status:
        raise CannotCompileError(f"{command[0]} cannot compile it: {_first_error(errors)}")
    if not made.is_file():
        raise CannotCompileError(f"the C++ compiler {command[0]} makes no library")
    return made


def _keep(made: Path, folder: Path) -> Path | None:
    """Copy a library into the cache, and remove the least recently used ones.

    Return its path; None if copying fails, for instance on a full disk.
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
        own = (x for x in folder.iterdir() if x.suffix == ".so" or x.name.startswith("making-"))
        by_use = sorted(own, key=lambda x: x.lstat().st_mtime)
        for old in by_use[:-KEPT]:
            old.unlink(missing_ok=True)
    except OSError:
        return None
    return path


def _first_error(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    # The linker reports its failure first, then the compiler reports an error.
    errors = [line for line in lines if "error" in line or "failed" in line]
    return (errors or lines or ["it says nothing"])[0][:300]
