"""The work of a benchmark: sizes, inputs, and the right answer in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from anyscore import Additive, GATv2, Gaussian, Laplace, ScaledDot, Score
from anyscore.lab.errors import InputError

FORWARD, TRAINING = "forward", "forward + backward"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
RANGES = {
    "normal": "standard normal",
    "wide": "σ = 50",  # of queries and keys
    "few": "4 near 1e3",  # features of queries and keys; the others are standard normal
}

_CHECKED = 2**28  # (query, key, feature) triples that are computed in float64 for a check
_AT_ONCE = 2**22  # of them, held in memory at a time
_TANH, _LEAKY_RELU = 0.394, 0.52  # mean squares of a standard normal variable


class Shape(NamedTuple):
    """Batch, queries, keys, width of the score, width of the values."""

    batch: int
    queries: int
    keys: int
    width: int
    value_width: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        """A shape as it is written on the command line: five numbers with commas between them."""
        try:
            sizes = [int(part) for part in text.split(",")]
        except ValueError:
            sizes = []
        if len(sizes) != len(cls._fields) or min(sizes) < 1:
            raise InputError(
                "--shape: expected five whole numbers of 1 or more, B,T_q,T_k,H,D_v (batch, "
                f"queries, keys, width of the score, width of the values), got {text!r}; "
                "for example 4,512,512,128,128"
            )
        return cls(*sizes)

    @property
    def triples(self) -> int:
        """How many elements the broadcast formula makes."""
        return self.batch * self.queries * self.keys * self.width

    @property
    def least_bytes(self) -> int:
        """About what inputs, gradients and the check of a single query take."""
        tokens = self.queries + 2 * self.keys
        return 24 * self.batch * tokens * (self.width + self.value_width)

    def __str__(self) -> str:
        return ", ".join(map(str, self))


def _additive(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(q.unsqueeze(-2) + k.unsqueeze(-3)) @ w


def _gatv2(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.leaky_relu(q.unsqueeze(-2) + k.unsqueeze(-3), 0.2) @ w


def _laplace(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
    return (q.unsqueeze(-2) - k.unsqueeze(-3)).abs().sum(-1) * -w


def _gaussian(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
    return (q.unsqueeze(-2) - k.unsqueeze(-3)).square().sum(-1) * -w


def _scaled_dot(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
    return q @ k.mT * w


@dataclass(frozen=True)
class Formula:
    """A score as the benchmark sees it.

    scores: (q, k, w) → (..., T_q, T_k) in plain PyTorch, which is what eager PyTorch computes and,
        in float64, what is right.
    score: w → the score for `anyscore.attention`; queries and keys come projected.
    learned: whether w is a tensor (H,), with a gradient; otherwise it is a number.
    """

    scores: Callable[[Tensor, Tensor, Tensor], Tensor]
    score: Callable[[Tensor], Score]
    learned: bool
    weight: Callable[[int], float]  # width → standard deviation of w, or w itself


# One for each pair; the other scores have the pair, and so the cost, of one of these.
FORMULAS = {
    "additive": Formula(
        _additive, lambda w: Additive(None, None, w), True, lambda h: 1 / math.sqrt(h * _TANH)
    ),
    "gatv2": Formula(
        _gatv2, lambda w: GATv2(None, None, w), True, lambda h: 1 / math.sqrt(2 * h * _LEAKY_RELU)
    ),
    "laplace": Formula(
        _laplace, lambda w: Laplace(1 / float(w)), False, lambda h: 1 / math.sqrt(h)
    ),
    "gaussian": Formula(
        _gaussian,
        lambda w: Gaussian(math.sqrt(0.5 / float(w))),
        False,
        lambda h: 0.5 / math.sqrt(2 * h),
    ),
    "scaled_dot": Formula(
        _scaled_dot, lambda w: ScaledDot(float(w)), False, lambda h: 1 / math.sqrt(h)
    ),
}
DOT = "scaled_dot"


@dataclass(frozen=True, eq=False)
class Work:
    """The inputs of one measurement, the same for all that take part.

    query (B, T_q, H), key (B, T_k, H), value (B, T_k, D_v), weight (H,) or (), and d_output
    (B, T_q, D_v), the gradient that comes from above. All are the same for the same seed.

    d_output is 0 but in the rows that are checked, so that the gradients need no others; these are
    all rows unless the work is too large for float64, and then evenly spread.
    """

    shape: Shape
    score: str = "additive"
    passes: str = FORWARD
    range: str = "normal"
    dtype: str = "float32"

    @property
    def formula(self) -> Formula:
        return FORMULAS[self.score]

    @property
    def training(self) -> bool:
        return self.passes == TRAINING

    @property
    def prepared(self) -> bool:
        """A decoder's step: what depends on the keys alone is computed once per sequence."""
        return self.shape.queries <= 2 and self.score == "additive" and not self.training

    @cached_property
    def query(self) -> Tensor:
        return self._scaled(self._normal(1, self.shape.queries, self.shape.width))

    @cached_property
    def key(self) -> Tensor:
        return self._scaled(self._normal(2, self.shape.keys, self.shape.width))

    @cached_property
    def value(self) -> Tensor:
        return self._normal(3, self.shape.keys, self.shape.value_width).to(DTYPES[self.dtype])

    @cached_property
    def weight(self) -> Tensor:
        return self.weight_of(self.score)

    def weight_of(self, score: str) -> Tensor:
        formula, width = FORMULAS[score], self.shape.width
        if not formula.learned:
            return torch.tensor(formula.weight(width))
        drawn = torch.randn(width, generator=torch.Generator().manual_seed(4))
        return (drawn * formula.weight(width)).to(DTYPES[self.dtype])

    @cached_property
    def d_output(self) -> Tensor:
        drawn = self._normal(5, self.shape.queries, self.shape.value_width)
        kept = torch.zeros(self.shape.queries, 1)
        kept[self.checked_rows] = 1
        return (drawn * kept).to(DTYPES[self.dtype])

    @cached_property
    def checked_rows(self) -> Tensor:
        """The queries whose outputs, and gradients from them, are compared."""
        rows = max(1, _CHECKED // (self.shape.triples // self.shape.queries))
        if rows >= self.shape.queries:
            return torch.arange(self.shape.queries)
        return torch.linspace(0, self.shape.queries - 1, rows).long()

    def _normal(self, seed: int, length: int, width: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(self.shape.batch, length, width, generator=generator)

    def _scaled(self, x: Tensor) -> Tensor:
        if self.range == "wide":
            x = x * 50
        if self.range == "few":
            x[..., :4] *= 1e3
        return x.to(DTYPES[self.dtype])


NAMES = ("output", "gradient of the query", "gradient of the key", "gradient of the value",
         "gradient of the weight")  # fmt: skip


def truth(work: Work, score: str) -> list[Tensor]:
    """What attention with `score` gives for the inputs of `work`, in float64: as `NAMES`.

    Outputs and gradients of queries are those of `checked_rows`, of which a few are computed at a
    time.
    """
    formula = FORMULAS[score]
    inputs = [x.double() for x in (work.query, work.key, work.value, work.weight_of(score))]
    rows = work.checked_rows
    query, (key, value, weight) = inputs[0][:, rows], inputs[1:]
    d_output = work.d_output.double()[:, rows]
    few = max(1, _AT_ONCE // (work.shape.triples // work.shape.queries))
    outputs, d_query, sums = [], [], [torch.zeros_like(x) for x in (key, value, weight)]
    for start in range(0, len(rows), few):
        leaves = [query[:, start : start + few].clone(), key, value, weight]
        if work.training:
            leaves = [x.detach().requires_grad_() for x in leaves]
        q, k, v, w = leaves
        output = formula.scores(q, k, w).softmax(-1) @ v
        outputs.append(output.detach())
        if work.training:
            found = torch.autograd.grad(output, leaves, d_output[:, start : start + few])
            d_query.append(found[0])
            for total, more in zip(sums, found[1:], strict=True):
                total += more
    answer = [torch.cat(outputs, 1)]
    if work.training:
        answer += [torch.cat(d_query, 1), *sums[: 3 if formula.learned else 2]]
    return answer
