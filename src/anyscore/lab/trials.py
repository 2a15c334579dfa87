"""A trial trains one model with one score and one seed; its folder is written once, whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote


def file_name(score: str) -> str:
    """Return the name of a score as the name of a file, with %2F for a slash, as in a URL.

    No two scores have the same name, and none leads to another folder.
    """
    name = quote(score, safe=" ()+,=")
    return f"%2E{name[1:]}" if name.startswith(".") else name


@dataclass(frozen=True)
class Trial:
    """One training.

    Attributes:
        score: name of the score.
        seed: of the first parameters, the order of the data and dropout.
        learning_rate: None takes that of the settings.
    """

    score: str
    seed: int
    learning_rate: float | None = None

    @property
    def name(self) -> str:
        """The name of the trial's folder."""
        rate = "" if self.learning_rate is None else f"-rate{self.learning_rate:g}"
        return f"{file_name(self.score)}-seed{self.seed}{rate}"


@dataclass
class Outcome:
    """The results of a trial.

    Attributes:
        measures: by name, a number for each test item, the same items in the same order in every
            trial; larger is better, as in {"exact_match": [0.0, 1.0, 1.0]}.
        statistics: by the name of a measure of the whole test set, such as chrF, a row of numbers
            for each item. Sums of rows over items give the measure.
        outputs: the model's answer to each item.
        epochs: a record for each: "epoch", "steps", "train_loss", "valid_loss",
            "valid_exact_match", "seconds".
        facts: anything else, as JSON has it: "best_epoch", "parameters", "score_parameters",
            "peak_memory_mib", "examples".
        save: writes the trained model into a folder.
    """

    measures: dict[str, Sequence[float]]
    statistics: dict[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    outputs: Sequence[str] | None = None
    epochs: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    save: Callable[[Path], None] | None = None


Report = Callable[[dict[str, Any]], None]
"""Takes progress: {"step": 10, "steps": 1900}, or the record of an epoch."""

Train = Callable[[Trial, Report], Outcome]
"""Trains a trial. If it raises an exception the trial fails, and the others go on."""
