"""Break one line after another, and report whether the tests fail.

    .venv/bin/python tests/mutate.py --count 50 --seed 1 --jobs 2

Lines are drawn from src/anyscore (without the laboratory) and from csrc. A mutant changes one
comparison, sign, number or word of a line, in a copy of the checkout. The checkout itself is never
written to. A change in csrc is compiled for plain processors. Ctrl-C ends with the table of the
mutants so far.

`--root` names another checkout, also one with the earlier layout of tests. Read the mutants that
survive: a change may make no difference.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tokenize
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from keyword import iskeyword
from pathlib import Path
from queue import SimpleQueue

from helpers.checkout import copied

HERE = Path(__file__).parents[1]
WORDS = {"and": "or", "or": "and", "True": "False", "False": "True", "min": "max", "max": "min",
         "any": "all", "all": "any", "not": "", "minimum": "maximum", "maximum": "minimum",
         "&&": "||", "||": "&&", "true": "false", "false": "true"}  # fmt: skip
SIGNS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+",
         "*": "/", "/": "*", "//": "*", "+=": "-=", "-=": "+="}  # fmt: skip
NUMBER = re.compile(r"\d+")
CPP = re.compile(
    r"&&|\|\||(?<= )(?:[<>=!]=|[<>+*/-]|[+-]=)(?= )|\b(?:true|false|min|max)\b|\b\d+\b"
)
NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|^\s*#(?:\\\n|[^\n])*', re.S | re.M)


@dataclass(frozen=True)
class Mutant:
    """file: relative path. start, end: positions in its text. new: replacement of the text."""

    file: str
    line: int
    start: int
    end: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.old!r} → {self.new!r}"


def changed(word: str) -> str | None:
    """Return the replacement of a word, a sign or an integer; None if there is none."""
    if NUMBER.fullmatch(word):
        return str(int(word) + 1)
    return WORDS.get(word, SIGNS.get(word))


def in_python(text: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of words and signs outside strings and comments."""
    offsets = [0, *(m.end() for m in re.finditer("\n", text))]
    before = ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind, word = token.type, token.string
        after = (before.isidentifier() and not iskeyword(before)) or before[-1:] in ")]0123456789"
        binary = kind == tokenize.OP and (after or word == "-")
        if kind in (tokenize.NAME, tokenize.NUMBER) or binary:
            place = offsets[token.start[0] - 1] + token.start[1]
            yield place, place + len(word)
        if kind not in (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT):
            before = word


def in_cpp(text: str) -> Iterator[tuple[int, int]]:
    code = NOT_CODE.sub(lambda m: re.sub(r"[^\n]", "\0", m[0]), text)
    for found in CPP.finditer(code):
        yield found.span()


def mutants(root: Path, only: str) -> list[list[Mutant]]:
    """Return the mutants of each line that has some."""
    kinds = "csrc/*/*.h", "csrc/*/*.cpp", "src/anyscore/**/*.py"
    sources = [path for kind in kinds for path in root.glob(kind)]
    lines: dict[tuple[str, int], list[Mutant]] = {}
    for path in sorted(sources):
        file, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
        if file.startswith("src/anyscore/lab/") or not file.startswith(only):
            continue
        for start, end in (in_python if path.suffix == ".py" else in_cpp)(text):
            new, line = changed(text[start:end]), text.count("\n", 0, start) + 1
            if new is not None:
                found = Mutant(file, line, start, end, text[start:end], new)
                lines.setdefault((file, line), []).append(found)
    return list(lines.values())


