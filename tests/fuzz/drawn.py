"""A call of `attention` as plain data, with numbers from a seed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fuzz.beside import Beside
from fuzz.exact import Problem, Shape, philox_kept, used_rows
from fuzz.mask_specs import Spec, allowed
from helpers.table_scores import RANKS

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-23, "bfloat16": 2.0**-23}
STORE = {"float64": 0.0, "float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}


@dataclass(frozen=True)
class Call:
    """A call of `attention`.

    parameters: shapes of tensors, or values of other parameters. data, magnitude: distribution of
    queries and keys. fill: number in tokens that are not attended; None for ordinary numbers.
    poison: (tensor, NaN or ±∞ in one of its tokens, attended or not). layout: memory layouts of
    query, key and value. softcap: c, or 0 for no cap. exact, function: see `Problem`.
    """

    framework: str
    dtype: str
    kind: str
    parameters: dict[str, Any]
    query: Shape
    key: Shape
    value: Shape
    groups: int
    mask: list[Spec]
    valid_lens: Any
    lists: bool
    data: str
    magnitude: float
    spread: float
    fill: float | None
    poison: tuple[str, float] | None
    layout: tuple[str, str, str]
    softcap: float
    dropout: float
    seed: int
    weights: bool
    lse: bool
    derivatives: bool
    sum_of_output: bool
    prepared: bool
    numbers: int
    beside: Beside
    exact: bool = False
    function: str = ""
    lead: Shape = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lead", lead_of(self.query, self.key, self.value, self.groups))

    @property
    def keep(self) -> np.ndarray:
        given = [*self.mask]
        if self.valid_lens is not None:
            given.append(Spec("Lengths", {"n": self.valid_lens}))
        return allowed(given, self.lead, self.query[-2], self.key[-2])

    @property
    def has_gaps(self) -> bool:
        """Return whether a key that no query attends is before one that some query attends."""
        used = used_rows({"key": self.key}, self.lead, self.keep)["key"]
        later = np.logical_or.accumulate(used[..., ::-1], axis=-1)[..., ::-1]
        return bool((later & ~used).any())

    def problem(self) -> Problem:
        """Return the call in numbers."""
        rng = np.random.default_rng(self.numbers)
        keep = self.keep
        arrays = {
            name: _tokens(rng, self.data if name != "value" else "normal", shape, sign)
            * (self.magnitude if name != "value" else 1.0)
            for name, shape, sign in (
                ("query", self.query, 1), ("key", self.key, -1), ("value", self.value, 1),
            )
        }  # fmt: skip
        parameters: dict[str, Any] = {}
        for name, given in self.parameters.items():
            parameters[name] = given
            if isinstance(given, tuple):
                x = rng.standard_normal(given) * self.spread
                if RANKS[name] == 2:
                    x = x / math.sqrt(max(given[-1], 1))
                if RANKS[name] == 0:
                    x = np.exp(rng.uniform(-1, 1, given)) * self.spread
                parameters[name] = np.asarray(x)
        if self.poison is not None:
            which, what = self.poison
            flat = arrays[which].reshape(-1)
            if flat.size:
                flat[rng.integers(flat.size)] = what
        if self.fill is not None:
            shapes = {"query": self.query, "key": self.key, "value": self.value}
            for name, used in used_rows(shapes, self.lead, keep).items():
                arrays[name][~used] = self.fill
        exact = np.longdouble if self.dtype == "float64" else np.float64
        arrays = {name: stored(x, self.dtype).astype(exact) for name, x in arrays.items()}
        parameters = {
            name: stored(x, self.dtype).astype(exact) if isinstance(x, np.ndarray) else x
            for name, x in parameters.items()
        }
        beside = {
            name: stored(x, self.dtype).astype(exact)
            for name, x in self.beside.draw_numbers(rng, keep, self.fill).items()
        }
        d_output = d_weights = d_lse = kept = None
        rows = (*self.lead, self.query[-2])
        if self.derivatives:
            d_output = rng.standard_normal((*rows, self.value[-1]))
            if self.sum_of_output:
                d_output[:] = 1.0
            d_output = stored(d_output, self.dtype).astype(exact)
            if self.weights:
                d_weights = stored(rng.standard_normal((*rows, self.key[-2])), self.dtype)
                d_weights = d_weights.astype(exact)
            if self.lse:
                wide = "float64" if self.dtype == "float64" else "float32"
                d_lse = stored(rng.standard_normal(rows), wide).astype(exact)
        if self.dropout:
            kept = philox_kept(self.seed, self.dropout, self.lead, *keep.shape[-2:])
        return Problem(
            self.kind, arrays["query"], arrays["key"], arrays["value"], parameters, self.lead,
            keep, EPS[self.dtype], STORE[self.dtype], kept, self.dropout,
            d_output, d_weights, d_lse, softcap=self.softcap, beside=self.beside, tensors=beside,
            exact=self.exact, function=self.function,
        )  # fmt: skip


def lead_of(query: Shape, key: Shape, value: Shape, groups: int) -> Shape:
    """Return the leading dimensions of the output; a key head has `groups` query heads."""
    leads = [query[:-2]]
    for shape in (key, value):
        heads = shape[-3:-2] if groups == 1 or shape[-3] == 1 else (shape[-3] * groups,)
        leads.append((*shape[:-3], *heads))
    return tuple(np.broadcast_shapes(*leads))


def stored(x: np.ndarray, dtype: str) -> np.ndarray:
    """Return x rounded to `dtype`."""
    if dtype == "bfloat16":
        bits = np.asarray(x, np.float32).view(np.uint32)
        upper = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        rounded = (upper & np.uint32(0xFFFF0000)).view(np.float32)
        return np.where(np.isfinite(x), rounded, x).astype(np.float64)
    with np.errstate(over="ignore"):
        return np.asarray(x).astype(dtype).astype(np.float64)


def _tokens(rng: np.random.Generator, data: str, shape: Shape, sign: int) -> np.ndarray:
    x = rng.standard_normal(shape)
    if data == "small":
        return x / math.sqrt(max(shape[-1], 1))
    if data == "opposite":
        return 0.1 * x + 50 * sign
    if data == "shifted":
        return x + 1e3
    if data == "integers":
        return rng.integers(-2, 3, shape).astype(float)
    if data == "zero rows":
        return np.where(rng.random((*shape[:-1], 1)) < 0.3, 0.0, x)
    if data == "alike" and shape[-2]:  # queries and keys repeat the same few tokens
        few = np.random.default_rng(0).standard_normal((3, shape[-1]))
        return few[rng.integers(0, 3, shape[:-1])]
    return x
