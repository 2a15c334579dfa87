"""One cell: a row in a dtype, an implementation and a framework, compared with exact results.

Errors are in units of the dtype's eps times the largest entry of the exact result. As in `budget`,
a result may be off by twice the error of plain operations and a band of roundings. Sums of
gradients may cancel: a gradient may also be off by the roundings of its terms. The backward
recomputes weights from the log-sum-exp (docs/kernel.md). A gradient of values may therefore be off
by the rounding of the log-sum-exp, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from anyscore import Edges
from helpers.budget import BAND, EPS, assert_near, error, size
from parity.expected import Expected
from parity.extras import EXTRAS
from parity.frameworks import Framework
from parity.rows import (
    HALVES,
    Row,
    attended,
    has_empty_rows,
    has_padding,
    kept,
    of,
    padded,
    upstream,
)

IMPLEMENTATIONS = ("reference", "fused")
WIDE = ("lse", "scores", "log_weights")
"""Results that are float32 for inputs of half precision."""
BANDS = {"float32": BAND, "float64": BAND, "float16": 4, "bfloat16": 4}
"""Allowed roundings of a result: few in half precision, which accumulates in float32."""
ROUND_FACTORS = ("W", "W_q", "W_k", "w_q")
"""Parameters whose scores round factors in half precision before the sum in float32."""


@dataclass
class Cell:
    """errors: multiples of eps of results and gradients. used: the largest share of a budget.

    outside: the mistakes, in words. refused: the reason if the cell did not run. nan: True if
    masked inputs are NaN. empty: True if the mask leaves queries without keys.
    """

    row: Row
    dtype: str
    impl: str
    nan: bool = False
    empty: bool = False
    errors: dict[str, float] = field(default_factory=dict)
    used: float = 0.0
    outside: list[str] = field(default_factory=list)
    refused: str | None = None

    def judge(self, name: str, actual: Any, dtype: str, expected: Expected) -> None:
        """Record the error of one result or gradient, which must have that dtype."""
        exact, eps = expected.exact[name], EPS[self.dtype]
        allowed = 2 * expected.plain.get(name, 0.0) + eps * BANDS[self.dtype] * size(exact)
        allowed += self.eps_of_terms() * expected.terms.get(name, 0.0)
        if (
            name == "gradient of value" and "lse" in expected.exact
        ):  # weights come from a rounded log-sum-exp
            wide = "float32" if self.dtype in HALVES else self.dtype
            allowed += EPS[wide] * size(expected.exact["lse"]) * size(exact)
        try:
            assert_near(actual, exact, allowed, name, dtype)
            _assert_zeros(name, actual, self.row)
        except AssertionError as problem:
            self.outside.append(str(problem).split("[[")[0].rstrip(": "))  # without the array
            if tuple(actual.shape) != exact.shape:
                return
        off = error(actual, exact)
        multiple = _ratio(off, eps * size(exact))
        self.errors[name] = max(multiple, self.errors.get(name, 0.0))
        self.used = max(self.used, _ratio(off, allowed))

    def eps_of_terms(self) -> float:
        """Return the eps of the dtype that computes and adds up the terms of gradients."""
        score = of(self.row).score
        rounds = any(score.shapes.get(name) for name in ROUND_FACTORS)
        rounds = rounds or score.kind in ("Cosine", "SquaredProduct")
        return EPS["float32" if self.dtype in HALVES and not rounds else self.dtype]


def _ratio(off: float, unit: float) -> float:
    """Return off / unit; 0 if both are 0."""
    return 0.0 if off == 0 else off / unit if unit else math.inf


def _assert_zeros(name: str, actual: Any, row: Row) -> None:
    """Assert that a result is exactly 0 where nothing is attended."""
    if name == "weights":
        some = kept(row)
    elif name == "output":
        some = kept(row).any(axis=-1, keepdims=True)
    elif name.startswith("gradient"):
        some = attended(row, name.removeprefix("gradient of "))
    else:
        return
    x = actual.double().numpy() if hasattr(actual, "detach") else np.asarray(actual, np.float64)
    assert not np.where(some, 0.0, x).any(), f"{name} is not 0 where nothing is attended"


def _edges(f: Framework, keep: np.ndarray) -> Edges:
    """Return the edges of the keys that the first problem attends, in random order."""
    pairs = np.argwhere(keep.reshape(-1, *keep.shape[-2:])[0])
    pairs = np.random.default_rng(0).permutation(pairs)
    return Edges.from_index(f.array(pairs[:, ::-1].T.copy()), keep.shape[-2])


def measure(f: Framework, row: Row, dtype: str, impl: str, expected: Expected) -> Cell:
    """Measure values without recording, the output alone (its path may differ), and gradients."""
    cell = Cell(row, dtype, impl, has_padding(row), has_empty_rows(row))
    extra, wide = EXTRAS[row[3]], "float32" if dtype in HALVES else dtype
    inputs = {name: f.array(x, dtype) for name, x in padded(row, dtype).items()}
    masking = of(row).masking(partial(f.mask, mask=row[2]))

    def dtype_of(name: str) -> str:
        return wide if name in WIDE else dtype

    def call(given: dict[str, Any], names: tuple[str, ...]) -> tuple[Any, ...]:
        c = of(row)
        fields = {name: given.get(name, x) for name, x in c.parameters.items()}
        score = f.score(c.score.build(fields, lambda x: x))
        return tuple(extra.call(given, names, score=score, **masking, impl=impl))

    try:
        if extra.edges:
            masking = {"mask": _edges(f, kept(row))}
        with np.errstate(all="ignore"):
            results = [*zip(extra.results, call(inputs, extra.results), strict=True)]
            if "output" in extra.results:
                results += [("output", *call(inputs, ("output",)))]
            times = tuple(f.array(x, dtype_of(name)) for name, x in upstream(row).items())
            found, slopes = f.gradients(partial(call, names=extra.losses), inputs, times)
        results += zip(extra.losses, found, strict=True)
        results += [(f"gradient of {name}", x) for name, x in slopes.items()]
        results = [(name, f.numbers(x)) for name, x in results]  # MXNet computes only here
    except NotImplementedError as refusal:
        cell.refused = str(refusal)
        return cell
    except Exception as problem:  # the page shows any exception
        text = f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}"
        f.settle()
        if (row[0], dtype) in f.refusals or row[3] in f.lacks:
            cell.refused = text
        else:
            cell.outside.append(text)
        return cell
    for name, x in results:
        cell.judge(name, x, dtype_of(name), expected)
    return cell
