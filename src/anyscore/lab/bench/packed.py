"""Packed sequences as work: their inputs, and the right answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from anyscore.lab.bench import truth
from anyscore.lab.bench.formulas import FORMULAS
from anyscore.lab.bench.work import Work, drawn

_FILLED = 0.25  # of the longest length, on average
_SPREAD = 0.6  # around the mean, evenly


@dataclass(frozen=True)
class PackedWork(Work):
    """Attention within sequences of different lengths: one has T tokens, the mean is T / 4.

    shape: sequences, T, T, width, width of the values. Inputs are the tokens of all sequences, one
    after the other: query, key (N, H), value (N, D_v), and weight (H,).
    """

    ours: ClassVar[str | None] = "variants_packed.anyscore_"

    task: str = "packed"

    @cached_property
    def sizes(self) -> Tensor:
        """The lengths (B,), the first of them T."""
        count, longest = self.shape.batch, self.shape.queries
        mean = (_FILLED * count - 1) / max(count - 1, 1) * longest
        others = torch.linspace(1 - _SPREAD, 1 + _SPREAD, count - 1) * mean
        return torch.cat([torch.tensor([longest]), others.round().clamp(min=1).long()])

    @cached_property
    def offsets(self) -> Tensor:
        """Where sequences begin, and the end: (B + 1,)."""
        return torch.cat([torch.zeros(1, dtype=torch.long), self.sizes.cumsum(0)])

    @cached_property
    def is_token(self) -> Tensor:
        """Which places of padded sequences have tokens, (B, T)."""
        return torch.arange(self.shape.queries) < self.sizes[:, None]

    @property
    def scores(self) -> int:
        return int(self.sizes.square().sum())

    @cached_property
    def query(self) -> Tensor:
        return self._tokens(1, self.shape.width)

    @cached_property
    def key(self) -> Tensor:
        return self._tokens(2, self.shape.width)

    @cached_property
    def value(self) -> Tensor:
        return self._tokens(3, self.shape.value_width)

    @property
    def inputs(self) -> dict[str, Tensor]:
        named = {"query": self.query, "key": self.key, "value": self.value}
        return named | ({"weight": self.weight} if self.formula.learned else {})

    def padded(self, x: Tensor) -> Tensor:
        """Tokens (N, n) as sequences (B, T, n), 0 beyond their ends."""
        return x.new_zeros(*self.is_token.shape, x.shape[-1]).masked_scatter(
            self.is_token[..., None], x
        )

    def own_truth(self, score: str) -> dict[str, Tensor]:
        """Compute sequence by sequence in float64."""
        inputs = [self.query, self.key, self.value, self.weight_of(score)]
        leaves = [x.double().requires_grad_(self.training) for x in inputs]
        plain = self.to(task="attention")
        outputs: list[Tensor] = []
        sums = [torch.zeros_like(x) for x in leaves]
        for first, last in zip(self.offsets, self.offsets[1:], strict=False):
            some = [x.detach()[first:last] for x in leaves[:3]] + [leaves[3].detach()]
            some = [x.requires_grad_(self.training) for x in some]
            output = truth.attend(plain, score, *some)
            outputs.append(output.detach())
            if self.training:
                made = torch.autograd.grad(output, some, self.upstream[first:last].double())
                for total, x in zip(sums[:3], made, strict=False):
                    total[first:last] = x
                sums[3] += made[3]
        found = {"output": torch.cat(outputs)}
        if self.training:
            names = "query", "key", "value", *(("weight",) if FORMULAS[score].learned else ())
            found |= {f"gradient of the {n}": x for n, x in zip(names, sums, strict=False)}
        return found

    def checked(self, name: str, x: Tensor, right: Tensor) -> Tensor:
        """Return the tokens of what is padded."""
        padded = (*self.is_token.shape, *right.shape[1:])
        return x.reshape(padded)[self.is_token] if x.numel() > right.numel() else x

    def _whole_upstream(self) -> Tensor:
        return self._tokens(5, self.shape.value_width)

    def _kept(self) -> Tensor:
        return torch.ones(())  # all is checked

    def _tokens(self, seed: int, width: int) -> Tensor:
        return self._placed(drawn(seed, int(self.offsets[-1]), width))
