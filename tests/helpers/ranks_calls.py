"""Calls across ranks, compared with the same call of one process, on every rank."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from anyscore import (
    Additive,
    ALiBi,
    Bilinear,
    Causal,
    Contiguous,
    Cosine,
    Dot,
    Euclidean,
    GATv2,
    Gaussian,
    Interval,
    Keys,
    Laplace,
    Lorentz,
    Relative,
    ScaledDot,
    Sequences,
    Sigmoid,
    StudentT,
    Trilinear,
    Uneven,
    Window,
    Zigzag,
    attention,
)
from anyscore.functional.layouts import Layout

BATCH, HEADS, TOKENS, WIDTH, HIDDEN, D_V = 2, 2, 36, 6, 8, 5

Leaves = dict[str, Tensor]
SCORES: dict[str, Callable[[Leaves], Any]] = {
    "additive": lambda x: Additive(x["W_q"], x["W_k"], x["w"]),
    "gatv2": lambda x: GATv2(x["W_q"], x["W_k"], x["w"]),
    "bilinear": lambda x: Bilinear(x["W_q"][:WIDTH]),
    "trilinear": lambda x: Trilinear(x["W_q"][0], x["W_k"][0], x["w"][:WIDTH]),
    "laplace": lambda x: Laplace(2.0),
    "gaussian": lambda x: Gaussian(1.5),
    "scaled_dot": lambda x: ScaledDot(),
    "dot": lambda x: Dot(),
    "cosine": lambda x: Cosine(2.0),
    "euclidean": lambda x: Euclidean(1.0),
    "student_t": lambda x: StudentT(1.0),
    "lorentz": lambda x: Lorentz(1.0),
}
ONE_OUTER = "euclidean", "student_t", "lorentz"
"""The scores with an outer function, which take no cap across ranks."""


def _third() -> Tensor:
    return torch.arange(TOKENS) % 3 > 0


OPTIONS: dict[str, Callable[[Leaves], dict[str, Any]]] = {
    "plain": lambda x: {},
    "causal": lambda x: {"mask": Causal("end")},
    "window": lambda x: {"mask": Window(5, 2, align="end")},
    "lengths": lambda x: {"valid_lens": torch.tensor([TOKENS - 3, 0])},
    "causal and lengths": lambda x: {"mask": Causal("end"), "valid_lens": torch.tensor([3, 36])},
    "interval": lambda x: {"mask": Interval(torch.tensor([4, 30]), None)},
    "keys": lambda x: {"mask": Causal("end") & Keys(_third())},
    "documents": lambda x: {"mask": Sequences([0, 10, 11, TOKENS]) & Causal()},
    "alibi": lambda x: {"mask": Causal("end"), "bias": ALiBi(x["per_head"].abs(), align="end")},
    "relative, cap": lambda x: {"bias": Relative(x["table"], align="end"), "softcap": 3.0},
    "bias after": lambda x: {"bias_after": Relative(x["table"], align="end")},
    "sink": lambda x: {"mask": Causal("end"), "sink": x["per_head"]},
    "sigmoid": lambda x: {"mask": Causal("end") & Keys(_third()), "normalizer": "sigmoid"},
    "sigmoid, bias": lambda x: {"mask": Causal("end"), "normalizer": Sigmoid(-2.0)},
}


def layout_of(name: str, ranks: int) -> Layout:
    group = dist.group.WORLD
    if name == "uneven":
        return Uneven(group, [TOKENS - 7 * (ranks - 1), *[7] * (ranks - 1)])
    if name == "empty ranks":
        return Uneven(group, [*[0] * (ranks - 1), TOKENS])
    if name == "without tokens":
        return Contiguous(group)
    return {"contiguous": Contiguous, "zigzag": Zigzag}[name](group, TOKENS)


def drawn(queries: int, dtype: torch.dtype = torch.float64, kv_heads: int = HEADS) -> Leaves:
    """Return queries, keys, values and parameters, the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {
        "query": (BATCH, HEADS, queries, WIDTH),
        "key": (BATCH, kv_heads, TOKENS, WIDTH),
        "value": (BATCH, kv_heads, TOKENS, D_V),
        "W_q": (HIDDEN, WIDTH),
        "W_k": (HIDDEN, WIDTH),
        "w": (HIDDEN,),
        "per_head": (HEADS,),
        "table": (HEADS, 11),
        "upstream": (BATCH, HEADS, queries, D_V),
    }
    return {
        name: torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)
        for name, shape in shapes.items()
    }


def results(
    leaves: Leaves, score: str, option: str, impl: str, across: Any = None
) -> dict[str, Tensor]:
    """Return output, log-sum-exp and gradients of a call, alone or across ranks."""
    x = {name: y.clone().requires_grad_(name != "upstream") for name, y in leaves.items()}
    queries, keys = across or (None, None)

    def part(name: str, layout: Layout | None) -> Tensor:
        return x[name] if layout is None else layout.shard(x[name])

    given = OPTIONS[option](x)
    has_lse = given.get("normalizer", "softmax") == "softmax"
    more = {} if across is None else {"across": across}
    found = attention(
        part("query", queries), part("key", keys), part("value", keys), score=SCORES[score](x),
        return_lse=has_lse, impl=impl, **given, **more,
    )  # fmt: skip
    output = found.output if has_lse else found
    loss = (output * part("upstream", queries)).sum()
    made = {"output": output.detach()}
    if has_lse:
        made["lse"] = found.lse.detach()[..., None]
        loss = loss + 0.3 * torch.where(found.lse == -math.inf, 0.0, found.lse).sum()
    loss.backward()
    return made | {f"d_{name}": y.grad for name, y in x.items() if y.grad is not None}


def compare(
    rank: int, ranks: int, scheme: str, layout: str, scores: list[str], option: str, impl: str,
    dtype: str = "float64", kv_heads: int = HEADS,
) -> dict[str, float]:  # fmt: skip
    """Return the largest error of each score across ranks, relative to numbers of one process."""
    keys = layout_of(layout, ranks)
    few = None if scheme == "stay" else Zigzag(dist.group.WORLD, 7)
    across = (keys, keys) if scheme == "ring" else (few, keys)
    leaves = drawn(TOKENS if scheme == "ring" else 7, getattr(torch, dtype), kv_heads)
    return {
        score: _error(
            results(leaves, score, option, impl),
            results(leaves, score, option, impl, across),
            across,
        )
        for score in scores
    }


def _error(alone: dict[str, Tensor], found: dict[str, Tensor], across: Any) -> float:
    """Return the largest difference. Gradients are summed over ranks, unless each has the whole."""
    worst, queries = 0.0, across[0]
    for name, expected in alone.items():
        y = found.get(name, torch.zeros_like(expected)).clone()
        if not name.startswith("d_"):
            expected = expected if queries is None else queries.shard(expected)
        elif queries is not None or name in ("d_key", "d_value"):
            dist.all_reduce(y)
        assert y.shape == expected.shape
        if y.numel():
            same = torch.equal(y == -math.inf, expected == -math.inf)
            difference = torch.where(expected == -math.inf, 0.0, y - expected).abs().max().item()
            worst = max(worst, difference if same else math.inf)
            worst = math.nan if difference != difference else worst
    return worst
