"""Models of a comparison become the data of a page."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anyscore.lab.comparison import Comparison
from anyscore.lab.errors import InputError
from anyscore.lab.finished import read_finished
from anyscore.lab.train.checkpoint import Run, load_run
from anyscore.lab.train.recurrent import Recurrent
from anyscore.score import SCORES

MOST = 16_000_000
"""The most bytes of a page's models."""
_EXAMPLES = 3


def play_data(folder: Path, trials: Sequence[Path]) -> dict[str, Any]:
    """Return the data of a page: vocabularies, examples, and the models in float16.

    Args:
        folder: of a comparison.
        trials: folders of its trials, one for each model; see `find_trials`.

    Raises:
        InputError: the page cannot run a model or its tokens, or would be too large; or the run is
            damaged.
    """
    shared = Comparison(folder).shared().get("task") or {}
    runs = []
    for trial in trials:
        run = load_run(trial)
        _check(trial, run)
        runs.append(run)
        if _known(run) != _known(runs[0]):
            raise InputError(
                f"{trial}: expected the vocabularies of {trials[0]}, found others; the run folder "
                "is damaged: train again"
            )
    first = runs[0]
    models = [_model(trial, run) for trial, run in zip(trials, runs, strict=True)]
    return {
        "title": shared.get("description") or shared.get("name") or "",
        "run": folder.name,
        **_known(first),
        "examples": _examples(trials, first),
        "models": _small(models),
    }


def _check(trial: Path, run: Run) -> None:
    """Raise InputError if the page cannot run a model."""
    model = run.config["settings"]["model"]
    if not isinstance(run.model, Recurrent):
        raise InputError(
            f"--play: {trial} has a model of the kind {model}, and the page runs recurrent models; "
            "train with --model recurrent, or give sources and --html"
        )
    if "bpe" in (run.source_tokeniser.unit, run.target_tokeniser.unit):
        raise InputError(
            f"--play: {trial} reads or writes subwords, and the page does not make them; train "
            "with --unit word or character, or give sources and --html"
        )


def _known(run: Run) -> dict[str, Any]:
    """Return the facts that all models of a page share."""
    return {
        "unit": {"source": run.source_tokeniser.unit, "target": run.target_tokeniser.unit},
        "source_vocabulary": run.source_vocabulary.to_json(),
        "target_vocabulary": run.target_vocabulary.to_json(),
        "limit": run.limit,
    }


def _model(trial: Path, run: Run) -> dict[str, Any]:
    """Return a model as plain data."""
    tensors = {}
    for name, x in run.model.state_dict().items():
        with np.errstate(over="ignore"):
            half = x.numpy().astype("<f2")
        if not np.isfinite(half).all():
            raise InputError(
                f"--play: {trial} has parameters that are no numbers in float16; choose another "
                "--seed, or other scores by --score"
            )
        data = base64.b64encode(half.tobytes()).decode()
        tensors[name] = {"shape": list(half.shape), "data": data}
    settings, score = run.config["settings"], run.config["score"]
    facts = run.config.get("trial")
    seed = facts.get("seed") if isinstance(facts, dict) else None
    return {
        "score": score,
        "seed": seed if isinstance(seed, int) else None,
        "formula": SCORES[score].formula,
        "hidden": settings["hidden"],
        "tensors": tensors,
    }


def _small(models: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the models; raise InputError if they are too large for a page."""
    sizes = [sum(len(x["data"]) for x in model["tensors"].values()) for model in models]
    if sum(sizes) > MOST:
        fitting = MOST // max(sizes)
        remedy = f"choose {fitting} of them by --score" if fitting else "train a smaller --hidden"
        raise InputError(
            f"--play: expected at most {MOST // 10**6} MB of models on a page, got "
            f"{sum(sizes) / 1e6:.1f} MB; {remedy}"
        )
    return models


def _examples(trials: Sequence[Path], run: Run) -> list[dict[str, Any]]:
    """Return recorded test items: of ASCII first, which most visitors read; then the easiest."""
    recorded = [
        read_finished(trial.parent, trial.name).facts.get("examples") or [] for trial in trials
    ]
    right = [sum(bool(x.get("right")) for x in column) for column in zip(*recorded, strict=False)]
    sources = [run.source_tokeniser.detokenise(x["source"]) for x in recorded[0][: len(right)]]
    best = sorted(range(len(right)), key=lambda i: (not sources[i].isascii(), -right[i]))
    return [
        {"source": sources[i], "target": next(iter(recorded[0][i]["references"]), None)}
        for i in best[:_EXAMPLES]
    ]