GENERAL = ("tests/core", "tests/contract", "tests/helpers")
TORCH = "tests/frameworks/torch", "tests/frameworks/hf"
PLACES = (  # the first match of the file's name: environment, and tests in order
    (r"csrc/bindings/xla", {}, ("tests/frameworks/jax/test_core.py", "tests/frameworks/jax")),
    (r"csrc/", {}, (*GENERAL, *TORCH)),
    (r"triton", {"TRITON_INTERPRET": "1"}, ("tests/frameworks/triton",)),
    (r"pallas|xla|jax", {}, ("tests/frameworks/jax",)),
    (r"keras", {"KERAS_BACKEND": "torch"}, ("tests/frameworks/keras",)),
    (r"tensorflow", {}, ("tests/frameworks/tensorflow",)),
    (r"mxnet", {}, ("tests/frameworks/mxnet",)),
    (r"plot", {}, ("tests/plot",)),
    (r"torch|autocast|trees", {}, (*TORCH, *GENERAL, "tests/frameworks/torch/exports")),
    (r"", {}, (*GENERAL, *TORCH)),
)
SAMPLED = (  # the same for `make test`, which has nothing of MXNet and of transformers
    (r"pallas|xla|jax", {}, ("tests/frameworks/jax",)),
    (r"triton", {"TRITON_INTERPRET": "1"}, ("tests/frameworks/triton",)),
    (
        r"keras|tensorflow",
        {"KERAS_BACKEND": "tensorflow"},
        ("tests/frameworks/tensorflow", "tests/frameworks/keras"),
    ),
    (r"plot", {}, ("tests/plot",)),
    (r"/torch|autocast|trees", {}, ("tests/frameworks/torch", *GENERAL)),
    (r"", {}, (*GENERAL, "tests/frameworks/torch")),
)
MAKEFILE = (HERE / "Makefile").read_text(encoding="utf-8")
(MARKS,) = re.findall(r"^SAMPLE := (.*)", MAKEFILE, re.M)
START = """
import os, sys
if "ANYSCORE_CORE" in os.environ:
    import sanitized  # before the package, which would load another core
sys.meta_path[:] = [x for x in sys.meta_path if "ScikitBuild" not in type(x).__name__]
sys.path.insert(0, {source!r})
import anyscore
assert anyscore.__file__.startswith({source!r}), anyscore.__file__
import pytest
class Contexts:
    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        if "coverage" in sys.modules and (run := sys.modules["coverage"].Coverage.current()):
            run.switch_context(item.nodeid.partition("[")[0])
        return (yield)
if __name__ == "__main__":  # processes of tests import this file
    sys.exit(pytest.main(sys.argv[1:], plugins=[Contexts()]))
"""


def statement(text: str, line: int) -> range:
    """Return the lines of the statement at a line; of one with a body, those before it."""
    best = range(line, line + 1)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or line):
            body = getattr(node, "body", None)
            end = body[0].lineno if body else (node.end_lineno or line) + 1
            if line < end:
                best = range(node.lineno, max(end, node.lineno + 1))
    return best


class Traces:
    """The tests of `make test` that reach a line of Python, as coverage saw them.

    A test is named by file and function. What an import reaches is of every test.
    """

    def __init__(self, folder: Path, root: Path) -> None:
        from coverage import CoverageData

        self.root = root
        self.files: dict[str, dict[int, list[str]]] = {}
        for path in sorted(folder.glob("*.coverage")):
            data = CoverageData(str(path))
            data.read()
            for file in data.measured_files():
                name = "src/anyscore/" + file.partition("/src/anyscore/")[2]
                lines = self.files.setdefault(name, {})
                for line, contexts in data.contexts_by_lineno(file).items():
                    lines.setdefault(line, []).extend(contexts)

    def tests(self, mutant: Mutant) -> list[str] | None:
        """Return the tests that reach a mutant; None for every test."""
        reached = self.files.get(mutant.file, {})
        text = (self.root / mutant.file).read_text(encoding="utf-8")
        python = mutant.file.endswith(".py")
        lines = statement(text, mutant.line) if python else range(0)
        contexts = [x for line in lines for x in reached.get(line, [])]
        if not python or "/triton/" in mutant.file or "" in contexts:
            return None  # the interpreter of Triton compiles its functions anew
        return list(dict.fromkeys(contexts))


