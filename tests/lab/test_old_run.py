"""A run folder that an earlier anyscore wrote is reported, continued, merged and asked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lab.command_line import call

COMMAND = ("compare", "pairs.tsv", "--limit", "30", "--epochs", "1", "--hidden", "4", "--no-rates",
           "--seeds", "1", "--device", "cpu", "--out", "run")  # fmt: skip


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the old run, beside the table of its pairs."""
    shutil.copytree(Path(__file__).parent / "old_run", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def contents(folder: Path) -> dict[str, bytes]:
    return {x.name: x.read_bytes() for x in folder.iterdir()}


def test_it_is_reported_and_merged(run: Path) -> None:
    assert call("report", "run").exit_code == 0
    assert (run / "report.html").exists()
    record = json.loads((run / "comparison.json").read_text())
    assert [x["score"] for x in record["verdict"]["standings"]] == ["dot"]
    assert call("report", "run", "run", "--out", "both").exit_code == 0
    again = json.loads((run.with_name("both") / "comparison.json").read_text())
    assert again["verdict"] == record["verdict"]


def test_the_same_command_finds_the_same_data_and_goes_on(run: Path) -> None:
    trial = run / "trials" / "dot-seed0"
    before = contents(trial)
    result = call(*COMMAND, "--scores", "dot,additive")
    assert result.exit_code == 0, result.output
    assert contents(trial) == before
    assert {x.name for x in trial.parent.iterdir()} == {"dot-seed0", "additive-seed0"}


def test_its_model_answers(run: Path) -> None:
    result = call("translate", "run", "a1 b", "--score", "dot", "--json", "--quiet")
    assert result.exit_code == 0, result.output
    assert set(json.loads(result.stdout)) >= {"source", "tokens"}
