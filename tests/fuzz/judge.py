"""Compare results of a call with the exact answer."""

from __future__ import annotations

import numpy as np

from fuzz.drawn import Call
from fuzz.exact import Answer, Expected, Problem
from fuzz.runners import Answered

LEAST = {"float64": 1e-300, "float32": 1e-36, "bfloat16": 1e-36, "float16": 1e-6}
"""Errors below these are allowed: smaller numbers may be 0 in the dtype."""


def excess(actual: np.ndarray, expected: Expected, eps: float, least: float) -> np.ndarray:
    """Return errors in units of the allowed error; ∞ for a wrong NaN or ±∞."""
    assert actual.shape == expected.x.shape, f"has shape {actual.shape}, not {expected.x.shape}"
    known = expected.known & (actual != expected.x)
    x, y = np.where(known, actual, 0.0), np.where(known, expected.x, 0.0)
    finite = np.isfinite(x) & np.isfinite(y)
    error = np.abs(np.where(finite, x, 0.0) - np.where(finite, y, 0.0))
    ratio = error / (np.where(finite, expected.bound(eps), 0.0) + least)
    return np.where(finite, ratio, np.inf)


def ratios(call: Call, problem: Problem, answer: Answer, found: Answered) -> dict[str, np.ndarray]:
    """Return `excess` of each result, by name."""
    exact = {"output": answer.output, "weights": answer.weights, "lse": answer.lse}
    pairs = {name: (x, exact[name]) for name, x in found.results.items()}
    pairs |= {f"∂{name}": (x, answer.gradients[name]) for name, x in found.gradients.items()}
    least = LEAST[call.dtype]
    return {name: excess(x, y, problem.eps, least) for name, (x, y) in pairs.items()}


def judge(call: Call, problem: Problem, answer: Answer, found: Answered, by: str) -> None:
    """Assert that the results are right, and report name, place and size of a wrong one."""
    assert found.unchanged, f"{by}: an input was written to"
    for name, ratio in ratios(call, problem, answer, found).items():
        if ratio.size and ratio.max() > 1:
            at = tuple(map(int, np.unravel_index(np.argmax(ratio), ratio.shape)))
            raise AssertionError(
                f"{by}: {name}{list(at)} is off by {ratio.max():.3g} times what is allowed, as are "
                f"{(ratio > 1).sum()} of {ratio.size} entries"
            )
    for name, dtype in found.dtypes.items():
        wide = "float64" if call.dtype == "float64" else "float32"
        right = wide if name == "lse" else call.dtype
        assert dtype == right, f"{by}: {name} is {dtype}, not {right}"
    if "weights" in found.results:
        masked = ~problem.keep & answer.weights.known
        assert (found.results["weights"][masked] == 0).all(), f"{by}: what is masked has a weight"
    empty = ~problem.keep.any(-1)
    assert (found.results["output"][empty] == 0).all(), f"{by}: nothing attended, yet output"
