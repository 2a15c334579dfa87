"""What a call must satisfy: every mistake is named here, before any work, in the same words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anyscore.ops import FRAMEWORKS, Array, Ops, framework
from anyscore.score import Score

DTYPES = ("float32", "float64", "bfloat16", "float16")
IMPLS = ("auto", "reference", "fused")


@dataclass(frozen=True)
class Sizes:
    """The sizes of a call. lead: the output's leading dimensions, heads last where there are any.

    groups: query heads per key/value head, 1 unless those are fewer.
    """

    lead: tuple[int, ...]
    queries: int
    keys: int
    groups: int


def find_framework(**tensors: Any) -> str:
    """The one framework that all tensors belong to, as a key of FRAMEWORKS."""
    kinds = {name: framework(x) for name, x in tensors.items()}
    for name, kind in kinds.items():
        if kind is None:
            raise TypeError(
                f"{name} is a {type(tensors[name]).__name__}, expected a tensor of one of: "
                f"{', '.join(FRAMEWORKS.values())}."
            )
    first = next(iter(kinds))
    for name, kind in kinds.items():
        if kind != kinds[first]:
            raise TypeError(
                f"{first} is a {FRAMEWORKS[kinds[first] or '']} tensor but {name} is a "
                f"{FRAMEWORKS[kind or '']} tensor: pass all from one framework."
            )
    return kinds[first] or ""


def check_tensors(xp: Ops, query: Array, key: Array, value: Array) -> Sizes:
    """Dtypes and shapes of query, key and value."""
    tensors = {"query": query, "key": key, "value": value}
    dtypes = {name: xp.dtype(x) for name, x in tensors.items()}
    for name, dtype in dtypes.items():
        if dtype not in DTYPES:
            raise TypeError(f"{name} is {dtype}, expected one of {', '.join(DTYPES)}.")
        if dtype != dtypes["query"]:
            raise TypeError(
                f"query is {dtypes['query']} but {name} is {dtype}: convert them to one dtype."
            )
    shapes = {name: xp.shape(x) for name, x in tensors.items()}
    for name, shape in shapes.items():
        if len(shape) < 2:
            raise ValueError(f"{name} has shape {shape}, expected (..., tokens, width): rank ≥ 2.")
    if shapes["key"][-2] != shapes["value"][-2]:
        raise ValueError(
            f"key has {shapes['key'][-2]} tokens but value has {shapes['value'][-2]} "
            f"(shapes {shapes['key']} and {shapes['value']}): each key needs one value."
        )
    lead, groups = _lead(shapes)
    return Sizes(lead, shapes["query"][-2], shapes["key"][-2], groups)


def check_score(xp: Ops, score: Any, query: Array, key: Array) -> None:
    """A score object or a callable, with parameters that fit the tensors."""
    if not isinstance(score, Score):
        if isinstance(score, str | type) or not callable(score):
            raise TypeError(
                f"score must be a score object, such as ScaledDot() or Additive(W_q, W_k, w_v), or "
                f"a callable (query, key) → (..., T_q, T_k), got {score!r}."
            )
        return
    name, dtype = type(score).__name__, xp.dtype(query)
    find_framework(query=query, **{f"{name}.{field}": x for field, x in score.tensors().items()})
    for field, x in score.tensors().items():
        if field not in ("sigma", "tau", "scale") and xp.dtype(x) != dtype:
            raise TypeError(
                f"query is {dtype} but {name}.{field} is {xp.dtype(x)}: convert them to one dtype."
            )
    d_q, d_k = xp.shape(query)[-1], xp.shape(key)[-1]
    problem = score.mismatch(d_q, d_k)
    if problem:
        raise ValueError(f"{name} {problem}; got d_q={d_q} and d_k={d_k}.")


def check_options(dropout: Any, dropout_seed: Any, impl: Any) -> None:
    """The options that are not tensors."""
    if isinstance(dropout, bool) or not isinstance(dropout, int | float):
        raise TypeError(f"dropout must be a number in [0, 1), got {dropout!r}.")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be in [0, 1), got {dropout}.")
    if isinstance(dropout_seed, bool | float | str):
        raise TypeError(
            f"dropout_seed must be an integer or an integer tensor, got {dropout_seed!r}."
        )
    if impl not in IMPLS:
        raise ValueError(f"impl must be one of {', '.join(map(repr, IMPLS))}, got {impl!r}.")


def _lead(shapes: dict[str, tuple[int, ...]]) -> tuple[tuple[int, ...], int]:
    """The broadcast leading dimensions, and the query heads per key/value head."""
    q, k, v = (shapes[name][:-2] for name in ("query", "key", "value"))
    groups = 1
    if min(len(q), len(k), len(v)) >= 2:
        kv_heads = max(k[-1], v[-1])
        if 1 < kv_heads < q[-1] and {k[-1], v[-1]} <= {1, kv_heads} and q[-1] % kv_heads == 0:
            groups = q[-1] // kv_heads
            k, v = ((*lead[:-1], lead[-1] * (groups if lead[-1] > 1 else 1)) for lead in (k, v))
    rank = max(map(len, (q, k, v)))
    padded = [(1,) * (rank - len(lead)) + lead for lead in (q, k, v)]
    lead = []
    for sizes in zip(*padded, strict=True):
        distinct = set(sizes) - {1}
        if len(distinct) > 1:
            hint = ""
            if rank >= 2:
                hint = (
                    " Key and value heads (axis −3) may be fewer than query heads if they divide "
                    "them and all three have that axis."
                )
            raise ValueError(
                "leading dimensions do not broadcast: "
                + ", ".join(f"{name} {shape}" for name, shape in shapes.items())
                + f".{hint}"
            )
        lead.append(distinct.pop() if distinct else 1)
    return tuple(lead), groups
