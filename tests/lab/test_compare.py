"""A whole comparison, small but real, and everything that can end one early."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from anyscore.lab import compare as module
from anyscore.lab.checkpoint import build_model, load_run
from anyscore.lab.compare import Watcher, compare
from anyscore.lab.data import Example, Task
from anyscore.lab.encoding import Encoded, encode
from anyscore.lab.errors import InputError
from anyscore.lab.files import RunFailure
from anyscore.lab.tokens import EOS
from anyscore.lab.training import Settings, answers

SCORES = ("scaled_dot", "additive")
SETTINGS = Settings(scores=SCORES, epochs=2, batch_size=8, hidden=16)
SENTENCES = [f"{who} {does} {what}" for who in ("she", "he") for does in ("sees", "has")
             for what in ("it", "one", "two", "a dog", "a cat", "all")]  # fmt: skip


def tiny_task() -> Task:
    """Sentences to themselves in upper case, one with two references."""
    examples = [Example(text, (text.upper(),)) for text in SENTENCES]
    examples[1] = replace(examples[1], references=("HE SEES", "HE SEES ONE"))
    return Task("upper", "Small → large", "word", examples, examples[:6], examples[6:16])


class Script(Watcher):
    """Writes down what it is told; interrupts the given step of the given score."""

    def __init__(self, score: str = "", at: int = 0) -> None:
        self.heard: list[str] = []
        self.score, self.at = score, at
        self.current, self.steps = "", 0

    def begins(self, metrics: dict[str, Any], steps: int, left_out: int) -> None:
        self.heard.append(f"begins {steps}")

    def score_begins(self, record: dict[str, Any]) -> None:
        self.current, self.steps = record["name"], 0

    def step(self) -> None:
        self.steps += 1
        if (self.current, self.steps) == (self.score, self.at):
            raise KeyboardInterrupt

    def epoch(self, record: dict[str, Any], epoch: dict[str, Any]) -> None:
        self.heard.append(f"{record['name']} {epoch['epoch']}")

    def score_ends(self, record: dict[str, Any]) -> None:
        self.heard.append(f"{record['name']} ends")

    def interrupted(self) -> None:
        self.heard.append("interrupted")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path, Script]:
    folder = tmp_path_factory.mktemp("run")
    watcher = Script()
    metrics = compare(tiny_task(), SETTINGS, folder, watcher=watcher, command="anyscore compare")
    return metrics, folder, watcher


def read(folder: Path) -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    return metrics


def test_the_folder_holds_the_whole_run(run: tuple[dict[str, Any], Path, Script]) -> None:
    metrics, folder, _ = run
    expected = {f"{score}{end}" for score in SCORES for end in (".json", ".safetensors")}
    assert {file.name for file in folder.iterdir()} == expected | {"metrics.json", "report.html"}
    assert read(folder) == metrics
    assert "additive" in (folder / "report.html").read_text(encoding="utf-8")


def test_metrics_say_what_was_done(run: tuple[dict[str, Any], Path, Script]) -> None:
    metrics, _, _ = run
    assert metrics["format"] == 1
    assert metrics["interrupted"] is False
    assert metrics["command"] == "anyscore compare"
    assert metrics["task"]["train"] == len(SENTENCES) + 1  # one has two references
    assert metrics["task"]["test"] == 10
    assert metrics["machine"]["device"] == "cpu"
    assert metrics["settings"]["scores"] == list(SCORES)
    for record in metrics["scores"]:
        assert record["finished"] is True
        assert [epoch["epoch"] for epoch in record["epochs"]] == [1, 2]
        assert record["step_ms"] > 0
        assert record["peak_memory_mib"] > 0
        assert 0 <= record["test"]["exact_match"] <= 1
        assert 0 <= record["test"]["chrf"] <= 100
        assert 0 <= record["test"]["bleu"] <= 100
    scaled_dot, additive = metrics["scores"]
    assert scaled_dot["score_parameters"] == 0
    assert additive["score_parameters"] == 16 * 16 + 16 * 16 + 16
    assert additive["parameters"] - scaled_dot["parameters"] == additive["score_parameters"]


def test_examples_are_the_same_items_for_every_score(
    run: tuple[dict[str, Any], Path, Script],
) -> None:
    metrics, _, _ = run
    one, other = ([e["source"] for e in record["examples"]] for record in metrics["scores"])
    assert one == other
    assert len(one) == 6
    for record in metrics["scores"]:
        for example in record["examples"]:
            assert len(example["weights"]) == len(example["output"])
            for row in example["weights"]:
                assert len(row) == len(example["source"])
                assert sum(row) == pytest.approx(1, abs=1e-3)


def test_the_watcher_hears_everything(run: tuple[dict[str, Any], Path, Script]) -> None:
    _, _, watcher = run
    assert watcher.heard == [
        f"begins {2 * 2 * 4}",
        *("scaled_dot 1", "scaled_dot 2", "scaled_dot ends"),
        *("additive 1", "additive 2", "additive ends"),
    ]


def test_the_same_seed_gives_the_same_metrics(
    run: tuple[dict[str, Any], Path, Script], tmp_path: Path
) -> None:
    def untimed(metrics: dict[str, Any]) -> dict[str, Any]:
        scores = [
            {k: v for k, v in record.items() if k != "step_ms"}
            | {"epochs": [{k: v for k, v in e.items() if k != "seconds"} for e in record["epochs"]]}
            for record in metrics["scores"]
        ]
        return metrics | {"scores": scores, "created": None}

    again = compare(tiny_task(), SETTINGS, tmp_path, command="anyscore compare")
    assert untimed(again) == untimed(run[0])


def test_the_order_of_scores_does_not_matter(
    run: tuple[dict[str, Any], Path, Script], tmp_path: Path
) -> None:
    settings = replace(SETTINGS, scores=("additive",))
    (alone,) = compare(tiny_task(), settings, tmp_path)["scores"]
    assert alone["test"] == run[0]["scores"][1]["test"]
    assert alone["examples"] == run[0]["scores"][1]["examples"]


@pytest.mark.parametrize("score", SCORES)
def test_a_saved_model_gives_the_same_outputs(
    run: tuple[dict[str, Any], Path, Script], score: str
) -> None:
    metrics, folder, _ = run
    loaded = load_run(folder, score)
    assert loaded.unit == "word"
    assert loaded.config["task"]["name"] == "upper"
    data = encode(tiny_task())
    assert loaded.source_vocabulary == data.source_vocabulary
    assert loaded.target_vocabulary == data.target_vocabulary
    record = metrics["scores"][SCORES.index(score)]
    assert sum(p.numel() for p in loaded.model.parameters()) == record["parameters"]
    by_source = {item.source: item for item in data.test}
    for example in record["examples"]:
        item = by_source[tuple(example["source"])]
        (answer,) = answers(loaded.model, data, [item], return_weights=True)
        assert [*answer.tokens, *["</s>"][: answer.complete]] == example["output"]
        assert answer.weights is not None
        expected = torch.tensor(example["weights"])
        torch.testing.assert_close(answer.weights, expected, rtol=0, atol=1e-4)


def test_a_run_that_is_not_there_or_damaged_is_one_clear_line(
    run: tuple[dict[str, Any], Path, Script], tmp_path: Path
) -> None:
    _, folder, _ = run
    with pytest.raises(InputError, match="no model of the score 'dot' in this run; it has addi"):
        load_run(folder, "dot")
    with pytest.raises(InputError, match="it has no model at all"):
        load_run(tmp_path, "dot")
    for name in ("additive.json", "additive.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes()[:-60])
    with pytest.raises(InputError, match="the model of 'additive' is damaged"):
        load_run(tmp_path, "additive")
    (tmp_path / "additive.json").write_bytes((folder / "additive.json").read_bytes())
    with pytest.raises(InputError, match="the model of 'additive' is damaged"):
        load_run(tmp_path, "additive")
    (tmp_path / "additive.json").write_text('{"format": 99, "anyscore": "9.9"}')
    with pytest.raises(InputError, match=r"expected format 1, found 99; use the release .*9\.9"):
        load_run(tmp_path, "additive")


def test_an_interrupt_keeps_what_is_finished(
    run: tuple[dict[str, Any], Path, Script], tmp_path: Path
) -> None:
    watcher = Script("additive", at=6)
    metrics = compare(tiny_task(), SETTINGS, tmp_path, watcher=watcher)
    assert watcher.heard[-2:] == ["additive 1", "interrupted"]
    assert metrics == read(tmp_path)
    assert metrics["interrupted"] is True
    scaled_dot, additive = metrics["scores"]
    assert scaled_dot["test"] == run[0]["scores"][0]["test"]
    assert additive["finished"] is False
    assert additive["test"] is None
    assert len(additive["epochs"]) == 1
    assert additive["step_ms"] > 0
    assert (tmp_path / "scaled_dot.safetensors").exists()
    assert not (tmp_path / "additive.safetensors").exists()
    assert (tmp_path / "report.html").exists()


def test_an_interrupt_before_anything_is_known_still_reports(tmp_path: Path) -> None:
    metrics = compare(tiny_task(), SETTINGS, tmp_path, watcher=Script("scaled_dot", at=1))
    assert metrics["interrupted"] is True
    assert metrics["scores"][0]["epochs"] == []
    assert (tmp_path / "report.html").exists()


def test_a_second_interrupt_is_not_caught(tmp_path: Path) -> None:
    class Twice(Script):
        def interrupted(self) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(tiny_task(), SETTINGS, tmp_path, watcher=Twice("additive", at=1))
    assert (tmp_path / "scaled_dot.safetensors").exists()
    assert not (tmp_path / "report.html").exists()


def test_a_score_that_fails_does_not_stop_the_others(
    run: tuple[dict[str, Any], Path, Script], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoilt(score: str, data: Encoded, settings: Settings) -> torch.nn.Module:
        model = build_model(score, data, settings)
        if score == "scaled_dot":
            with torch.no_grad():
                model.to_logits.bias[EOS] = torch.nan
        return model

    monkeypatch.setattr(module, "build_model", spoilt)
    metrics = compare(tiny_task(), SETTINGS, tmp_path)
    scaled_dot, additive = metrics["scores"]
    assert scaled_dot["failure"].startswith("the loss became nan in step 1")
    assert scaled_dot["finished"] is False
    assert additive["test"] == run[0]["scores"][1]["test"]
    assert metrics["interrupted"] is False
    assert (tmp_path / "report.html").exists()


def test_models_that_do_not_fit_together_are_trained_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(module, "step_times", fail)
    metrics = compare(tiny_task(), replace(SETTINGS, epochs=1), tmp_path)
    assert [record["finished"] for record in metrics["scores"]] == [True, True]
    assert [record["step_ms"] for record in metrics["scores"]] == [None, None]
    assert (tmp_path / "report.html").exists()


def test_a_model_too_large_for_this_machine_is_a_clear_failure(tmp_path: Path) -> None:
    settings = replace(SETTINGS, scores=("dot",), hidden=10**12)
    (record,) = compare(tiny_task(), settings, tmp_path)["scores"]
    assert record["failure"].startswith("there is not enough memory; give a smaller --batch-size")


def test_what_is_finished_is_on_disk_before_the_next_score(tmp_path: Path) -> None:
    class Killed(Script):
        def score_ends(self, record: dict[str, Any]) -> None:
            raise SystemExit

    with pytest.raises(SystemExit):
        compare(tiny_task(), SETTINGS, tmp_path, watcher=Killed())
    metrics = read(tmp_path)
    assert [record["finished"] for record in metrics["scores"]] == [True]
    assert metrics["interrupted"] is True


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_is_one_clear_line_and_no_half_file(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(f"anyscore.lab.files.os.{call}", full)
    with pytest.raises(RunFailure, match=r"scaled_dot\.safetensors: the disk is full; free some"):
        compare(tiny_task(), replace(SETTINGS, epochs=1), tmp_path)
    assert list(tmp_path.iterdir()) == []
