"""Commands run no module of the current folder, which may be a download."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from anyscore.lab.bench.variants import OURS
from anyscore.lab.bench.weigh import weigh
from anyscore.lab.bench.work import Shape, Work
from anyscore.lab.plans import plans
from lab.command_line import SMALL

# Modules of Python and of the laboratory that processes import first.
MODULES = ["numpy", "torch", "runpy", "json", "socket", "struct", "selectors", "multiprocessing"]


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a folder of such modules; return the file that each module writes if it runs."""
    ran, folder = tmp_path / "ran", tmp_path / "download"
    folder.mkdir()
    for name in MODULES:
        (folder / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write({name!r})\n1 / 0\n")
    monkeypatch.chdir(folder)
    return ran


def test_frameworks_are_asked(ran: Path) -> None:
    answer = plans(["numpy"])["numpy"]
    assert not ran.exists()
    assert "dot" in answer


def test_processes_of_the_benchmark_begin(ran: Path) -> None:
    mib, problem = weigh(OURS, "", Work(Shape(1, 2, 3, 4, 5)), 1)
    assert not ran.exists()
    assert problem is None
    assert mib is not None


@pytest.mark.weekly
def test_trials_run_in_processes(ran: Path, pairs: Path) -> None:
    script = Path(sysconfig.get_path("scripts")) / "anyscore"
    options = ["--scores", "dot", *SMALL, "--jobs", "2", "--quiet", "--out", str(ran.parent / "r")]
    environment = {name: x for name, x in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [script, "compare", pairs, *options], capture_output=True, text=True, env=environment
    )
    if sys.version_info >= (3, 11):  # earlier, the current folder comes first in the path
        assert not ran.exists()
        assert done.returncode == 0, done.stderr
