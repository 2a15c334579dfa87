"""Helpers run a call through `anyscore._core` and compare it with the formulas, within a budget."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anyscore.call.operands import N_DIFFERENTIABLE, Operands
from anyscore.kernels.cpu import AT_ONCE
from core import literal
from core.call import Call, name_of, numbers, stored
from core.literal import Results
from helpers import machine
from helpers.budget import BAND, EPS, assert_near, error, size

core: Any = pytest.importorskip("anyscore._core", reason=machine.CORE)


def runnable() -> set[str]:
    """Return the instruction sets of this processor; a core built for it alone lacks some."""
    found = set(core.isas())
    return found | {"avx2"} if "avx512" in found else found


WIDER = {"float32": np.float64, "float64": np.longdouble}
GRADIENTS = Operands._fields[:N_DIFFERENTIABLE]


def run(call: Call, threads: int = 1, prepared: bool = False) -> Results:
    """Return all results of the core by name; unwritten entries are NaN.

    Each gradient appears twice: "d_a kept" and so on come from a backward that has the scores.
    """
    results = forward(call, threads, prepared)
    recomputed = backward(call, threads, results | {"scores": None})
    return results | recomputed | _kept(call, threads, results)


def _kept(call: Call, threads: int, results: Results) -> Results:
    if not call.keeps_scores:
        return {}
    kept = {name: results[name] for name in ("stats", "scores")}
    if call.keys > AT_ONCE:
        kept["output"] = results["output"]
    return {f"{name} kept": x for name, x in backward(call, threads, kept).items()}


def forward(call: Call, threads: int = 1, prepared: bool = False) -> Results:
    """Return output, stats and scores, with the log-sum-exp and the weights computed from them."""
    output = nan((*call.lead, call.queries, call.value.shape[-1]), name_of(call.value))
    stats, scores = empty_stats(call), empty_scores(call)
    packed = prepare(call, threads) if prepared else None
    core.forward(call.operands(packed), call.pair, call.numbers, (output, stats, scores), threads)
    with np.errstate(all="ignore"):
        weights, lse = weights_of(np, scores, stats), stats.sum(-2)
    return {"output": output, "stats": stats, "lse": lse, "scores": scores, "weights": weights}


def weights_of(xp: Any, scores: Any, stats: Any) -> Any:
    """Return the weights of scores and their statistics."""
    most, log_sum = stats[..., 0, :, None], stats[..., 1, :, None]
    weights = xp.exp(scores - xp.where(most == -np.inf, 0, most) - log_sum)
    return xp.where(scores == -np.inf, 0, weights)


def empty_stats(call: Call) -> np.ndarray:
    return nan((*call.lead, 2, call.queries), call.compute)


def empty_scores(call: Call) -> np.ndarray:
    return nan((*call.lead, call.queries, call.keys), call.compute)


def d_stats(call: Call) -> np.ndarray | None:
    """Return the gradient of statistics: NaN for the largest scores, which no kernel reads."""
    if call.d_lse is None:
        return None
    return np.stack([np.full_like(call.d_lse, np.nan), call.d_lse], -2)


def prepare(call: Call, threads: int = 1) -> np.ndarray:
    packed = nan((*call.b.shape[:-2], call.keys + 1, call.b.shape[-1]), call.compute)
    core.prepare_keys(call.pair, call.b, packed, threads)
    return packed


def backward(call: Call, threads: int = 1, results: Results | None = None) -> Results:
    """Return gradients from `results`, or from a forward if None."""
    if results is None:
        results = forward(call, threads) | {"scores": None}
    found = {
        name: None if x is None else nan(x.shape, call.compute)
        for name in GRADIENTS
        for x in (getattr(call, name),)
    }
    given = (results.get("output"), results["stats"], results.get("scores"))
    core.backward(
        call.operands(), call.pair, call.numbers, given,
        (call.d_output, d_stats(call), call.d_scores), tuple(found.values()), threads,
    )  # fmt: skip
    return {f"d_{name}": x for name, x in found.items() if x is not None}


def run_alone(call: Call, threads: int = 2) -> Results:
    """Return the results of the call without values: no output and no gradient of values."""
    x = call.operands()._replace(value=None)
    stats, scores = empty_stats(call), empty_scores(call)
    core.forward(x, call.pair, call.numbers, (None, stats, scores), threads)
    found: Results = {"stats": stats, "lse": stats.sum(-2), "scores": scores}
    for kept in (None, scores) if call.keeps_scores else (None,):
        made = [None if y is None else nan(y.shape, call.compute) for y in x[:N_DIFFERENTIABLE]]
        upstream, results = (None, d_stats(call), call.d_scores), (None, stats, kept)
        core.backward(x, call.pair, call.numbers, results, upstream, tuple(made), threads)
        kind = "" if kept is None else " kept"
        named = zip(GRADIENTS, made, strict=True)
        found |= {f"d_{name}{kind}": y for name, y in named if y is not None}
    return found


def nan(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return an array of NaN, which shows unwritten entries."""
    return stored(np.full(shape, math.nan, np.float32), dtype)


def check(call: Call, alike: bool = False, gradients: bool = True, **how: Any) -> Results:
    """Assert that every result is within the budget, and return the results.

    The budget is twice the error of plain operations in the same dtype, plus a band. The band has
    BAND roundings of the largest entry, and two of the sum of a score's terms. Gradients add the
    sum of their own terms, as these may cancel.

    alike: gradients may have NaN in place of ±∞. gradients: whether to compare gradients.
    """
    found = run(call, **how)
    compare(call, found, alike, gradients, **how)
    return found


def compare(
    call: Call, found: Results, alike: bool = False, gradients: bool = True, **how: Any
) -> None:
    """Assert that results are within the budget of `check`."""
    if not gradients:
        found = {name: x for name, x in found.items() if not name.startswith("d_")}
    exact = literal.run(call, WIDER[call.compute])
    plain = literal.run(call, np.dtype(call.compute).type, rounded=True)
    terms = literal.sizes(call)
    for name, x in found.items():
        if name == "weights":  # scores are the core's own
            continue
        of = name.removesuffix(" kept")
        expected = exact[of]
        if name.startswith("d_"):
            band = (BAND + 2 * terms["score"]) * size(expected) + terms[of]
        else:
            unit = size(numbers(call.value)) if name == "output" else 1.0
            band = BAND * size(expected) + 2 * terms["score"] * unit
        allowance = 2 * error(plain[of], expected) + EPS[call.compute] * band
        if name_of(x) != call.compute:
            allowance += EPS[name_of(x)] * size(expected)
        actual = numbers(x)
        if alike and name.startswith("d_"):
            actual, expected = (np.where(np.isfinite(y), y, np.nan) for y in (actual, expected))
        try:
            assert_near(actual, expected, allowance, name)
        except AssertionError as problem:
            raise AssertionError(f"{problem}\n{call} {how}") from None


def same(x: Results, y: Results) -> bool:
    """Return whether all results have the same bits."""
    return x.keys() == y.keys() and all(x[name].tobytes() == y[name].tobytes() for name in x)


def with_compute(call: Call, dtype: str) -> Call:
    """Return the same call, computed in another dtype."""
    d_lse, d_scores = (None if x is None else x.astype(dtype) for x in (call.d_lse, call.d_scores))
    return replace(call, compute=dtype, d_lse=d_lse, d_scores=d_scores)
