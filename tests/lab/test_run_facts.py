"""A folder keeps the facts of a call that its trials do not hold, for later reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyscore.lab import compare
from anyscore.lab.errors import InputError
from anyscore.lab.merging import merge
from anyscore.lab.session import rebuild

pytestmark = pytest.mark.sample


def coin(score: str, seed: int, report: Any) -> Any:
    """Return results whose chances differ by the seed, and not by the score."""
    rng = np.random.default_rng([21, seed, ord(score)])
    return rng.random(300) < np.clip(0.6 + rng.normal(0, 0.05), 0, 1)


def verdict_of(record: dict[str, Any]) -> Any:
    return record["verdict"]["level"], record["verdict"]["sentences"]


def test_looks_under_a_limit_of_time_keep_their_level(tmp_path: Path) -> None:
    """The same call again repeats its looks; a report has the level of the last."""
    call = {"seeds": 12, "minutes": 5, "out": tmp_path / "run"}
    first = verdict_of(compare(coin, ["a", "b"], **call))
    assert first[0] > 0.99
    page = (tmp_path / "run" / "report.html").read_bytes()
    assert verdict_of(compare(coin, ["a", "b"], **call)) == first
    assert verdict_of(rebuild(tmp_path / "run")) == first
    assert (tmp_path / "run" / "report.html").read_bytes() == page
    merged, _ = merge([tmp_path / "run"], tmp_path / "merged")
    assert merged["verdict"]["level"] == first[0]


def test_more_seeds_than_at_the_last_look_are_a_look(tmp_path: Path) -> None:
    def settled(score: str, seed: int, report: Any) -> Any:
        return np.random.default_rng([seed, ord(score)]).random(300) < (
            0.9 if score == "a" else 0.3
        )

    out = tmp_path / "run"
    compare(settled, ["a", "b"], seeds=6, out=out)
    record = compare(settled, ["a", "b"], seeds=6, minutes=5, out=out)
    assert record["verdict"]["level"] > 1 - 0.05 * 6 / np.pi**2


def test_a_limit_of_time_adds_seeds_by_itself(tmp_path: Path) -> None:
    for limit, most in (({}, 5), ({"minutes": 5}, 20)):
        record = compare(coin, ["a", "b"], out=tmp_path / str(most), **limit)
        assert len(record["trials"]) == 2 * most


def test_failures_and_an_interruption_stay(tmp_path: Path) -> None:
    def train(score: str, seed: int, report: Any) -> Any:
        if score == "b" and seed == 1:
            raise RuntimeError("CUDA out of memory")
        if score == "b" and seed == 3:
            raise KeyboardInterrupt
        return coin(score, seed, report)

    out = tmp_path / "run"
    with (
        pytest.raises(
            KeyboardInterrupt, match=r"finished trials and a report are in .*run, and the"
        ),
        pytest.warns(UserWarning, match="CUDA out of memory"),
    ):
        compare(train, ["a", "b"], seeds=5, out=out)
    record = json.loads((out / "comparison.json").read_text(encoding="utf-8"))
    assert record["interrupted"]
    failed = [trial for trial in record["trials"] if "failure" in trial]
    again = rebuild(tmp_path / "run")
    assert again["interrupted"]
    assert [trial for trial in again["trials"] if "failure" in trial] == failed
    assert "CUDA out of memory" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"measure": "f1"}, "expected measure 'acc', by which it was begun, got 'f1'"),
        ({"measure": "acc", "scale": 1.0}, r"expected scale 100\.0, .* got 1\.0; choose another"),
        ({"measure": "acc", "span": 4.0}, r"expected span 100\.0, .* got 4\.0"),
    ],
)
def test_another_measure_needs_another_folder(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    def train(score: str, seed: int, report: Any) -> Any:
        return {"acc": coin(score, seed, report), "f1": coin(score, seed + 9, report)}

    call = {"seeds": 3, "out": tmp_path / "run"}
    compare(train, ["a", "b"], measure="acc", **call)
    before = json.loads((tmp_path / "run" / "comparison.json").read_text(encoding="utf-8"))
    with pytest.raises(InputError, match=words):
        compare(train, ["a", "b"], **call, **change)
    assert verdict_of(rebuild(tmp_path / "run")) == verdict_of(before)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scores": "dot"}, r"scores: expected a list of names, got a text: pass \['dot'\]"),
        ({"seeds": [0, 1]}, r"seeds: expected a whole number from 1 on, got \[0, 1\]"),
        ({"seeds": "3"}, "seeds: expected a whole number from 1 on, got '3'"),
        ({"seeds": 3.0}, r"seeds: expected a whole number from 1 on, got 3\.0"),
        ({"minutes": 0}, "minutes: expected a finite number above 0, got 0"),
        ({"minutes": float("nan")}, "minutes: expected a finite number above 0, got nan"),
        ({"scale": -1}, "scale: expected a finite number above 0, got -1"),
        ({"span": 0}, "span: expected a finite number above 0, got 0"),
        ({"gpus": 1}, 'gpus: expected 0, got 1: it is for engine="ray"'),
        ({"settings": {"lr": np.float32(0.1)}}, "settings: expected numbers, texts, .* float32"),
        ({"settings": {"data": Path("x")}}, "settings: expected numbers, texts, lists"),
    ],
)
def test_a_wrong_argument_leaves_no_folder(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    call = {"scores": ["a", "b"], "out": tmp_path / "run", **change}
    with pytest.raises(InputError, match=words):
        compare(coin, **call)
    assert not (tmp_path / "run").exists()
