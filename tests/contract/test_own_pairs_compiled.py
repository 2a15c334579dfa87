"""Pairs from formulas: runs of the compiler, kept libraries, and calls without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from anyscore.kernels import cpu, own_formulas
from anyscore.score.pairs import Pair
from helpers import machine
from helpers.hang import HANG

SCRIPT = """
import numpy as np
from anyscore import attention, plan
from anyscore.score.pairs import Pair
from helpers.own_scores import Own, draw, written_out

q, k, v, w = xs = draw(2)
score = Own(w, Pair.from_formula("softplus", "softplus(a + b)"))
found = plan(q, k, v, score=score)
expected = written_out(lambda a, b: np.logaddexp(0, a + b), xs)
np.testing.assert_allclose(attention(q, k, v, score=score), expected, rtol=1e-10)
print(found.route, found.reason)
"""
FUSED = "cpu fused, and keeps the contract\n"
Run = Callable[..., subprocess.Popen[str]]

pytestmark = pytest.mark.usefixtures("kept_pairs")


@pytest.fixture
def compiler(tmp_path: Path) -> Path:
    """Return a script that runs the system's compiler with -O0 and logs each run to a file."""
    real = " ".join(machine.compiler())
    script = tmp_path / "compiler"
    log = tmp_path / "compiled"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *--version*) ;; *) echo once >> "{log}" ;; esac\n'
        f'exec {real} "$@" -O0\n'
    )
    script.chmod(0o755)
    return script


def compiled(compiler: Path) -> int:
    log = compiler.with_name("compiled")
    return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.fixture
