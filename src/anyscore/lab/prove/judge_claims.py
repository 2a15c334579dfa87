"""An interval over seeds and test items decides each check of a claim.

    low, high = mean ± t · error        (verdict/statistics.py), at a level of 1 − 0.05 / checks,

so that all intervals of a proof hold their true means together with 95 % (Bonferroni). A check
holds if its whole interval is on the claim's side of the bound. The check fails if the whole
interval is on the other side, and is open otherwise. A claim is confirmed if all its checks hold,
contradicted if one fails, and undecided otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from anyscore.lab.finished import Finished
from anyscore.lab.prove.proof import Check, Proof
from anyscore.lab.verdict.judge import Measure
from anyscore.lab.verdict.statistics import Spread

HOLDS, FAILS, OPEN = "holds", "fails", "open"
VERDICTS = {HOLDS: "confirmed", FAILS: "contradicted", OPEN: "undecided"}


def judge_claims(proof: Proof, trials: Mapping[str, Sequence[Finished]]) -> dict[str, Any]:
    """Decide whether a claim stands, by the trials of each part.

    Args:
        trials: finished trials, by the part's name.

    Returns:
        "state", "verdict", "level" and "checks". Each check is a record with "mean", "low", "high"
        (None with fewer than two seeds) and "state": "holds", "fails" or "open".
    """
    level = 1 - 0.05 / max(len(proof.checks), 1)
    measures = {
        (part.name, measure.name): measure for part in proof.parts for measure in part.measures
    }
    checks = [
        {**asdict(x), **_checked(x, trials.get(x.part, ()), measures[x.part, x.measure], level)}
        for x in proof.checks
    ]
    states = {x["state"] for x in checks}
    state = FAILS if FAILS in states else OPEN if OPEN in states or not states else HOLDS
    return {"state": state, "verdict": VERDICTS[state], "level": level, "checks": checks}


def _checked(
    check: Check, trials: Sequence[Finished], measure: Measure, level: float
) -> dict[str, Any]:
    """Check a bound by the trials of its part."""
    of_score = {x.trial.seed: x for x in trials if x.trial.score == check.score}
    of_beside = {x.trial.seed: x for x in trials if x.trial.score == check.beside}
    seeds = sorted(of_score if check.beside is None else of_score.keys() & of_beside.keys())
    unknown = {"mean": None, "low": None, "high": None, "seeds": len(seeds), "state": OPEN}
    if not seeds:
        return unknown
    rows = [measure.of_items(of_score[seed]) for seed in seeds]
    if check.beside is not None:
        rows = [x - measure.of_items(of_beside[seed]) for x, seed in zip(rows, seeds, strict=True)]
    spread = Spread.of(np.array(rows), measure.span)
    if len(seeds) < 2:
        return unknown | {"mean": spread.mean}
    margin = spread.margin(level)
    low, high = spread.mean - margin, spread.mean + margin
    if measure.bounded and check.beside is None:
        low, high = max(low, 0.0), min(high, measure.span)
    state = _state(low, high, check.at_least, check.at_most)
    return unknown | {"mean": spread.mean, "low": low, "high": high, "state": state}


def _state(low: float, high: float, at_least: float | None, at_most: float | None) -> str:
    """Return whether an interval is within bounds, beyond one, or neither."""
    least = -np.inf if at_least is None else at_least
    most = np.inf if at_most is None else at_most
    if high < least or low > most:
        return FAILS
    return HOLDS if low >= least and high <= most else OPEN
