"""The benchmark of packed sequences, caches and a step of a speech model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from anyscore.lab.bench.timing import Pace
from anyscore.lab.bench.work import FORWARD, TRAINING, Shape
from benchmarks import bars
from benchmarks.packed import PackedWork
from benchmarks.rivals import OURS
from benchmarks.run import bench
from benchmarks.speech import LocationWork
from benchmarks.stages import Settings
from benchmarks.stages_models import LOCATIONS, PACKED
from helpers.benchmark_command import prepared

pytestmark = pytest.mark.weekly

PACKS, STEPS = Shape(4, 9, 9, 3, 5), Shape(3, 1, 17, 5, 4)
PACE = Pace(rounds=3, seconds=0.01, turn=1e-3)


def packed(score: str = "additive", passes: str = FORWARD) -> PackedWork:
    return PackedWork(PACKS, score, passes)


def location() -> LocationWork:
    return LocationWork(STEPS, filters=2, kernel=5)


@pytest.mark.parametrize("passes", [FORWARD, TRAINING])
@pytest.mark.parametrize("score", ["additive", "gaussian", "scaled_dot"])
@pytest.mark.parametrize("name", [OURS.name, "padded", "dot"])
def test_packed_and_padded_are_right(name: str, score: str, passes: str) -> None:
    answer = prepared(name, packed(score, passes))
    assert answer["problem"] is None, answer
    assert answer["error"] < 1e-5


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own
@pytest.mark.parametrize("name", [OURS.name, "espnet", "espnet-compile"])
def test_steps_are_right(name: str) -> None:
    answer = prepared(name, location())
    assert answer["problem"] is None, answer
    assert answer["error"] < 1e-5


@pytest.mark.parametrize("work", [packed(passes=TRAINING), location()])
def test_a_wrong_answer_has_no_time(work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = type(work).truth

    def wrong(self: Any, score: str) -> dict[str, torch.Tensor]:
        return {n: 1.01 * x for n, x in right(self, score).items()}

    monkeypatch.setattr(type(work), "truth", wrong)
    answer = prepared(OURS.name, work)
    assert answer["problem"].startswith("wrong: its output is off by 0.0099")


def test_lengths_are_a_quarter_of_the_longest() -> None:
    for shape in (PACKED, PACKS):
        sizes = PackedWork(shape).sizes
        assert sizes.max() == sizes[0] == shape.queries
        assert sizes.min() >= 1
    filled = PackedWork(PACKED).sizes.double().mean() / PACKED.queries
    assert filled == pytest.approx(0.25, abs=0.01)
    work = packed()
    assert torch.equal(work.padded(work.query)[work.is_token], work.query)
    assert not work.padded(work.query)[~work.is_token].any()


def test_the_parts_and_their_bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("stages_models", "bars"):
        monkeypatch.setattr(f"benchmarks.{module}.PACKED", PACKS)
        monkeypatch.setattr(f"benchmarks.{module}.LOCATIONS", ((STEPS, 2, 5),))
    settings = Settings(
        (Shape(1, 2, 2, 2, 2),),
        rivals=("padded", "dot", "bmm", "espnet"),
        parts=("packed", "location", "cache"),
        pace=PACE,
    )
    record = bench(settings, tmp_path)
    assert not any(e["problem"] for r in record["results"] for e in r["entrants"])
    assert [r["part"] for r in record["results"]] == ["packed"] * 6 + ["location"] + ["cache"] * 3
    names = [[e["name"] for e in r["entrants"]] for r in record["results"]]
    assert names[0] == ["anyscore", "padded", "dot"]
    assert names[6] == ["anyscore", "espnet"]
    assert names[7] == ["anyscore", "dot", "bmm"]
    found = {x["name"]: x for x in record["targets"]}
    assert len(found) == 10
    ratio = record["results"][1]["entrants"][1]["ratio"]["median"]
    bar = found["packed, additive, forward + backward: padded ÷ ours"]
    assert (bar["target"], bar["value"], bar["met"]) == ("≥ 2.5", ratio, ratio >= 2.5)
    ratio = record["results"][-1]["entrants"][2]["ratio"]["median"]
    bar = found["cache, 8, 1, 2000, 256, 256: ours ÷ bmm, softmax, bmm"]
    assert (bar["target"], bar["value"], bar["met"]) == ("≤ 1.5", 1 / ratio, 1 / ratio <= 1.5)
    text = (tmp_path / "bench.md").read_text(encoding="utf-8")
    assert "| 3, 1, 17, 5, 4, 2 filters of 5 |" in text
    assert "| 4, 9, 9, 3, 5 + backward, lengths of a quarter, gaussian |" in text


def test_the_best_of_theirs_is_the_bar() -> None:
    ratios = {"anyscore": 1.0, "espnet": 7.0, "espnet-compile": 4.0}
    entrants = [{"name": n, "ratio": {"median": x}} for n, x in ratios.items()]
    result = {"part": "location", "shape": LOCATIONS[0][0], "entrants": entrants}
    (bar,) = bars._of_models([result])
    assert (bar["value"], bar["met"]) == (4.0, False)
