"""Made-up trials: an answer is right with a probability of score, seed and item."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

import numpy as np

from anyscore.lab.comparison import Finished
from anyscore.lab.trials import Outcome, Report, Trial

LOGITS = {"worse": 0.0, "even": 1.5, "twin": 1.5, "better": 3.0}


def made(trial: Trial, items: int = 400, luck: float = 0.05) -> Outcome:
    """Return the outcome of a trial, the same at each call; other scores count as "even"."""
    own = np.random.default_rng([trial.seed, *trial.score.encode()])
    common = np.random.default_rng(0).normal(0, 2, items)
    logit = LOGITS.get(trial.score, 1.5) + own.normal(0, luck) + common
    right = own.random(items) < 1 / (1 + np.exp(-logit))
    losses = [{"epoch": 1, "steps": 10, "train_loss": 1.0, "valid_loss": 0.9}]
    return Outcome(
        {"exact_match": right.astype(float).tolist()},
        statistics={"chrf": np.stack([right, np.ones(items), *[0 * right] * 16], 1).tolist()},
        outputs=["yes" if x else "no" for x in right],
        epochs=losses,
        facts={"parameters": 7},
    )


def finished(trial: Trial, **how: float) -> Finished:
    found = made(trial, **how)  # type: ignore[arg-type]
    measures = {name: np.array(x) for name, x in found.measures.items()}
    rows = {name: np.array(x) for name, x in found.statistics.items()}
    return Finished(trial, measures, rows, list(found.outputs or []), found.epochs, found.facts)


@dataclass(frozen=True)
class Trainer:
    """Report three steps, then return the made outcome, or fail as `faults` says of the score."""

    faults: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0

    def __call__(self, trial: Trial, report: Report) -> Outcome:
        fault = dict(self.faults).get(trial.score)
        for step in range(1, 4):
            report({"step": step, "steps": 3})
            time.sleep(self.seconds / 3)
        outcome = made(trial, items=50)
        if fault == "raises":
            raise KeyError("no such\nthing")
        if fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "exits":
            os._exit(3)
        if fault == "nan":
            outcome.measures["exact_match"] = [float("nan")] * 50
        if fault == "shape":
            outcome.measures["exact_match"] = [[1.0], [0.0]]  # type: ignore[list-item]
        if fault == "nothing":
            return None  # type: ignore[return-value]
        if fault == "memory":
            raise MemoryError
        return outcome
