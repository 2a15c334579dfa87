"""What stands against a recommendation: nothing learnt, still learning; and overfitting."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median
from typing import Any

from anyscore.lab.comparison import Finished
from anyscore.lab.phrases import listed

_LITTLE = 0.05
_FALLING = 0.02
_NATS = 0.001  # of a token: of ten tokens, one output in a hundred


def doubts(trials: Sequence[Finished]) -> list[str]:
    """Sentences on trials that no recommendation should be made from."""
    if not trials:
        return []
    nothing = _nothing_learnt(trials)
    return [nothing] if nothing else _still_learning(trials)


def _nothing_learnt(trials: Sequence[Finished]) -> str | None:
    """Tell whether outputs fit the sources of other items as well as their own.

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
        "Nothing was learnt: with every score, outputs are hardly nearer to their own references "
        "than to those of other items. Give more pairs, more --epochs or another --learning-rate."
    )


def _still_learning(trials: Sequence[Finished]) -> list[str]:
    """Scores whose validation loss was still falling when training ended."""
    falling: dict[str, list[bool]] = {}
    for trial in trials:
        losses = [epoch["valid_loss"] for epoch in trial.epochs if "valid_loss" in epoch]
        if len(losses) > 1:
            last = losses[max(0, len(losses) - 1 - max(1, len(losses) // 10))]
            best = min(losses)
            fallen = last - best > max(_FALLING * last, _NATS)
            falling.setdefault(trial.trial.score, []).append(fallen and losses[-1] == best)
    names = [score for score, seen in falling.items() if mean(seen) > 0.5]
    if not names:
        return []
    who = "every score" if len(names) == len(falling) > 1 else listed(names)
    return [
        f"Training ended too early: the validation loss of {who} was still falling by more than "
        f"{_FALLING * 100:.0f} % in the last tenth of training. Give more --epochs."
    ]


def overfitting(trials: Sequence[Finished]) -> str | None:
    """How early training was at its best; the best epoch is tested, so it costs time alone."""
    at: dict[str, list[int]] = {}
    epochs = 0
    for trial in trials:
        best: Any = trial.facts.get("best_epoch")
        if best is not None and trial.epochs:
            at.setdefault(trial.trial.score, []).append(best)
            epochs = max(epochs, len(trial.epochs))
    early = {score: median(x) for score, x in at.items() if median(x) <= epochs / 2}
    if not early or len(early) < len(at):
        return None
    low, high = min(early.values()), max(early.values())
    when = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    return (
        f"Every score overfits: its validation loss was lowest after epoch {when} of {epochs}, and "
        f"that epoch was tested. --epochs {round(high)} would do, or more pairs."
    )
