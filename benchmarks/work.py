"""Work beside attention of one score: other tasks, ranges of numbers, and calls of a framework."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from anyscore.lab.bench import work
from anyscore.lab.bench.work import drawn
from benchmarks.tasks import TASKS, Task

EXACT = "anyscore, exact"
"""The name of anyscore without products of rows, which large calls of half precision take."""


def _few(x: Tensor) -> Tensor:
    x[..., :4] *= 1e3
    return x


RANGES: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "normal": ("standard normal", lambda x: x),
    "wide": ("σ = 50", lambda x: 50 * x),
    "few": ("4 near 1e3", _few),
    "half": ("σ = ½", lambda x: x / 2),
    "four": ("σ = 4", lambda x: 4 * x),
    "eight": ("σ = 8", lambda x: 8 * x),
    "near": ("evenly within ± 2", lambda x: 2 * torch.erf(x / math.sqrt(2))),
}
"""Ranges of queries and keys: the name in words, and standard normal numbers → numbers."""


@dataclass(frozen=True)
class Work(work.Work):
    """Work with a task; the task's inputs come beside queries and keys.

    range: of queries and keys, a name in `RANGES`.
    framework: compare calls of this framework; None: the rivals without a framework.
    call: how the framework calls, "eager" or "compiled".
    projected: whether inputs are projected already; else the call projects queries and keys by W_q
        and W_k (H, H).
    lengths: whether sequences have different lengths, of three quarters of T_k or more.
    task: the computation from the scores: a name in `tasks.TASKS`, or a special one.
    """

    by_query = frozenset(("query", "bias", "prior"))

    range: str = "normal"
    framework: str | None = None
    call: str = "eager"
    projected: bool = True
    lengths: bool = False
    task: str = "attention"

    @property
    def of_scores(self) -> Task:
        return TASKS[self.task]

    @property
    def prepared(self) -> bool:
        return super().prepared and self.framework is None and self.task == "attention"

    @cached_property
    def query(self) -> Tensor:
        return self._scaled(1, self.shape.queries)

    @cached_property
    def key(self) -> Tensor:
        return self._scaled(2, self.shape.keys)

    @cached_property
    def bias(self) -> Tensor:
        return self._placed(drawn(7, self.shape.queries, self.shape.keys))

    @cached_property
    def prior(self) -> Tensor:
        return self._normal(8, self.shape.queries, self.shape.keys)

    @cached_property
    def projections(self) -> tuple[Tensor, ...]:
        """W_q and W_k, (H, H) each, or nothing."""
        width = self.shape.width
        both = drawn(6, 2, width, width) / math.sqrt(2 * width)
        return () if self.projected else tuple(self._placed(both))

    @cached_property
    def valid_lens(self) -> Tensor | None:
        """(B,), int32; None where all keys are read."""
        if not self.lengths:
            return None
        keys = self.shape.keys
        return torch.linspace(keys * 0.75, keys, self.shape.batch).to(self.device, torch.int32)

    @property
    def inputs(self) -> dict[str, Tensor]:
        takes = "query", "key", *self.of_scores.takes
        named: dict[str, Tensor] = {name: getattr(self, name) for name in takes}
        named |= dict(zip(("W_q", "W_k"), self.projections, strict=False))
        return named | ({"weight": self.weight} if self.formula.learned else {})

    def plain(self, score: str, query: Tensor, key: Tensor, *beside: Tensor) -> Tensor:
        *others, weight = beside
        taken = len(self.of_scores.takes)
        if self.projections:
            W_q, W_k = others[taken:]
            query, key = query @ W_q.mT, key @ W_k.mT
        return super().plain(score, query, key, *others[:taken], weight)

    @property
    def weighed(self) -> Callable[..., Tensor]:
        plain, lengths = self.of_scores.plain, self.valid_lens
        if lengths is None:
            return plain

        def masked(scores: Tensor, *others: Tensor) -> Tensor:
            read = torch.arange(scores.shape[-1], device=scores.device) < lengths[:, None, None]
            return plain(torch.where(read, scores, -1e6), *others)

        return masked

    def _whole_upstream(self) -> Tensor:
        widths = {"values": self.shape.value_width, "keys": self.shape.keys, "one": 1}
        return self._normal(5, self.shape.queries, widths[self.of_scores.gives])

    def _scaled(self, seed: int, length: int) -> Tensor:
        x = drawn(seed, self.shape.batch, length, self.shape.width)
        return self._placed(RANGES[self.range][1](x))
