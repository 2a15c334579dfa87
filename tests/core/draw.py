"""Random calls with shapes, strides, masks, heads and dtypes from a seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from core.call import Call, stored

Random = np.random.Generator
Shape = tuple[int, ...]

SIZES = (1, 2, 3, 5, 7, 13, 16, 17, 31, 63, 64, 65, 130)
LEADS: tuple[tuple[Shape, int], ...] = (
    ((), 1), ((1,), 1), ((2,), 1), ((3,), 3), ((2, 3), 1), ((2, 4), 2), ((1, 6), 3), ((2, 2), 2),
    ((2, 1, 3), 1),
)  # fmt: skip
"""(leading dimensions, number of query heads for each key head)."""
WORK = 250_000
"""Largest number of multiply-adds of a call: queries × keys × (hidden + value) of all heads."""

MASKS = (
    "none", "lengths", "causal", "window", "interval", "boolean", "per query", "per key",
    "interval and boolean", "all masked",
)  # fmt: skip


def draw(rng: Random, pair: str, mask: str, dtype: str, /, **given: Any) -> Call:
    """Return a random call of a pair, mask and dtype. `given` fixes queries, keys, hidden, width
    (of values), lead, groups, dropout, or fields of `Call`.
    """
    lead, groups = given.pop("lead", None), given.pop("groups", 1)
    if lead is None:
        lead, groups = LEADS[rng.integers(len(LEADS))]
    sizes = [given.pop(name, None) for name in ("queries", "keys", "hidden", "width")]
    queries, keys, hidden, width = _sizes(rng, sizes, math.prod(lead))
    of_key = (*lead[:-1], lead[-1] // groups) if lead else ()
    numbers = _numbers(rng, dtype)
    tokens = [
        numbers(_lead(rng, lead), queries, hidden),
        numbers(_lead(rng, of_key), keys, hidden),
        numbers(_lead(rng, of_key), keys, width),
    ]
    compute = "float64" if dtype == "float64" else "float32"
    fields: dict[str, Any] = {
        "pair": pair, "lead": lead, "groups": groups, "compute": compute,
        "scale": float(rng.choice([1.0, 0.5, -1.5])) / (math.sqrt(hidden) if hidden else 1.0),
        "a": tokens[0], "b": tokens[1], "value": tokens[2],
        "d_output": numbers(lead, queries, width),
    }  # fmt: skip
    if rng.random() < 0.7:
        fields["weight"] = numbers(_lead(rng, lead), hidden)
    if rng.random() < 0.4:
        bias = stored(rng.standard_normal((*_lead(rng, of_key), keys)), dtype)
        fields["key_bias"] = strided(rng, bias)
    if rng.random() < 0.6:
        fields["d_lse"] = rng.standard_normal((*lead, queries)).astype(compute)
    if rng.random() < 0.3:
        fields["dropout"] = float(rng.choice([0.1, 0.5, 0.9]))
        fields["seed"] = int(rng.integers(-(2**63), 2**63))
        if lead and rng.random() < 0.5:
            fields["period"] = max(math.prod(lead[1:]), 1)
    fields |= masked(rng, mask, lead, queries, keys)
    if rng.random() < 0.4:
        fields |= outer(rng, pair, fields, given)
    fields |= given
    if rng.random() < 0.3 and "bias" not in given:
        fields |= biased(rng, dtype, fields)
    if rng.random() < 0.5:
        scores = *fields["lead"], fields["a"].shape[-2], fields["b"].shape[-2]
        d_scores = rng.standard_normal(scores).astype(fields["compute"])
        fields = {"d_scores": d_scores} | fields
    for x in fields.values():
        if isinstance(x, np.ndarray):
            x.flags.writeable = False
    return Call(**fields)


def outer(rng: Random, pair: str, fields: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Draw an outer function, and factors without negative sums unless it is a cap."""
    drawn = {"outer": "tanh", "outer_scale": float(rng.choice([0.5, 5.0, 50.0]))}
    other = given.keys() & {"weight", "key_bias", "scale"}
    if pair not in ("squared", "absolute") or other or rng.random() < 0.3:
        return drawn
    drawn |= {"outer": str(rng.choice(["sqrt", "log1p", "arcosh"])), "key_bias": None}
    drawn |= {"scale": abs(fields["scale"]), "outer_scale": float(rng.choice([0.5, 1.0, 3.0]))}
    if "weight" in fields:
        x = fields["weight"]
        drawn["weight"] = x & 0x7FFF if x.dtype == np.int16 else np.abs(x)
    return drawn