def trace(copy: Copy, folder: Path) -> Traces:
    """Run the tests of `make test` once, but for Triton's; note in `folder` what they reach."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = {tuple(sorted(p)): more for _, more, p in SAMPLED if "TRITON_INTERPRET" not in more}
    for n, (paths, more) in enumerate(runs.items()):
        data = folder / f"{n}.coverage"
        if not data.exists():
            command = ["-m", "coverage", "run", "--source=src/anyscore", f"--data-file={data}"]
            options = [copy.start, *paths, "-q", "-p", "no:cacheprovider", "-m", MARKS]
            env = os.environ | more | {"OMP_NUM_THREADS": "1"}
            subprocess.run(
                [str(x) for x in (copy.python, *command, *options)],
                cwd=copy.folder, env=env, stdout=subprocess.DEVNULL,
            )  # fmt: skip
    return Traces(folder, copy.folder)


class Copy:
    """A copy of a checkout for mutants: sources, tests, and the built core.

    sample: whether to run the tests of `make test`.
    """

    def __init__(self, root: Path, folder: Path, python: Path, sample: bool) -> None:
        self.folder, self.python, self.sample = folder, python, sample
        self.traces: Traces | None = None
        self.unbroken: Path | None = None
        copied(root, folder)
        self.start = folder / "start.py"  # a file, which processes of tests import too
        self.start.write_text(START.format(source=str(folder / "src")), encoding="utf-8")
        code = "import anyscore._core; print(anyscore._core.__file__)"
        core = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
        shutil.copy(core.stdout.strip(), folder / "src/anyscore")

    def judge(self, mutant: Mutant, seconds: float) -> str:
        """Return 'caught by …', 'survived', or another outcome."""
        if mutant.file.startswith("csrc/") and self.unbroken is None:
            core = self.compiled()
            if core is None:
                raise RuntimeError("the core does not compile as it is")
            self.unbroken = core.with_name("unbroken.so")
            shutil.copy(core, self.unbroken)
        path = self.folder / mutant.file
        text = path.read_text(encoding="utf-8")
        assert text[mutant.start : mutant.end] == mutant.old
        new = text[: mutant.start] + mutant.new + text[mutant.end :]
        path.write_text(new, encoding="utf-8")
        try:
            env: dict[str, str] = {}
            if mutant.file.startswith("csrc/"):
                core = self.compiled()
                if core is None:
                    return "caught by the compiler"
                if self.unbroken is not None and core.read_bytes() == self.unbroken.read_bytes():
                    return "not judged: the core for plain processors is the same"
                env = {"ANYSCORE_CORE": str(core)}
            how, failed = self.tested(mutant, env, seconds)
        finally:
            path.write_text(text, encoding="utf-8")
        if env:
            env = {"ANYSCORE_CORE": str(self.unbroken)}
        if failed and self.tested(mutant, env, seconds, [failed])[0] != "survived":
            return f"not judged: {failed} fails without it, too"
        return how

    def compiled(self) -> Path | None:
        """Build the core for plain processors; return its path, or None if the build fails."""
        build, folder = self.folder / "build/mutant", self.folder
        configure = [
            "cmake",
            "-S",
            folder,
            "-B",
            build,
            "-G",
            "Ninja",
            "-DCMAKE_BUILD_TYPE=Release",
        ]
        configure += [f"-DPython_EXECUTABLE={self.python}", "-DANYSCORE_ISAS=baseline"]
        configure += ["-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG"]
        path = f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"
        for command in (configure, ["cmake", "--build", build]):
            done = subprocess.run(
                [str(x) for x in command], env=os.environ | {"PATH": path}, capture_output=True
            )
            if done.returncode:
                if command is configure:
                    raise RuntimeError(done.stderr.decode())
                return None
        return next(build.glob("_core*.so"))

    def tested(
        self, mutant: Mutant, env: dict[str, str], seconds: float, only: list[str] | None = None
    ) -> tuple[str, str | None]:
        """Run the tests of the mutant's file, or `only`; return (outcome, failed test or None)."""
        places = SAMPLED if self.sample else PLACES
        more, patterns = next((e, t) for p, e, t in places if re.search(p, mutant.file))
        found = [x for pattern in patterns for x in sorted(self.folder.glob(pattern))]
        reached = self.traces.tests(mutant) if self.traces else None
        if reached == []:
            return "survived: no test reaches it", None
        paths = only or reached or list(map(str, found))
        python, options, path = self.python, ["-p", "no:xdist", "-p", "no:cacheprovider"], []
        if self.sample:
            options += ["-m", MARKS]
        if "ANYSCORE_CORE" in env:
            path += [self.folder / ".ci"]
        beside = self.python.parents[1]
        if "TRITON_INTERPRET" in more:
            options += ["-p", "stand_in"]
            path += [beside / "triton", self.folder / "tests/frameworks/triton"]
        if "mxnet" in mutant.file and not self.sample:
            python = beside / "mxnet/bin/python"
        env = os.environ | env | more | {"PYTHONPATH": os.pathsep.join(map(str, path))}
        env |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        command = [str(python), str(self.start), *paths, "-x", "-q", *options]
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            return f"caught by the clock: {seconds:.0f} s", None
        if done.returncode == 0:
            return "survived", None
        what = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - |$)", done.stdout, re.M)
        end = (done.stdout.strip() or done.stderr.strip()).splitlines()
        if done.returncode < 0:
            return f"caught by a crash, signal {-done.returncode}", None
        if what:  # otherwise Ctrl-C, or no test
            return f"caught by {what[1]}", what[1]
        return f"not judged: pytest ended with {done.returncode}: {' '.join(end[-2:])}", None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=HERE, help="the checkout to copy and break")
    parser.add_argument("--python", type=Path, help="its interpreter; .venv/bin/python of the root")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--after", type=int, default=0, help="go on after so many of those drawn")
    parser.add_argument("--only", default="", help="files whose name starts so, such as csrc/")
    parser.add_argument("--sample", action="store_true", help="by the tests of `make test` alone")
    parser.add_argument(
        "--traces", type=Path, help="folder: with --sample, ask the tests that reach a line"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1800, help="for the tests of one mutant")
    parser.add_argument("--list", action="store_true", help="say what would be changed, no more")
    given = parser.parse_args()
    if given.traces and not given.sample:
        parser.error("--traces: expected --sample too, whose tests are traced")
    root, rng = given.root.resolve(), random.Random(given.seed)
    lines = mutants(root, given.only)
    drawn = [rng.choice(line) for line in rng.sample(lines, min(given.count, len(lines)))]
    drawn = drawn[given.after :]
    if given.list:
        print(*drawn, sep="\n")
        return
    python = (given.python or root / ".venv/bin/python").absolute()
    found: dict[Mutant, str] = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: SimpleQueue[Copy] = SimpleQueue()
        made = [Copy(root, Path(folder) / str(n), python, given.sample) for n in range(given.jobs)]
        traces = trace(made[0], given.traces.resolve()) if given.traces else None
        for copy in made:
            copy.traces = traces
            copies.put(copy)

        def work(mutant: Mutant) -> None:
            copy, start = copies.get(), time.monotonic()
            try:
                found[mutant] = copy.judge(mutant, given.seconds)
            finally:
                copies.put(copy)
            print(f"{mutant}: {found[mutant]} ({time.monotonic() - start:.0f} s)", flush=True)

        with ThreadPoolExecutor(given.jobs) as pool:
            waiting: set[Future[None]] = {pool.submit(work, mutant) for mutant in drawn}
            try:
                while waiting:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    for future in done:
                        future.result()
            except KeyboardInterrupt:
                pool.shutdown(wait=True, cancel_futures=True)
    table(found)


def table(found: dict[Mutant, str]) -> None:
    """Print the numbers of caught mutants by kind of file, and the others."""
    print()
    for start in ("src/", "csrc/"):
        some = [x for mutant, x in found.items() if mutant.file.startswith(start)]
        caught = sum(x.startswith("caught") for x in some)
        print(f"{start:6} {caught} of {len(some)} caught")
    for mutant, what in found.items():
        if not what.startswith("caught"):
            print(f"{what}: {mutant}")


if __name__ == "__main__":
    sys.exit(main())
