"""The main job: the same model with one score after the other, and what came of it."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from anyscore import __version__
from anyscore.lab.checkpoint import build_model, save_run
from anyscore.lab.cost import peak_memory, step_times
from anyscore.lab.data import Task
from anyscore.lab.encoding import Encoded, Item, encode
from anyscore.lab.examples import choose_examples
from anyscore.lab.files import write_whole
from anyscore.lab.info import describe_machine
from anyscore.lab.measure import parameters
from anyscore.lab.model import Translator
from anyscore.lab.quality import Quality, corpus_scores, exact_match
from anyscore.lab.report import write_report
from anyscore.lab.tokens import EOS, SPECIALS, detokenise
from anyscore.lab.training import (
    ScoreFailure,
    Settings,
    answers,
    reported_failures,
    steps_per_epoch,
    train,
)
from anyscore.layers import SCORES

METRICS_FILE = "metrics.json"
REPORT_FILE = "report.html"


class Watcher:
    """Is told how a comparison goes; this one does nothing with it."""

    def begins(self, metrics: dict[str, Any], steps: int, left_out: int) -> None:
        """Training begins: `steps` in all; `left_out` examples were too long."""

    def score_begins(self, record: dict[str, Any]) -> None:
        """A score's turn begins."""

    def step(self) -> None:
        """A training step of any score is done."""

    def epoch(self, record: dict[str, Any], epoch: dict[str, Any]) -> None:
        """An epoch is done."""

    def score_ends(self, record: dict[str, Any]) -> None:
        """A score is finished, or has failed."""

    def interrupted(self) -> None:
        """Ctrl-C was seen; what is finished is being written."""


def compare(
    task: Task,
    settings: Settings,
    folder: Path,
    *,
    watcher: Watcher | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """Train and test every score of `settings`; write checkpoints, metrics and a report.

    Each finished score is on disk before the next begins. A score that fails leaves its reason
    under "failure", and the others go on. The first Ctrl-C ends the training: what is known by
    then is written all the same, under "interrupted". A second one is not caught.

    Args:
        folder: an empty folder; it gets `<score>.safetensors`, `<score>.json`, `metrics.json` and
            `report.html`.
        watcher: is told how it goes.
        command: what was typed, to be kept in the metrics.

    Returns:
        What `metrics.json` holds.

    Raises:
        InputError: when the task leaves nothing to train on.
        RunFailure: when the disk is full or a file cannot be written.
    """
    watcher = watcher or Watcher()
    data = encode(task)
    metrics = _metrics(task, data, settings) | {"command": command}
    shown = choose_examples(data.test)
    try:
        steps = len(settings.scores) * settings.epochs * steps_per_epoch(data, settings)
        watcher.begins(metrics, steps, data.left_out)
        step_ms = _step_times(data, settings)
        for score in settings.scores:
            record = _record(score) | {"step_ms": step_ms.get(score)}
            metrics["scores"].append(record)
            watcher.score_begins(record)
            try:
                with reported_failures():
                    _run(record, data, shown, settings, metrics["task"], folder, watcher)
            except ScoreFailure as failure:
                record["failure"] = str(failure)
            # As an interrupted run would leave it, should this one end without a word.
            _save(metrics | {"interrupted": True}, folder)
            watcher.score_ends(record)
    except KeyboardInterrupt:
        metrics["interrupted"] = True
        watcher.interrupted()
    _save(metrics, folder)
    write_report(metrics, folder / REPORT_FILE)
    return metrics


def _step_times(data: Encoded, settings: Settings) -> dict[str, float]:
    """`step_times` of all scores, or nothing where their models do not fit into memory together."""
    try:
        with reported_failures():
            models = {score: build_model(score, data, settings) for score in settings.scores}
            return step_times(models, data, settings)
    except ScoreFailure:
        return {}


def _run(
    record: dict[str, Any],
    data: Encoded,
    shown: list[Item],
    settings: Settings,
    task: dict[str, Any],
    folder: Path,
    watcher: Watcher,
) -> None:
    """One score: train, test, save; `record` is filled in as things become known."""
    model = build_model(record["name"], data, settings)
    record["parameters"] = parameters(model)
    record["score_parameters"] = parameters(model.attention)
    record["peak_memory_mib"] = peak_memory(model, data, settings)
    train(
        model,
        data,
        settings,
        record,
        on_step=watcher.step,
        on_epoch=lambda epoch: watcher.epoch(record, epoch),
    )
    test = _test(model, data)
    examples = _examples(model, data, shown)
    save_run(folder, model, data, settings, task)
    record.update(test=test, examples=examples, finished=True)


def _save(metrics: dict[str, Any], folder: Path) -> None:
    text = json.dumps(metrics, ensure_ascii=False, indent=1, allow_nan=False)
    write_whole(folder / METRICS_FILE, text.encode())


def _metrics(task: Task, data: Encoded, settings: Settings) -> dict[str, Any]:
    return {
        "format": 1,
        "anyscore": __version__,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "interrupted": False,
        "machine": describe_machine(settings.device),
        "task": {
            "name": task.name,
            "description": task.description,
            "unit": data.unit,
            "train": len(data.train),
            "valid": len(data.valid),
            "test": len(data.test),
            "left_out": data.left_out,
            "source_vocabulary": len(data.source_vocabulary),
            "target_vocabulary": len(data.target_vocabulary),
        },
        "settings": {
            "scores": list(settings.scores),
            "seed": settings.seed,
            "epochs": settings.epochs,
            "batch_size": settings.batch_size,
            "hidden": settings.hidden,
            "learning_rate": settings.learning_rate,
            "dropout": settings.dropout,
        },
        "scores": [],
    }


def _record(score: str) -> dict[str, Any]:
    """What is known of a score before its turn."""
    return {
        "name": score,
        "formula": SCORES[score].formula,
        "parameters": 0,
        "score_parameters": 0,
        "finished": False,
        "step_ms": None,
        "peak_memory_mib": None,
        "epochs": [],
        "test": None,
        "examples": [],
    }


def _test(model: Translator, data: Encoded) -> Quality:
    given = answers(model, data, data.test)
    outputs = [detokenise(answer.tokens, data.unit) for answer in given]
    chrf, bleu = corpus_scores(outputs, [item.references for item in data.test])
    exact = exact_match([answer.tokens for answer in given], [item.answers for item in data.test])
    return {"exact_match": exact, "chrf": chrf, "bleu": bleu}


def _examples(model: Translator, data: Encoded, shown: list[Item]) -> list[dict[str, Any]]:
    """What a heatmap needs of each item: a row of weights per output token, "</s>" among them."""
    examples = []
    for item, answer in zip(shown, answers(model, data, shown, return_weights=True), strict=True):
        assert answer.weights is not None
        end = [SPECIALS[EOS]] if answer.complete else []
        examples.append(
            {
                "source": list(item.source),
                "output": [*answer.tokens, *end],
                "references": list(item.references),
                "weights": [[round(w, 4) for w in row] for row in answer.weights.tolist()],
            }
        )
    return examples
