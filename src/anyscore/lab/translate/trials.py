"""A trained model is chosen from the trials of a comparison."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

from anyscore.lab.assemble import COMPARISON_FILE
from anyscore.lab.comparison import Comparison
from anyscore.lab.errors import InputError
from anyscore.lab.finished import Finished
from anyscore.lab.forms import PLAIN, named
from anyscore.lab.phrases import listed
from anyscore.lab.records import read_record
from anyscore.lab.trials import Trial
from anyscore.score import SCORES


def find_trial(folder: Path, score: str | None = None, seed: int | None = None) -> Path:
    """Return the folder of a trial with a model in it.

    A trial's folder is returned itself. In a comparison's folder the verdict's recommended score is
    taken, or without one the highest mean; then the seed with the lowest validation loss.

    Args:
        folder: of a comparison, or of one of its trials.
        score, seed: of the trial, to choose another one of a comparison.

    Raises:
        InputError: no such folder, trial or model; no verdict yet; or something is damaged.
    """
    if not folder.is_dir():
        what = "a file" if folder.exists() else "nothing"
        raise InputError(f"{folder}: expected the folder of a comparison or a trial, found {what}")
    if (folder / "model.json").is_file():
        if score is not None or seed is not None:
            raise InputError(
                f"{folder}: --score and --seed choose among the trials of a comparison, and this "
                "is a trial's folder; leave them out"
            )
        return folder
    if (folder / "trial.json").is_file():
        raise _no_model(folder)
    comparison = Comparison(folder)
    comparison.shared()  # else the folder is no comparison
    seeds = _seeds(comparison)
    score = _recommended(folder) if score is None else score
    if score not in seeds:
        raise InputError(f"--score: {folder} has trials of {listed(list(seeds))}, none of {score}")
    if seed is not None and seed not in seeds[score]:
        has = listed(list(map(str, seeds[score])))
        raise InputError(f"--seed: {folder} has trials of {score} with {has}, none with {seed}")
    if seed is None:
        seed = _best_seed(comparison, score, seeds[score])
    place = comparison.folder_of(Trial(score, seed))
    if not (place / "model.json").is_file():
        raise _no_model(place)
    return place


def find_trials(
    folder: Path, scores: Sequence[str] | None = None, seed: int | None = None
) -> list[Path]:
    """Return the folders of trials of a comparison, one for each score; see `find_trial`.

    Args:
        scores: their names; None takes all with trials, in the order of `SCORES`.

    Raises:
        InputError: as `find_trial`; or the folder is no comparison's, or a score comes twice.
    """
    comparison = Comparison(folder)
    comparison.shared()  # else the folder is no comparison
    if scores is None:
        names = list(SCORES)
        scores = sorted(_seeds(comparison), key=lambda x: names.index(x) if x in names else -1)
    for score in scores:
        if scores.count(score) > 1:
            raise InputError(f"--score: expected each score once, got {score} several times")
    return [find_trial(folder, score, seed) for score in scores]


def _no_model(place: Path) -> InputError:
    """Return the error of a folder without a model."""
    return InputError(
        f"{place}: there is no model in it; anyscore translate runs models of anyscore compare"
    )


def _seeds(comparison: Comparison) -> dict[str, list[int]]:
    """Return by score the seeds of its trials, without those at other learning rates.

    Raises:
        InputError: no trial has finished.
    """
    seeds_by_score: dict[str, list[int]] = {}
    for name in sorted(comparison.names()):
        match = re.fullmatch(r"(.+)-seed(\d+)", name, re.DOTALL)
        if match:
            seeds_by_score.setdefault(match[1], []).append(int(match[2]))
    if not seeds_by_score:
        raise InputError(
            f"{comparison.folder}: no trial has finished; continue the comparison first"
        )
    return {score: sorted(seeds) for score, seeds in seeds_by_score.items()}


def _recommended(folder: Path) -> str:
    """Return the score that the verdict recommends, or the best one."""
    try:
        verdict = read_record(named(PLAIN), folder, COMPARISON_FILE, advice="")["verdict"]
        score = verdict["recommendation"]["score"] or verdict["standings"][0]["score"]
    except (InputError, KeyError, TypeError, IndexError):
        raise InputError(
            f"{folder}: there is no verdict in it; give --score, or run anyscore report {folder}"
        ) from None
    return str(score)


def _best_seed(comparison: Comparison, score: str, seeds: list[int]) -> int:
    """Return the seed with the lowest validation loss of any epoch; the first of equals."""
    if len(seeds) == 1:
        return seeds[0]
    return min(seeds, key=lambda seed: _loss(comparison.load(Trial(score, seed).name)))


def _loss(trial: Finished) -> float:
    """Return the lowest validation loss of a trial."""
    losses = [x.get("valid_loss") for x in trial.epochs if isinstance(x, dict)]
    return min((x for x in losses if isinstance(x, int | float)), default=math.inf)
