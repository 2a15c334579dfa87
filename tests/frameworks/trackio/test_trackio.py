"""What Trackio itself finds in its database. In an environment of its own: see the Makefile."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from anyscore.lab import compare
from anyscore.lab.trials import Report


def train(score: str, seed: int, report: Report) -> list[float]:
    for epoch in (1, 2):
        report({"epoch": epoch, "valid_loss": seed + 1 / epoch})
    return [1.0, 0.0, float(score == "better"), 1.0]


def test_trackio_has_every_trial_once_and_sends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import trackio
    from trackio import utils

    # Read as modules are imported, so that an assignment to the environment would come too late.
    place = Path(utils.TRACKIO_DIR)
    assert place.name == "trackio-test"
    monkeypatch.setenv("TRACKIO_SPACE_ID", "someone/somewhere")  # it would be asked for, and fail
    out = tmp_path / "my run"
    how: dict[str, Any] = {"out": out, "settings": {"width": 3}, "log": "trackio"}
    compare(train, ["even", "better"], seeds=1, **how)
    compare(train, ["even", "better"], seeds=2, **how)
    assert capsys.readouterr().out == ""
    runs = {run.name: run for run in trackio.Api().runs("anyscore-my-run")}
    assert set(runs) == {f"{score}/seed{seed}" for score in ("even", "better") for seed in (0, 1)}
    assert len(list(trackio.Api().runs("anyscore-my-run"))) == 4
    told = runs["better/seed1"].config
    assert {name: told[name] for name in ("score", "seed", "width")} == {
        "score": "better", "seed": 1, "width": 3,
    }  # fmt: skip
    with sqlite3.connect(place / "anyscore-my-run.db") as database:
        query = "select step, metrics from metrics where run_name = 'better/seed1' order by id"
        rows = [(step, json.loads(numbers)) for step, numbers in database.execute(query)]
    assert rows == [
        (1, {"valid_loss": 2.0}),
        (2, {"valid_loss": 1.5}),
        (2, {"test_result": 0.75}),
    ]
