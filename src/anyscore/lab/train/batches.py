"""Batches of token sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anyscore.lab.data.numbers import NumberedPairs, Ragged
from anyscore.lab.data.tokens import BOS, PAD

_POOL = 16  # batches


@dataclass(frozen=True)
class Batch:
    """Pairs side by side, padded on the right.

    Attributes:
        source: tokens (B, T_k), int64.
        lengths: of the sources (B,), int64 on the CPU, where packing wants them.
        inputs: tokens (B, T_q) that the decoder reads: the target behind the start token.
        targets: tokens (B, T_q) that the decoder should predict.
        tokens: how many target tokens are not padding.
    """

    source: Tensor
    lengths: Tensor
    inputs: Tensor
    targets: Tensor
    tokens: int


class Sequences:
    """Token sequences in one flat tensor on `device`, padded and 64 bits wide only in batches.

    Attributes:
        lengths: (N,), int64 on the CPU.
    """

    def __init__(self, sequences: Ragged | Sequence[Sequence[int]], device: torch.device) -> None:
        ragged = sequences if isinstance(sequences, Ragged) else Ragged(sequences)
        self.lengths = torch.from_numpy(ragged.lengths).long()
        self._starts = (self.lengths.cumsum(0) - self.lengths).to(device)
        self._tokens = torch.from_numpy(ragged.tokens).to(device)

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return sequences by number (B,): tokens (B, longest), padded, and lengths (B,)."""
        lengths, device = self.lengths[rows], self._tokens.device
        position = torch.arange(int(lengths.max()), device=device)
        ends = lengths.to(device)[:, None]
        # Beyond a sequence's end its last token is read in place of padding, then replaced.
        index = self._starts[rows.to(device)][:, None] + torch.minimum(position, ends - 1)
        tokens = self._tokens.take(index).masked_fill_(position >= ends, PAD)
        return tokens.long(), lengths


class Pairs:
    """All pairs of a part of the data, on `device`, from which batches are taken."""

    def __init__(self, pairs: NumberedPairs, device: torch.device) -> None:
        self.sources = Sequences(pairs.sources, device)
        self.targets = Sequences(pairs.targets, device)

    def __len__(self) -> int:
        return len(self.sources.lengths)

    def batch(self, rows: Tensor) -> Batch:
        """Return the pairs of these numbers (B,) as a batch."""
        source, lengths = self.sources.take(rows)
        targets, target_lengths = self.targets.take(rows)
        start = torch.full_like(targets[:, :1], BOS)
        inputs = torch.cat([start, targets[:, :-1]], dim=1)
        return Batch(source, lengths, inputs, targets, int(target_lengths.sum()))


def shuffled(lengths: Tensor, batch_size: int, seed: int) -> Iterator[Tensor]:
    """Yield batches, as numbers of pairs, in an order that depends on `seed` and lengths only.

    Sequences of similar length share a batch, for little padding. The shuffled pairs are cut into
    pools of sixteen batches; each pool is sorted by length, and the batches are shuffled again.
    """
    generator = torch.Generator().manual_seed(seed)
    batches: list[Tensor] = []
    for pool in torch.randperm(len(lengths), generator=generator).split(batch_size * _POOL):  # type: ignore[no-untyped-call]
        by_length = lengths[pool].argsort(stable=True)
        batches += pool[by_length].split(batch_size)
    for i in torch.randperm(len(batches), generator=generator).tolist():
        yield batches[i]


def in_order(lengths: Tensor, batch_size: int) -> Iterator[Tensor]:
    """Yield batches for measuring, sorted by length for little padding."""
    yield from lengths.argsort(stable=True).split(batch_size)  # type: ignore[no-untyped-call]