def biased(rng: Random, dtype: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Draw a bias: a matrix or one number for each diagonal, after a function of distances."""
    queries, keys = fields["a"].shape[-2], fields["b"].shape[-2]
    diagonal = bool(rng.random() < 0.5)
    shape = (1, max(queries + keys - 1, 1)) if diagonal else (queries, keys)
    x = stored(rng.standard_normal((*_lead(rng, fields["lead"]), *shape)), dtype)
    after = fields.get("outer", "") not in ("", "tanh") or rng.random() < 0.3
    return {"bias": strided(rng, x), "diagonal": diagonal, "after": bool(after)}


def _sizes(rng: Random, sizes: list[int | None], heads: int) -> list[int]:
    """Draw each size that is None, sometimes 0, until the work is at most WORK (50 tries)."""
    drawn = []
    for _ in range(50):
        drawn = [int(rng.choice(SIZES)) if n is None else n for n in sizes]
        if rng.random() < 0.05:
            at = int(rng.integers(4))
            drawn[at] = 0 if sizes[at] is None else drawn[at]
        queries, keys, hidden, width = drawn
        if heads * queries * keys * (hidden + width) <= WORK:
            break
    return drawn


def _lead(rng: Random, lead: Shape) -> Shape:
    """Return leading dimensions, some of them 1 to broadcast."""
    return tuple(1 if rng.random() < 0.2 else n for n in lead)


def _numbers(rng: Random, dtype: str) -> Callable[..., np.ndarray]:
    def normal(lead: Shape, *shape: int) -> np.ndarray:
        return strided(rng, stored(rng.standard_normal((*lead, *shape)), dtype), unit=True)

    return normal


def strided(rng: Random, x: np.ndarray, unit: bool = False) -> np.ndarray:
    """Return the same numbers in a random layout. unit: the last axis stays dense."""
    kind = rng.integers(6)
    if kind == 1:  # rows of a wider array
        wide = np.zeros((*x.shape[:-1], x.shape[-1] + 3), x.dtype)
        wide[..., 1:-2] = x
        return wide[..., 1:-2]
    if kind == 2 and x.ndim > 1:  # every other row
        many = np.zeros((*x.shape[:-2], 2 * x.shape[-2], x.shape[-1]), x.dtype)
        many[..., ::2, :] = x
        return many[..., ::2, :]
    if kind == 3 and x.ndim > 2:  # heads beside tokens, as after `x.transpose(1, 2)`
        return np.ascontiguousarray(x.swapaxes(-3, -2)).swapaxes(-3, -2)
    if kind == 4 and x.ndim > 1:  # backwards
        return np.ascontiguousarray(x[..., ::-1, :])[..., ::-1, :]
    if kind == 5 and not unit:  # a last axis that is not dense
        many = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
        many[..., ::2] = x
        return many[..., ::2]
    return x


def masked(rng: Random, mask: str, lead: Shape, queries: int, keys: int) -> dict[str, Any]:
    """Return start, stop and mask of a kind of mask; some leading dimensions broadcast."""
    i = np.arange(queries)
    on = _lead(rng, lead)

    def bounds(low: int = 0, rows: int = queries) -> np.ndarray:
        return rng.integers(low, keys + 1, (*on, rows))

    def clip(x: np.ndarray) -> np.ndarray:
        shift = rng.integers(-3, 4, (*on, 1))
        return strided(rng, np.clip(x + shift, 0, keys).astype(np.int64))

    def boolean(rows: int = queries, columns: int = keys) -> np.ndarray:
        return strided(rng, rng.random((*on, rows, columns)) < rng.choice([0.2, 0.7]))

    if mask == "lengths":
        return {"stop": bounds(rows=1)}
    if mask == "causal":
        return {"stop": clip(i + 1)}
    if mask == "window":
        return {"start": clip(i - 3), "stop": clip(i + 4)}
    if mask == "interval":  # some are empty, and some have start > stop
        return {"start": strided(rng, bounds()), "stop": strided(rng, bounds())}
    if mask == "boolean":
        return {"mask": boolean()}
    if mask == "per query":
        return {"mask": boolean(columns=1)}
    if mask == "per key":
        return {"mask": boolean(rows=1)}
    if mask == "interval and boolean":
        return {"start": bounds(rows=1) // 2, "stop": bounds(), "mask": boolean()}
    if mask == "all masked":
        return {"stop": np.zeros((*on, 1), np.int64), "mask": np.zeros((*on, 1, 1), bool)}
    return {}
