"""Sequences of different lengths: anyscore's without padding, and others with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from anyscore import Sequences, attention
from anyscore.lab.bench.formulas import FORMULAS
from anyscore.lab.bench.rivals import Call, Variant
from anyscore.lab.bench.work import drawn
from benchmarks.work import Work

_FILLED = 0.25  # of the longest length, on average
_SPREAD = 0.6  # around the mean, evenly


@dataclass(frozen=True)
class PackedWork(Work):
    """Attention within sequences of different lengths: one has T tokens, the mean is T / 4.

    shape: sequences, T, T, width, width of the values. Inputs are the tokens of all sequences, one
    after the other: query, key (N, H), value (N, D_v), and weight (H,).
    """

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
        """Whether each position of the padded sequences has a token, (B, T)."""
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

    def truth(self, score: str) -> dict[str, Tensor]:
        """Compute sequence by sequence in float64."""
        inputs = [self.query, self.key, self.value, self.weight_of(score)]
        leaves = [x.double().requires_grad_(self.training) for x in inputs]
        plain = self.to(task="attention")
        outputs: list[Tensor] = []
        sums = [torch.zeros_like(x) for x in leaves]
        for first, last in zip(self.offsets, self.offsets[1:], strict=False):
            some = [x.detach()[first:last] for x in leaves[:3]] + [leaves[3].detach()]
            some = [x.requires_grad_(self.training) for x in some]
            output = plain.plain(score, *some)
            outputs.append(output.detach())
            if self.training:
                gradients = torch.autograd.grad(output, some, self.upstream[first:last].double())
                for total, x in zip(sums[:3], gradients, strict=False):
                    total[first:last] = x
                sums[3] += gradients[3]
        results = {"output": torch.cat(outputs)}
        if self.training:
            names = "query", "key", "value", *(("weight",) if FORMULAS[score].learned else ())
            results |= {f"gradient of the {n}": x for n, x in zip(names, sums, strict=False)}
        return results

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


def anyscore_(work: PackedWork) -> list[Variant]:
    """List our function on packed tokens."""
    ours = partial(attention, mask=Sequences(work.offsets))
    return [Variant("anyscore.attention, mask=Sequences", partial(_build, ours, work))]


def padded(work: PackedWork) -> list[Variant]:
    """List our function on padded sequences."""
    ours = partial(attention, valid_lens=work.sizes)
    how = "anyscore.attention, padded, with valid_lens"
    return [Variant(how, partial(_build, ours, work, work.padded))]


def dot(work: PackedWork) -> list[Variant]:
    """List PyTorch's fused dot product on padded sequences."""
    mask = work.is_token[:, None, None]

    def attend(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        q, k, v = (x[:, None] for x in (query, key, value))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)[:, 0]

    how = "scaled_dot_product_attention, 4-D, padded, with a mask"
    return [Variant(how, partial(_build, attend, work, work.padded, False))]


def _build(
    attend: Callable[..., Tensor],
    work: PackedWork,
    laid_out: Callable[[Tensor], Tensor] = lambda x: x,
    scored: bool = True,
) -> Call:
    """Make a call on tokens that are laid out before. scored: whether the score is that of work."""
    tensors = [laid_out(x) for x in (work.query, work.key, work.value)]
    is_learned = scored and work.formula.learned
    tensors += [work.weight] if is_learned else []
    given = [x.detach().requires_grad_(work.training) for x in tensors]
    upstream = laid_out(work.upstream)

    def call() -> Sequence[Tensor]:
        weight = given[3] if is_learned else work.weight
        output = attend(*given[:3], score=work.formula.score(weight))
        if not work.training:
            return (output,)
        return (output.detach(), *torch.autograd.grad(output, given, upstream))

    return call
