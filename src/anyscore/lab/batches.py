"""Token sequences in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from anyscore.lab.tokens import BOS, PAD

_POOL = 16  # batches


@dataclass(frozen=True)
class Pair:
    """One source and one of its targets as token numbers; the target ends with EOS."""

    source: tuple[int, ...]
    target: tuple[int, ...]


@dataclass(frozen=True)
class Batch:
    """Pairs side by side, padded on the right.

    Attributes:
        source: (B, T_k).
        lengths: (B,) of the sources, on the CPU, where packing wants them.
        inputs: (B, T_q), what the decoder is given: the target behind the start token.
        targets: (B, T_q), what it is to say.
    """

    source: Tensor
    lengths: Tensor
    inputs: Tensor
    targets: Tensor

    @property
    def tokens(self) -> int:
        """How many target tokens are not padding."""
        return int((self.targets != PAD).sum())


def pad(sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Sequences -> tokens (B, longest), padded on the right, and lengths (B,)."""
    tokens = pad_sequence(
        [torch.tensor(sequence) for sequence in sequences], batch_first=True, padding_value=PAD
    )
    return tokens, torch.tensor([len(sequence) for sequence in sequences])


def collate(pairs: Sequence[Pair], device: torch.device) -> Batch:
    """Pairs -> one batch on `device`."""
    source, lengths = pad([pair.source for pair in pairs])
    targets, _ = pad([pair.target for pair in pairs])
    start = torch.full((len(pairs), 1), BOS)
    inputs = torch.cat([start, targets[:, :-1]], dim=1)
    return Batch(source.to(device), lengths, inputs.to(device), targets.to(device))


def shuffled(pairs: Sequence[Pair], batch_size: int, seed: int) -> Iterator[list[Pair]]:
    """Batches in an order that depends on `seed` only.

    Sequences of like length stand together, to pad little: the shuffled pairs are cut into pools
    of sixteen batches, each pool is sorted by length, and the batches are shuffled again.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(pairs), generator=generator).tolist()
    pool = batch_size * _POOL
    batches = []
    for start in range(0, len(order), pool):
        part = sorted(order[start : start + pool], key=lambda i: len(pairs[i].source))
        batches += [part[i : i + batch_size] for i in range(0, len(part), batch_size)]
    for i in torch.randperm(len(batches), generator=generator).tolist():
        yield [pairs[j] for j in batches[i]]


def in_order(pairs: Sequence[Pair], batch_size: int) -> Iterator[list[Pair]]:
    """Batches for measuring: sorted by length, so that little is padded."""
    ordered = sorted(pairs, key=lambda pair: len(pair.source))
    for start in range(0, len(ordered), batch_size):
        yield ordered[start : start + batch_size]
