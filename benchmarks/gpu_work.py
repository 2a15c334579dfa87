"""The work of `gpu.py`: sizes, inputs that all implementations share, and what is right."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

BUDGET = 2e-2
"""The largest error let pass, as a share of the largest entry: for all implementations, outputs and
gradients. Rounding values and weights to bfloat16 gives about 3e-3 of it.
"""
CHECKED = 2**29  # elements of the queries that are compared
AT_ONCE = 2**24  # of them, computed in float64 at a time
NAMES = "output", "gradient of query", "gradient of key", "gradient of value", "gradient of w"

_TANH = 0.394  # mean square of tanh of a standard normal variable


class Size(NamedTuple):
    """Batch, heads, queries, keys; the width of the score, which is that of the values too."""

    batch: int
    heads: int
    queries: int
    keys: int
    width: int

    @classmethod
    def parse(cls, text: str) -> Size:
        """B,H,T,width.

        >>> Size.parse("2,16,4096,64")
        Size(batch=2, heads=16, queries=4096, keys=4096, width=64)
        """
        try:
            batch, heads, tokens, width = map(int, text.split(","))
        except ValueError:
            batch = heads = tokens = width = 0
        if min(batch, heads, tokens, width) < 1:
            raise ValueError(
                f"expected four whole numbers of 1 or more, B,H,T,width, got {text!r}; for example "
                "2,16,4096,64"
            )
        return cls(batch, heads, tokens, tokens, width)

    @property
    def elements(self) -> int:
        """How many (query, key, feature) there are."""
        return math.prod(self)

    def __str__(self) -> str:
        tokens = str(self.keys) if self.queries == self.keys else f"{self.queries} × {self.keys}"
        return f"B·H {self.batch * self.heads}, T {tokens}, width {self.width}"


@dataclass(frozen=True)
class Work:
    """One piece of work.

    std: standard deviation of queries and keys, which come projected. reach: they are evenly within
    ± reach instead. training: gradients of query, key, value and w too. dtype: of all tensors.
    """

    size: Size
    std: float = 1.0
    reach: float | None = None
    training: bool = False
    dtype: str = "bfloat16"

    @property
    def rows(self) -> Tensor:
        """The queries that are compared: in every tile, and each elsewhere in its tile."""
        count = max(1, CHECKED // (self.size.elements // self.size.queries))
        count = min(count, self.size.queries)
        return torch.linspace(0, self.size.queries - 1, count).long()

    def to(self, **changes: object) -> Work:
        return replace(self, **changes)  # type: ignore[arg-type]


class Inputs(NamedTuple):
    """query, key, value (B, H, T, width), weight (width,); and gradients of the output: d_output,
    and d_checked, which is 0 but for the queries that are compared, so that these give all that the
    right gradients need.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    weight: Tensor
    d_output: Tensor
    d_checked: Tensor


def inputs(work: Work, device: str) -> Inputs:
    """The same numbers in every process and dtype, on every device: bfloat16 holds them."""
    drawn = torch.Generator().manual_seed(0)
    lead, (queries, keys, width) = work.size[:2], work.size[2:]

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=drawn)

    def projected(tokens: int) -> Tensor:
        if work.reach is None:
            return normal(*lead, tokens, width) * work.std
        return (torch.rand(*lead, tokens, width, generator=drawn) * 2 - 1) * work.reach

    kept = torch.zeros(queries, 1)
    kept[work.rows] = 1
    d_output = normal(*lead, queries, width)
    found = (
        projected(queries), projected(keys), normal(*lead, keys, width),
        normal(width) / math.sqrt(_TANH * width), d_output, d_output * kept,
    )  # fmt: skip
    dtype = getattr(torch, work.dtype)
    return Inputs(*(x.to(torch.bfloat16).to(device, dtype) for x in found))


def additive(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
    """Σ_d w_d tanh(q_d + k_d), (..., T_q, T_k)."""
    return torch.tanh(q.unsqueeze(-2) + k.unsqueeze(-3)) @ w


def dot(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
    """What SDPA computes; it has no w."""
    return q @ k.mT / math.sqrt(q.shape[-1])


SCORES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"additive": additive, "dot": dot}


def truth(work: Work, x: Inputs, score: str = "additive") -> list[Tensor]:
    """Output of the compared queries and, in training, all gradients as `NAMES`; in float64."""
    rows = work.rows.to(x.query.device)
    query, d_output = (y[..., rows, :].double() for y in (x.query, x.d_checked))
    key, value, weight = (y.double() for y in (x.key, x.value, x.weight))
    few = max(1, AT_ONCE // (work.size.elements // work.size.queries))
    outputs, d_query, sums = [], [], [torch.zeros_like(y) for y in (key, value, weight)]
    for start in range(0, len(rows), few):
        leaves = [query[..., start : start + few, :], key, value, weight]
        leaves = [y.detach().requires_grad_(work.training) for y in leaves]
        q, k, v, w = leaves
        output = SCORES[score](q, k, w).softmax(-1) @ v
        outputs.append(output.detach())
        if work.training:
            part = d_output[..., start : start + few, :]
            found = torch.autograd.grad(output, leaves, part, allow_unused=True)
            d_query.append(found[0])
            for total, more in zip(sums, found[1:], strict=True):
                total += 0 if more is None else more
    right = [torch.cat(outputs, -2)]
    if work.training:
        right += [torch.cat(d_query, -2), *sums[: 3 if score == "additive" else 2]]
    return right


def check(
    found: Sequence[Tensor | None], right: Sequence[Tensor], rows: Tensor
) -> tuple[dict[str, float], str | None]:
    """The error of each result as a share of its largest entry, and what is wrong, if anything is.

    found: all queries; right: those in `rows`, of the output and of the gradient of the query.
    """
    errors: dict[str, float] = {}
    if len(found) != len(right):
        return errors, f"wrong: it gives {len(found)} results, expected {len(right)}"
    for name, x, y in zip(NAMES, found, right, strict=False):
        if x is None:
            return errors, f"wrong: it gives no {name}"
        if not bool(x.isfinite().all()):
            return errors, f"wrong: its {name} is not finite"
        if name in NAMES[:2]:
            x = x[..., rows.to(x.device), :]
        if x.shape != y.shape:
            return errors, f"wrong: its {name} has shape {tuple(x.shape)}, not {tuple(y.shape)}"
        errors[name] = float(
            (x.detach().double() - y).abs().max() / y.abs().max().clamp_min(1e-300)
        )
        if errors[name] > BUDGET:
            return errors, f"wrong: its {name} is off by {errors[name]:.2g} of the largest entry"
    return errors, None
