"""docs/file_formats.md names every key of the files that the laboratory writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from anyscore.lab.bench.comparison import Comparison, Contestant, result
from anyscore.lab.bench.run import Settings, begin
from anyscore.lab.bench.variants import OURS
from anyscore.lab.bench.work import FORWARD, Shape, Work
from anyscore.lab.prove.proof import Check, Part, Proof
from anyscore.lab.prove.runner import run_proofs
from anyscore.lab.trials import Outcome, Report, Trial
from anyscore.lab.verdict.judge import Measure
from lab.command_line import SMALL, call

PAGE = Path(__file__).parents[2] / "docs" / "file_formats.md"


def named(*headings: str) -> set[str]:
    """Return the words in backticks of sections of the page."""
    words: set[str] = set()
    for section in re.split(r"^##+ ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE):
        if section.startswith(headings):
            words |= set(re.findall(r"`(\w+)`", section))
    return words


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("formats")
    table, out = folder / "pairs.tsv", folder / "run"
    table.write_text("".join(f"{n} a\ta {n}\n" for n in range(40)), encoding="utf-8")
    done = call("compare", table, "--scores", "dot,additive", "--out", out, *SMALL)
    assert done.exit_code == 0, done.output
    return out


def test_keys_of_a_comparison(run: Path) -> None:
    record = read(run / "comparison.json")
    assert not record.keys() - named("comparison.json")
    trials = {key for trial in record["trials"] for key in trial}
    assert not (trials | {"failure"}) - named("comparison.json", "trial.json")
    verdict = record["verdict"]
    assert not {*verdict, *verdict["standings"][0], *verdict["differences"][0]} - named("verdict")


def test_keys_of_other_files_of_a_run(run: Path) -> None:
    assert not read(run / "settings.json").keys() - named("settings.json")
    assert not read(run / "about.json").keys() - named("settings.json")
    trial = run / "trials" / "dot-seed0"
    assert not read(trial / "trial.json").keys() - named("trial.json")
    assert not read(trial / "items.json").keys() - named("trial.json")
    assert not read(trial / "trial.json")["epochs"][0].keys() - named("trial.json")
    assert not read(trial / "model.json").keys() - named("model.json")


def test_the_tree_names_every_file_of_a_run(run: Path) -> None:
    tree = PAGE.read_text(encoding="utf-8")
    files = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
    for file in files - {"lock"}:
        assert re.sub(r"trials/[^/]+/", "trials/NAME/", f"RUN/{file}") in tree, file


def train(trial: Trial, report: Report) -> Outcome:
    return Outcome({"right": [1.0, 0.0]})


def test_keys_of_proofs(tmp_path: Path) -> None:
    right = Measure("right", "accuracy", bounded=True)
    words = dict.fromkeys(("title", "paper", "source", "words", "task", "differences"), "text")
    part = Part("k = 3", ("dot",), train, (right,), {})
    check = Check("it holds", "k = 3", "dot", "right", at_least=10)
    proof = Proof("lookup", **words, parts=(part,), checks=(check,))
    run_proofs([proof], seeds=1, out=tmp_path, jobs=1, here=True)
    record = read(tmp_path / "proofs.json")
    (found,) = record["proofs"]
    assert not {*record, *found, *found["checks"][0]} - named("proofs.json")


def test_keys_of_a_benchmark() -> None:
    work = Work(Shape(1, 2, 2, 3, 3), "additive", FORWARD, "float32", "cpu")
    ours = Contestant(OURS.name, OURS, work)
    settings = Settings((work.shape,), ("additive",), (), 1)
    assert not begin(settings, work).keys() - named("bench.json")
    assert "entrants" in result(Comparison("speed", work, [ours]))
