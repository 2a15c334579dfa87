"""Without a browser and node the tests of pages are skipped, and a line says the remedy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import machine
from helpers.hang import HANG
from package.wheels import ROOT

pytestmark = pytest.mark.sample

PAGES = "tests/plot/test_browser.py", "tests/lab/play/test_alignment.py"
BROWSER = machine.lacks("a browser", machine.PROGRAMS["a browser"][1])
NODE = machine.lacks("node", machine.PROGRAMS["node"][1])


def bare(tmp_path: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    """Run pytest where PATH has nothing; return (status, output)."""
    empty = tmp_path / "bin"
    empty.mkdir(exist_ok=True)
    environment = {x: y for x, y in os.environ.items() if x != "ANYSCORE_TESTS_COMPLETE"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env=environment | {"PATH": str(empty), "COLUMNS": "200"} | variables,
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    return done.returncode, done.stdout


def test_the_summary_counts_skipped_tests_and_has_the_remedy(tmp_path: Path) -> None:
    status, said = bare(tmp_path, *PAGES)
    assert status == 0, said
    for reason in (BROWSER, NODE):
        (count,) = re.findall(rf"^SKIPPED \[(\d+)\] .*: {re.escape(reason)}$", said, re.M)
        assert int(count) > 5
    assert not re.search(r"[1-9]\d* (failed|error)", said)


def test_where_none_may_be_missing_the_tests_fail(tmp_path: Path) -> None:
    status, said = bare(tmp_path, *PAGES, "-x", ANYSCORE_TESTS_COMPLETE="1")
    assert status == 1
    assert BROWSER in said
    assert "skipped" not in said


@pytest.mark.slow
def test_a_missing_package_fails_there_too(tmp_path: Path) -> None:
    test = tmp_path / "test_page.py"
    test.write_text("from helpers import machine\nmachine.package('no_such_package')\n")
    arguments = "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), str(test)
    plugin = "-p", "conftest_of_tests"
    (tmp_path / "conftest_of_tests.py").write_text("from tests.conftest import *\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    status, said = bare(tmp_path, *arguments, *plugin, PYTHONPATH=path)
    assert status == 5, said
    assert "this machine lacks no_such_package: make .venv/dev" in said
    status, said = bare(tmp_path, *arguments, *plugin, PYTHONPATH=path, ANYSCORE_TESTS_COMPLETE="1")
    assert status in (1, 2), said
