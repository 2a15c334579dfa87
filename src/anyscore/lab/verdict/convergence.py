"""Signs of a failed training: nothing learnt, still learning, overfitting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any

from anyscore.lab.finished import Finished
from anyscore.lab.phrases import counted, listed

_NOTHING = "Nothing was learnt"
_LITTLE = 0.05
_FALLING = 0.02
_NATS = 0.001  # of a token: of ten tokens, one output in a hundred


def convergence_warnings(trials: Sequence[Finished]) -> list[str]:
    """Return sentences on trials from which no recommendation should be made."""
    if not trials:
        return []
    nothing = _nothing_learnt(trials)
    return [nothing] if nothing else _still_learning(trials)


def _nothing_learnt(trials: Sequence[Finished]) -> str | None:
    """Return a sentence if outputs fit the sources of other items as well as their own.

    "unrelated" among the facts of a trial: by measure, its outputs against the references of other
    items.
    """
    gains: dict[str, list[float]] = {}
    for trial in trials:
        unrelated, related = trial.facts.get("unrelated"), trial.facts.get("related")
        if unrelated is None or related is None:
            return None
        gains.setdefault(trial.trial.score, []).append(related - unrelated)
    if max(mean(x) for x in gains.values()) >= 100 * _LITTLE:
        return None
    return (
        f"{_NOTHING}: with every score, outputs are hardly closer to their own references than to "
        "references of other items."
    )


def _still_learning(trials: Sequence[Finished]) -> list[str]:
    """Return a sentence on scores whose validation loss was still falling at the end."""
    falling: dict[str, list[bool]] = {}
    for trial in trials:
        losses = [x for epoch in trial.epochs if (x := epoch.get("valid_loss")) is not None]
        if len(losses) > 1:
            last = losses[max(0, len(losses) - 1 - max(1, len(losses) // 10))]
            best = min(losses)
            fallen = last - best > max(_FALLING * last, _NATS)
            falling.setdefault(trial.trial.score, []).append(fallen and losses[-1] == best)
    names = [score for score, fallen in falling.items() if mean(fallen) > 0.5]
    if not names:
        return []
    names_text = "every score" if len(names) == len(falling) > 1 else listed(names)
    return [
        f"Training ended too early: the validation loss of {names_text} was still falling by more "
        f"than {_FALLING * 100:.0f} % in the last tenth of training."
    ]


def ceiling(out_of_reach: int, task: Mapping[str, Any]) -> str | None:
    """Return a sentence on test items that no model can answer, if they are one in twenty.

    Args:
        out_of_reach: how many.
        task: facts of the data, as `comparison.json` has them.
    """
    items = task.get("test") or 0
    if out_of_reach <= _LITTLE * items:
        return None
    return (
        f"No model can be right for {out_of_reach:,} of {counted(items, 'test item')}: their "
        f"answers hold a token that training lacks{more_reach(task.get('unit', ''), '. ')}."
    )


def more_reach(unit: str, separator: str) -> str:
    """Name the option with which a model writes words that training lacks, if it reads by words."""
    return f"{separator}--unit bpe makes words of their parts" if unit == "word" else ""


def no_recommendation(warnings: Sequence[str]) -> str:
    """Return the sentence in place of a recommendation; it names a way out."""
    if warnings[0].startswith(_NOTHING):
        return (
            "No recommendation: the models learnt nothing. Rerun with more pairs, more --epochs or "
            "another --learning-rate."
        )
    return "No recommendation: training had not converged. Rerun with more epochs."


def overfitting(trials: Sequence[Finished]) -> str | None:
    """Return a sentence on how early training was at its best, if it was for every score.

    The best epoch is tested, so overfitting costs time alone.
    """
    epochs_by_score: dict[str, list[int]] = {}
    epochs = 0
    for trial in trials:
        best: Any = trial.facts.get("best_epoch")
        if best is not None and trial.epochs:
            epochs_by_score.setdefault(trial.trial.score, []).append(best)
            epochs = max(epochs, len(trial.epochs))
    early = {
        score: median(best) for score, best in epochs_by_score.items() if median(best) <= epochs / 2
    }
    if not early or len(early) < len(epochs_by_score):
        return None
    low, high = min(early.values()), max(early.values())
    when = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    return (
        f"Every score overfits: the validation loss was lowest after epoch {when} of {epochs}. The "
        f"model of that epoch was tested. --epochs {round(high)} would be enough."
    )
