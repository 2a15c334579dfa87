"""The workflows of continuous integration: their actions, permissions and commands."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import anyscore
from package.wheels import ROOT, load, run

FOLDER = ROOT / ".github"
WORKFLOWS = sorted((FOLDER / "workflows").glob("*.yml"))
WRITES = {
    "docs.yml": {"deploy": {"id-token": "write", "pages": "write"}},
    "release.yml": {"publish": {"id-token": "write"}},
}
"""The jobs that may do more than read the repository."""


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def commands(path: Path) -> Iterator[str]:
    """Yield the commands of a workflow, one for each value of a matrix."""
    for job in read(path)["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {})
        for step in (x for x in job.get("steps", []) if "run" in x):
            names = step.get("env", {})
            found = {
                name: re.fullmatch(r"\$\{\{ matrix\.(\w+) \}\}", str(x))
                for name, x in names.items()
            }
            values = [(name, x) for name, m in found.items() if m for x in matrix[m[1]]]
            for name, value in values or [("", "")]:
                yield step["run"].replace(f"${name}", value) if name else step["run"]


def lists() -> dict[str, list[str]]:
    """Return the lists of words in the Makefile."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    found = {
        name: words.replace("\\\n", " ").split()
        for name, words in re.findall(r"^(\w+) := ((?:.*\\\n)*.*)", text, re.M)
    }
    found["PHONY"] = " ".join(re.findall(r"^\.PHONY: (.*)", text, re.M)).split()
    found["TARGETS"] = [
        y for x in found["TARGETS"] for y in (found["KERAS"] if x == "$(KERAS)" else [x])
    ]
    return found


jobs = load(FOLDER / "jobs.py")


def test_jobs_have_the_targets_of_the_daily_tests() -> None:
    targets = [x for names in jobs.JOBS.values() for x in names.split()]
    assert sorted(targets) == sorted(lists()["TARGETS"])


@pytest.mark.parametrize(
    ("file", "besides"),
    [
        ("src/anyscore/mxnet/attention.py", {"MXNet", "laboratory and pages"}),
        ("tests/frameworks/keras/test_layers.py", {"TensorFlow and Keras"}),
        ("README.md", {"laboratory and pages"}),
        ("src/anyscore/lab/bench/run.py", set(jobs.JOBS)),
        ("csrc/simd/gemm.h", set(jobs.JOBS)),
        ("constraints.txt", set(jobs.JOBS)),
    ],
)
def test_a_change_runs_the_jobs_that_it_concerns(file: str, besides: set[str]) -> None:
    assert set(jobs.concerned([file])) == {jobs.ALWAYS, *besides}
    assert jobs.concerned([file, "Makefile"]) == list(jobs.JOBS)


def test_tests_that_others_import_concern_their_jobs() -> None:
    """A test runs in the jobs of its own file, and may import files that concern them all."""
    tests = {x.relative_to(ROOT).as_posix() for x in (ROOT / "tests").rglob("*.py")}
    for pattern, _ in jobs.CONCERNS:
        assert any(re.match(pattern, x) for x in tests | {"README.md"}) or "src/" in pattern
    for file in tests:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            imported = f"tests/{(getattr(node, 'module', None) or '').replace('.', '/')}.py"
            if isinstance(node, ast.ImportFrom) and imported in tests:
                assert set(jobs.concerned([file])) <= set(jobs.concerned([imported])), file


def test_without_a_base_all_jobs_run() -> None:
    for arguments in ([], ["0" * 40], ["no-such-commit"]):
        printed = run(sys.executable, FOLDER / "jobs.py", *arguments, folder=ROOT)
        assert [x["name"] for x in json.loads(printed)] == list(jobs.JOBS)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda x: x.name)
def test_actions_are_pinned_and_permissions_are_few(path: Path) -> None:
    """An action is named by its commit: its tag could be moved."""
    workflow, text = read(path), path.read_text(encoding="utf-8")
    uses = re.findall(r"uses: (\S+)(.*)", text)
    assert all(
        x.startswith("./") or re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", x + rest)
        for x, rest in uses
    ), uses
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]["group"]
    jobs = workflow["jobs"]
    assert {n: x["permissions"] for n, x in jobs.items() if "permissions" in x} == WRITES.get(
        path.name, {}
    )
    assert all("timeout-minutes" in job for job in jobs.values() if "steps" in job)
    checkouts = [x for j in jobs.values() for x in j.get("steps", []) if "checkout" in str(x)]
    assert all(x["with"]["persist-credentials"] is False for x in checkouts)


def test_commands_are_targets_that_exist() -> None:
    asked = [x for path in WORKFLOWS for x in commands(path) if re.search(r"\bmake ", x)]
    targets = {
        x.strip('"')
        for line in asked
        for x in line.partition("make ")[2].partition(" PYTHON=")[0].split()
        if x not in ("--keep-going", "$TARGETS")
    }
    known = lists()
    oldest = {f"oldest-{name}" for name in known["OLDEST"]}
    expected = {"check", "demo", "test", "test-all", "site", "sdist", *oldest}
    assert targets == expected
    assert targets <= {*known["PHONY"], *known["TARGETS"], *oldest}


def test_readme_s_commands_run_first_on_a_bare_machine() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    written = [x.strip() for x in re.findall(r"^(make [\w-]+) +#", readme, re.M)]
    assert written == ["make demo", "make test"]
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (loop,) = re.findall(r"^for command in (.*); do", script, re.M)
    assert re.findall(r'"(.*?)"', loop) == written
    assert script.index("for command in") < script.index("make test-daily")


def test_a_release_has_all_wheels() -> None:
    """The job that publishes counts three wheels a platform: the last is for Python 3.12 and on."""
    release = "".join(commands(FOLDER / "workflows" / "release.yml"))
    assert "-eq 3" in release
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (built,) = re.findall(r"^build = \[(.*?)\]", project, re.M)
    tags = re.findall(r"cp(\d+)-\*", built)
    assert [tag for tag in tags if int(tag) <= 312] == ["310", "311", "312"]
    classified = re.findall(r"Programming Language :: Python :: 3\.(\d+)", project)
    assert [f"3{minor}" for minor in classified] == tags
    images = set(re.findall(r'manylinux-(\w+)-image = "(\w+)"', project))
    assert all(f"{image}_{machine}" in release for machine, image in images)


def test_forms_ask_for_the_installation() -> None:
    forms = [x for x in (FOLDER / "ISSUE_TEMPLATE").glob("*.yml") if x.name != "config.yml"]
    assert {x.stem for x in forms} == {"bug", "feature", "question"}
    for form in map(read, forms):
        assert form["name"]
        assert form["description"]
        fields = [x for x in form["body"] if x["type"] != "markdown"]
        assert all(x["id"] and x["attributes"]["label"] for x in fields)
    (asked,) = (
        x for x in read(FOLDER / "ISSUE_TEMPLATE/bug.yml")["body"] if x.get("id") == "installation"
    )
    assert "anyscore info --json" in asked["attributes"]["description"]
    assert asked["validations"]["required"]


def test_a_citation_names_this_version() -> None:
    cited = read(ROOT / "CITATION.cff")
    assert cited["version"] == anyscore.__version__
    assert cited["license"] == "Apache-2.0"


def test_git_has_no_code_of_others() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no git here")
    listed = subprocess.run(
        ["git", "ls-files", "third_party"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert listed.stdout == ""
