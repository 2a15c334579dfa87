"""The bars of what lies beyond attention, beside what a benchmark found on this processor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyscore.lab.bench.stages import ALIGNER, LARGE
from anyscore.lab.bench.work import FORWARD, TRAINING, Shape

Result = dict[str, Any]


def bars(results: Sequence[Result]) -> list[Result]:
    """Return the bars beside what was measured: name, target, value, met; none where all is not.

    Those of a pair of one's own are for the large call, and compare forward passes.
    """
    aligner = _row(results, "beyond", ALIGNER, TRAINING, "aligner", "gaussian")
    softplus = _row(results, "pairs", LARGE, FORWARD, "attention", "softplus")
    leaky = _row(results, "pairs", LARGE, FORWARD, "attention", "gatv2")
    mib = _entry(aligner, "anyscore").get("mib")
    matrix = 4 * ALIGNER.batch * ALIGNER.queries * ALIGNER.keys / 2**20
    found = [
        ("aligner: broadcast formula ÷ ours", _ratio(aligner, "eager"), ">", 10),
        ("aligner: torch.cdist ÷ ours", _ratio(aligner, "cdist"), ">", 1),
        ("aligner: our memory, in matrices", mib and mib / matrix, "<", 3),
        ("own pair, softplus: KeOps ÷ ours", _ratio(softplus, "keops"), ">", 10),
        ("own pair ÷ the same pair built in", _ratio(leaky, "own pair"), "<", 2),
    ]
    return [judged(*bar) for bar in found] if any(bar[1] for bar in found) else []


def judged(name: str, value: float | None, sign: str, goal: float) -> Result:
    """Return a bar beside a value, which must be > or < its goal, or equal to it."""
    return {
        "name": name,
        "target": f"{'≥' if sign == '>' else '≤'} {goal:g}",
        "value": value,
        "met": None if value is None else value >= goal if sign == ">" else value <= goal,
    }


def _row(
    results: Sequence[Result], part: str, shape: Shape, passes: str, task: str, score: str
) -> Result:
    """Return the comparison of this work, without entrants if there was none."""
    wanted = [part, list(shape), passes, task, score]
    for r in results:
        if [r["part"], list(r["shape"]), r["passes"], r["task"], r["score"]] == wanted:
            return r
    return {"entrants": []}


def _entry(result: Result, name: str) -> Result:
    return next((e for e in result["entrants"] if e["name"] == name), {})


def _ratio(result: Result, name: str) -> float | None:
    ratio = _entry(result, name).get("ratio")
    return float(ratio["median"]) if ratio else None
