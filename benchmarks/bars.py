"""The bars of a benchmark on a CPU, beside what it found on this processor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyscore.lab.bench.formulas import DOT
from anyscore.lab.bench.work import FORWARD, TRAINING, Shape
from benchmarks.stages import ALIGNER, LARGE, SMALL
from benchmarks.stages_models import GRAPH, LOCATIONS, PACKED

Result = dict[str, Any]


_LONG, _SHORT = Shape(1, 4096, 4096, 64, 64), Shape(64, 30, 50, 256, 256)
_STEP = Shape(64, 1, 50, 256, 512)
_CHEAP = "gatv2", "laplace", "gaussian"
_DOT_BARS: dict[tuple[str, Shape, str], tuple[float, float | None, float]] = {
    # of scaled_dot; of gatv2, laplace and gaussian; of additive
    ("float32", LARGE, FORWARD): (2.2, 1.8, 1.25),
    ("float32", LARGE, TRAINING): (2.0, 1.5, 1.15),
    ("float32", _SHORT, FORWARD): (1.5, 1.3, 1.0),
    ("float32", _SHORT, TRAINING): (1.6, 1.3, 1.0),
    ("float32", _LONG, FORWARD): (2.4, 2.0, 1.25),
    ("float32", _LONG, TRAINING): (2.7, 2.0, 1.3),
    ("float32", _STEP, FORWARD): (1.0, 1.0, 0.9),
    ("float32", SMALL, FORWARD): (0.8, 1.0, 1.0),
    ("bfloat16", LARGE, FORWARD): (1.2, None, 0.8),
    ("bfloat16", LARGE, TRAINING): (1.3, None, 0.8),
    ("bfloat16", _LONG, FORWARD): (1.5, None, 1.2),
    ("bfloat16", _LONG, TRAINING): (2.0, None, 1.1),
}
"""The best dot product's time ÷ the time of anyscore's slowest score, for two threads of Zen 5."""


def bars(results: Sequence[Result]) -> list[Result]:
    """Return all bars with a measurement."""
    return [*_of_dot(results), *_beyond(results), *_of_graphs(results), *_of_models(results)]


def _of_dot(results: Sequence[Result]) -> list[Result]:
    """Return the bars of the part `dot`, for the shapes, passes and dtype that it measured."""
    rows = []
    for r in results:
        key = r["dtype"], Shape(*r["shape"]), r["passes"]
        if r["part"] != "dot" or key not in _DOT_BARS:
            continue
        rivals = [_ratio(r, e["name"]) for e in r["entrants"] if e["name"].startswith("dot")]
        best = min((x for x in rivals if x is not None), default=None)
        for scores, goal in zip(((DOT,), _CHEAP, ("additive",)), _DOT_BARS[key], strict=True):
            ours = [1.0 if s == DOT else _ratio(r, f"anyscore, {s}") for s in scores]
            slowest = max((x for x in ours if x is not None), default=None)
            if best is not None and slowest is not None and goal is not None:
                name = f"{', '.join(scores)}: {key[1]}, {r['passes']}"
                rows.append(judged(f"dot product ÷ {name}", best / slowest, ">", goal))
    return rows


def _beyond(results: Sequence[Result]) -> list[Result]:
    """Return the bars with the measured values: name, target, value, met. The list is empty if no
    value was measured.

    The bars of a custom pair are for the large call, and compare forward passes.
    """
    aligner = _row(results, "beyond", ALIGNER, TRAINING, "aligner", "gaussian")
    softplus = _row(results, "pairs", LARGE, FORWARD, "attention", "softplus")
    leaky = _row(results, "pairs", LARGE, FORWARD, "attention", "gatv2")
    mib = _entry(aligner, "anyscore").get("mib")
    matrix = 4 * ALIGNER.batch * ALIGNER.queries * ALIGNER.keys / 2**20
    rows = [
        ("aligner: broadcast formula ÷ ours", _ratio(aligner, "eager"), ">", 10),
        ("aligner: torch.cdist ÷ ours", _ratio(aligner, "cdist"), ">", 1),
        ("aligner: our memory, in matrices", mib and mib / matrix, "<", 3),
        ("own pair, softplus: KeOps ÷ ours", _ratio(softplus, "keops"), ">", 10),
        ("own pair ÷ the same pair built in", _ratio(leaky, "own pair"), "<", 2),
    ]
    return [judged(*bar) for bar in rows] if any(bar[1] for bar in rows) else []


def _of_graphs(results: Sequence[Result]) -> list[Result]:
    """Return the bars of layers over edges: against the best of PyTorch Geometric."""
    rows = []
    for r in results:
        if r["part"] != "graphs" or Shape(*r["shape"]) != GRAPH:
            continue
        theirs = [e for e in r["entrants"] if e["name"].startswith("pyg")]
        ratios = [e["ratio"]["median"] for e in theirs if e["ratio"]]
        weights = [e["mib"] for e in theirs if e.get("mib")]
        ours = _entry(r, "anyscore").get("mib")
        name = f"GATv2Conv, {r['degrees']}, {r['passes']}: PyTorch Geometric ÷ ours"
        if ratios:
            rows.append(judged(name, min(ratios), ">", 8))
        if weights and ours:
            rows.append(judged(f"{name}, memory", min(weights) / ours, ">", 8))
    return rows


def _of_models(results: Sequence[Result]) -> list[Result]:
    """Return the bars of packed sequences, of steps in speech, and of caches."""
    rows = []
    for r in results:
        shape, part = Shape(*r["shape"]), r["part"]
        if part == "packed" and shape == PACKED:
            name = f"packed, {r['score']}, {r['passes']}: padded ÷ ours"
            rows.append(judged(name, _ratio(r, "padded"), ">", 2.5))
        elif part == "location" and shape in [x[0] for x in LOCATIONS]:
            theirs = [_ratio(r, name) for name in ("espnet", "espnet-compile")]
            best = min((x for x in theirs if x is not None), default=None)
            rows.append(judged(f"location-sensitive step, {shape}: ESPnet ÷ ours", best, ">", 5))
        elif part == "cache" and r["score"] == "additive":
            products = _ratio(r, "bmm")
            ours = products and 1 / products
            rows.append(judged(f"cache, {shape}: ours ÷ bmm, softmax, bmm", ours, "<", 1.5))
    return rows


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
