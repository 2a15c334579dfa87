"""Verdicts of made-up trials."""

from __future__ import annotations

import math
from itertools import combinations
from statistics import mean, stdev
from typing import Any

from anyscore.lab.phrases import counted


def sample_verdict(comparison: dict[str, Any]) -> dict[str, Any]:
    """Return a verdict that fits the trials, by the plainest statistics."""
    measure = "exact_match" if comparison["task"]["unit"] == "character" else "chrf"
    title = {"exact_match": "exact match", "chrf": "chrF"}[measure]
    found: dict[str, dict[str, float]] = {}
    for trial in comparison["trials"]:
        if "test" in trial:
            values = found.setdefault(trial["score"], {})
            values[str(trial["seed"])] = round(trial["test"][measure], 4)
    standings = [_standing(name, values) for name, values in found.items()]
    standings.sort(key=lambda s: -s["mean"])
    differences = [_difference(a, b, title) for a, b in combinations(standings, 2)]
    best = standings[0]["score"] if standings else None
    return {
        "measure": measure,
        "title": title,
        "unit": "points",
        "items": comparison["task"]["test"],
        "level": 0.95,
        "decimals": 1,
        "standings": standings,
        "differences": differences,
        "warnings": ["gaussian was still learning when its last epoch ended: give it more epochs."],
        "recommendation": {"score": best, "sentence": f"Recommendation: take {best}."}
        if best
        else {"score": None, "sentence": "No score can be recommended: no trial finished."},
        "sentences": [d["sentence"] for d in differences[:4]] or ["Nothing can be compared."],
    }


def _standing(name: str, values: dict[str, float]) -> dict[str, Any]:
    middle = mean(values.values())
    half = 2 * (stdev(values.values()) if len(values) > 1 else 0.8) / math.sqrt(len(values)) + 0.3
    standing = {"score": name, "mean": middle, "low": middle - half, "high": middle + half}
    return standing | {"seeds": values}


def _difference(better: dict[str, Any], worse: dict[str, Any], title: str) -> dict[str, Any]:
    paired = [v - worse["seeds"][s] for s, v in better["seeds"].items() if s in worse["seeds"]]
    several = len(paired) > 1
    middle = mean(paired) if paired else 0.0
    half = 2 * (stdev(paired) if several else 1.0) / math.sqrt(len(paired) or 1) + 0.3
    low, high = middle - half, middle + half
    kind = "differs" if low > 0 else "equal" if high < 1.6 else "undecided"
    first, second = better["score"], worse["score"]
    p = math.exp(-2 * max(middle, 0) / half) if several else None
    interval = f"(95 %: {low:.1f} to {high:.1f}; {counted(len(paired), 'seed')} × 1,000 items)"
    sentence = {
        "differs": f"{first} beats {second} by {middle:.1f} points of {title} {interval}.",
        "equal": f"No difference larger than {high:.1f} points between {first} and {second}.",
        "undecided": f"{first} and {second} are undecided: about 4 more seeds would decide it.",
    }[kind]
    return {
        "better": better["score"],
        "worse": worse["score"],
        "difference": middle,
        "low": low,
        "high": high,
        "p": p,
        "holm": None if p is None else min(1.0, 4 * p),
        "verdict": kind,
        "bound": high if kind == "equal" else None,
        "more_seeds": 4 if kind == "undecided" else None,
        "more_items": 2000 if kind == "undecided" else None,
        "sentence": sentence,
    }