def start(tmp_path: Path, compiler: Path) -> Run:
    """Return a function that starts a script in its own process, with this test's cache."""

    def started(script: str = SCRIPT, **environment: str) -> subprocess.Popen[str]:
        known = {
            "CXX": str(compiler), "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }  # fmt: skip
        return subprocess.Popen(
            [sys.executable, "-c", script], env={**os.environ, **known, **environment},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    return started


def said(process: subprocess.Popen[str]) -> str:
    out, errors = process.communicate(timeout=HANG)
    assert process.returncode == 0, errors
    assert errors == ""
    return out


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache/anyscore/pairs").iterdir())


def test_once_for_all_processes(start: Run, tmp_path: Path, compiler: Path) -> None:
    """Two processes at once both load the pair, and a later one compiles nothing. A damaged or
    truncated library is compiled again, once.
    """
    for process in [start(), start()]:
        assert said(process) == FUSED
    times, files = compiled(compiler), kept(tmp_path)
    assert 1 <= times <= 2
    assert all(path.suffix == ".so" for path in files), "nothing else is left"
    assert said(start()) == FUSED
    assert compiled(compiler) == times
    for damage in (lambda x: x[: len(x) // 2], lambda x: x[:5000] + b"?" + x[5001:], lambda x: b""):
        whole = [path.read_bytes() for path in files]
        for path, content in zip(files, whole, strict=True):
            path.write_bytes(damage(content))
        assert said(start()) == FUSED
        times += 1
        assert compiled(compiler) == times
        for path, content in zip(files, whole, strict=True):
            path.write_bytes(content)


def test_no_place_to_keep_it(start: Run, compiler: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert said(start(XDG_CACHE_HOME=str(tmp_path / "file"), TMPDIR=str(tmp_path))) == FUSED
    assert not list(tmp_path.glob("anyscore-pairs-*")), "it goes with its process"


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"CXX": "/no/compiler"}, "there is no C++ compiler: CXX is /no/compiler"),
        (
            {"CXX": "", "PATH": "/nowhere"},
            "there is no C++ compiler: none of c++, g++ and clang++ is found; install one, or say "
            "in CXX where it is",
        ),
    ],
)
def test_without_a_compiler(environment: dict[str, str], reason: str, start: Run) -> None:
    """Without a compiler the reference runs, and `plan` says so."""
    expected = f"reference cpu: the pair 'softplus' is not compiled: {reason}\n"
    assert said(start(**environment)) == expected


def test_a_compiler_that_refuses(start: Run, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.write_text(
        '#!/bin/sh\ncase "$*" in *--version*) echo 1;; *) echo "in file x:\nx.h:1: error: no" >&2;'
        "exit 1;; esac\n"
    )
    bad.chmod(0o755)
    assert said(start(CXX=str(bad))) == (
        f"reference cpu: the pair 'softplus' is not compiled: {bad} cannot compile it: "
        "x.h:1: error: no\n"
    )
    assert kept(tmp_path) == []


def test_a_fused_call_that_cannot_be_raises(start: Run) -> None:
    script = SCRIPT.replace("score=score),", 'score=score, impl="fused"),')
    process = start(script, CXX="/no/compiler")
    _, errors = process.communicate(timeout=HANG)
    assert 'NotImplementedError: impl="fused" cannot run: cpu: the pair' in errors


def test_other_headers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair is not compiled with headers of another core, whose calls have another layout."""
    monkeypatch.setattr(cpu._core, "headers", "0" * 192)
    pair = Pair.from_formula("of this test", "a + 3.25 * b")
    reason = cpu.why_not_formula(pair.key, False)
    assert reason is not None
    assert "are not the core's: reinstall anyscore" in reason


def test_another_instruction_set_has_kernels_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(own_formulas, "load", lambda *args: asked.append(args) or 1 / 0)
    pair = Pair.from_formula("of this test", "a + 3.5 * b")
    monkeypatch.setattr(cpu, "_own", {(pair.key, False, str(cpu.isa())): cpu._Answer(None)})
    assert cpu.why_not_formula(pair.key, False) is None
    with pytest.raises(ZeroDivisionError):
        cpu.why_not_formula(pair.key, True)
    assert asked[0][1:3] == ("double", cpu.isa())


def test_nothing_is_compiled_where_a_pair_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **options: pytest.fail("compiled"))
    Pair.from_formula("of this test", "a + 3.75 * b")


def failing(
    monkeypatch: pytest.MonkeyPatch, took: float
) -> tuple[list[float], Callable[[float], Any]]:
    """Return (times of failed compilations, function that asks for the pair at a time)."""
    now, tried = [0.0], list[float]()

    def load(*args: Any) -> int:
        tried.append(now[0])
        now[0] += took
        raise own_formulas.CannotCompileError("no room")

    monkeypatch.setattr(own_formulas, "load", load)
    monkeypatch.setattr(cpu, "_own", {})
    monkeypatch.setattr(cpu, "monotonic", lambda: now[0])
    pair = Pair.from_formula("of this test", "a + 4.25 * b")

    def ask(at: float) -> Any:
        now[0] = max(at, now[0])
        return cpu.why_not_formula(pair.key, False)

    return tried, ask


def test_what_failed_is_tried_again_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed compilation is tried again after a minute: a disk may have room by then."""
    tried, ask = failing(monkeypatch, took=1.0)
    for at in (0.0, 30.0, 60.9, 61.1, 90.0):
        assert ask(at) == "the pair 'of this test' is not compiled: no room"
    assert tried == [0.0, 61.1]
    pair = Pair.from_formula("of this test", "a + 4.25 * b")
    assert not cpu.has(pair.key, False)
    monkeypatch.setattr(cpu, "_load", lambda *args: None)
    assert ask(200.0) is None
    assert cpu.has(pair.key, False)


def test_what_fails_slowly_takes_a_tenth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, ask = failing(monkeypatch, took=300.0)
    for at in (0.0, 400.0, 3299.0, 3301.0):
        ask(at)
    assert tried == [0.0, 3301.0]


def test_pairs_that_are_there_wait_for_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair.from_formula("of this test", "a + 4.5 * b")
    monkeypatch.setattr(cpu, "_own", {})
    monkeypatch.setattr(cpu, "_load", lambda *args: None)
    assert cpu.why_not_formula(pair.key, False) is None
    with cpu._loading:
        thread = Thread(target=cpu.why_not_formula, args=(pair.key, False), daemon=True)
        thread.start()
        thread.join(HANG)
        assert not thread.is_alive()


def test_a_compiler_that_makes_another_library(start: Run, tmp_path: Path) -> None:
    """A made file without kernels is refused, and so is a file that is no library."""
    source = tmp_path / "other.cpp"
    source.write_text("int other;")
    for last, reason in (("", "undefined symbol: anyscore_own_pair"), (" -c", "only ET_DYN")):
        other = tmp_path / "other"
        compile = f'eval "made=\\${{$#}}"; exec c++ -shared -fPIC {source} -o "$made"{last}'
        other.write_text(f'#!/bin/sh\ncase "$*" in *--version*) exit;; *) {compile};; esac\n')
        other.chmod(0o755)
        found = said(start(CXX=str(other)))
        expected = "reference cpu: the pair 'softplus' is not compiled: the library made of it "
        assert found.startswith(f"{expected}cannot be loaded")
        assert reason in found


FORKED = """
import os
from threading import Event, Thread
from anyscore.score.pairs import Pair
from anyscore.kernels import cpu

pair, began, ends = Pair.from_formula("of this test", "a + 4.75 * b"), Event(), Event()

def load(*args):
    began.set()
    ends.wait()

cpu._load = load
thread = Thread(target=cpu.why_not_formula, args=(pair.key, False))
thread.start()
began.wait()
if not (child := os.fork()):
    cpu._load = lambda *args: "of the child"
    os._exit(cpu.why_not_formula(pair.key, False) != "of the child")
_, status = os.waitpid(child, 0)
ends.set()
thread.join()
print(status, cpu.why_not_formula(pair.key, False))
"""


def test_a_child_does_not_wait_for_a_compiler_of_its_parent(start: Run) -> None:
    assert said(start(FORKED)) == "0 None\n"
