"""Merged comparisons have more trials of the same settings, or trials of other settings."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from anyscore.lab import compare
from anyscore.lab.errors import InputError
from anyscore.lab.merging import merge
from lab.command_line import call, check_refused, plain


def train(score: str, seed: int, report: Any, items: int = 50) -> list[bool]:
    luck = random.Random(f"{score}{seed}")
    return [luck.random() < {"good": 0.9, "bad": 0.4}[score] for _ in range(items)]


def run(folder: Path, scores: tuple[str, ...] = ("good", "bad"), **others: Any) -> dict[str, Any]:
    return compare(train, scores, out=folder, **others)


def standing(record: dict[str, Any]) -> dict[str, float]:
    return {x["score"]: x["mean"] for x in record["verdict"]["standings"]}


def test_trials_of_the_same_settings_make_the_comparison_that_one_run_would(tmp_path: Path) -> None:
    run(tmp_path / "one", ("good",), seeds=3)
    run(tmp_path / "two", ("bad", "good"), seeds=3)
    merged, doubles = merge([tmp_path / "one", tmp_path / "two"], tmp_path / "all")
    whole = run(tmp_path / "whole", seeds=3)
    assert doubles == 3
    assert standing(merged) == standing(whole)
    for name in ("differences", "standings"):
        assert merged["verdict"][name] == whole["verdict"][name]
    assert (tmp_path / "all" / "report.html").exists()


def test_a_run_that_grew_is_merged_again(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run(tmp_path / name, seeds=2, settings={"width": name})
    folders = [tmp_path / "one", tmp_path / "two"]
    first, _ = merge(folders, tmp_path / "all")
    assert len(first["trials"]) == 8
    run(tmp_path / "two", seeds=4, settings={"width": "two"})
    assert len(merge(folders, tmp_path / "all")[0]["trials"]) == 12


def test_other_settings_are_compared_by_the_name_of_their_run(tmp_path: Path) -> None:
    for name in ("narrow", "wide"):
        run(tmp_path / name, seeds=3, settings={"width": len(name), "depth": 2})
    merged, doubles = merge([tmp_path / "narrow", tmp_path / "wide"], tmp_path / "all")
    assert doubles == 0
    names = {f"{score} ({of})" for score in ("good", "bad") for of in ("narrow", "wide")}
    assert set(standing(merged)) == names
    assert merged["settings"] == {"depth": 2, "narrow": {"width": 6}, "wide": {"width": 4}}
    same = [d for d in merged["verdict"]["differences"] if d["better"][:3] == d["worse"][:3]]
    assert [d["difference"] for d in same] == [0.0, 0.0]  # the same function under two names


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "one", seeds=1)
    compare(lambda *x: train(*x, items=20), ["good"], seeds=1, out=tmp_path / "few")
    with pytest.raises(
        InputError, match=r"as many test items in every run, found in .*one 50 and .*few 20"
    ):
        merge([tmp_path / "one", tmp_path / "few"], tmp_path / "all")
    (tmp_path / "other").mkdir()
    run(tmp_path / "other" / "one", seeds=1, settings={"width": 1})
    with pytest.raises(InputError, match="different names"):
        merge([tmp_path / "one", tmp_path / "other" / "one"], tmp_path / "new")
    run(tmp_path / "measured", seeds=1, measure="tour length")
    with pytest.raises(InputError, match="expected the measures of"):
        merge([tmp_path / "one", tmp_path / "measured"], tmp_path / "new")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.txt").write_text("do not touch")
    with pytest.raises(InputError, match="found other files"):
        merge([tmp_path / "one", tmp_path / "one"], tmp_path / "notes")
    assert [x.name for x in (tmp_path / "notes").iterdir()] == ["thesis.txt"]


def test_the_command(tmp_path: Path) -> None:
    for name, seeds in (("one", 1), ("two", 2)):
        run(tmp_path / name, seeds=seeds)
    out = tmp_path / "all"
    done = call("report", tmp_path / "one", tmp_path / "two", "--out", out)
    assert done.exit_code == 0, done.output
    assert "2 trials in several runs: those of the first are kept" in plain(done.output)
    assert len(json.loads((out / "comparison.json").read_text())["trials"]) == 4
    check_refused(call("report", tmp_path / "one", tmp_path / "two"), "several folders need --out")
    check_refused(call("report", tmp_path / "one", "--out", out), "expected two folders or more")
    check_refused(
        call("report", tmp_path / "one", tmp_path / "nothing", "--out", out),
        "expected the folder of a comparison",
    )


@pytest.mark.parametrize("name", ["a/b", "../up", ".hidden", "加", "a:b*?", "con dot"])
def test_a_score_may_have_any_name(tmp_path: Path, name: str) -> None:
    found = compare(lambda *_: [1.0, 0.0], [name], seeds=1, out=tmp_path / "run")
    assert [x["score"] for x in found["trials"]] == [name]
    again = compare(lambda *_: 1 / 0, [name], seeds=1, out=tmp_path / "run")  # finished: not called
    assert [x["score"] for x in again["trials"]] == [name]
    assert {x.name for x in tmp_path.iterdir()} == {"run"}
    assert json.loads((tmp_path / "run" / "comparison.json").read_text()) == again


@pytest.mark.parametrize("name", ["", "x" * 201, 7])
def test_a_name_that_no_folder_can_have_is_refused(tmp_path: Path, name: Any) -> None:
    with pytest.raises(InputError, match="expected short names"):
        compare(lambda *_: [1.0], [name], seeds=1, out=tmp_path / "run")
