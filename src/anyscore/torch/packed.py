"""The weights of a layer's last call, also where that was of nested tensors: packed sequences."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyscore.call.task import Task
from anyscore.layers.chosen_weights import Chosen, chosen_weights, places_of
from anyscore.layers.snapshot import snapshot
from anyscore.masks.sequences import Sequences
from anyscore.ops import load

_xp = load("torch")


@dataclass(frozen=True)
class PackedCall:
    """A task of packed tokens, (1, …, T_q, T_k), and the offsets (B + 1,) of its sequences."""

    task: Task
    of_queries: Tensor
    of_keys: Tensor

    def weights(self, rows: Chosen, heads: Chosen, examples: Chosen) -> Tensor:
        """Compute the weights (B, …, longest query, longest key), 0 where they are padded.

        What is chosen is as of `chosen_weights`; examples are sequences, and the others are not
        computed.

        Raises TypeError, IndexError: no integers, or beyond those of the call.
        """
        queries, keys = (list(pairwise(x.tolist())) for x in (self.of_queries, self.of_keys))
        most_q, most_k = (max((b - a for a, b in x), default=0) for x in (queries, keys))
        places = torch.arange(len(queries))
        if examples is not None:
            places = taken(places, "examples", examples, 0)
        found = []
        for s in places.reshape(-1).tolist() or [0]:  # of none, one is computed and left out
            (top, bottom), (left, right) = queries[s], keys[s]
            part = chosen_weights(self.task, slice(top, bottom), heads)[0][..., left:right]
            found.append(F.pad(part, (0, most_k - (right - left), 0, most_q - (bottom - top))))
        padded = torch.stack(found)[: places.numel()]
        padded = padded if places.dim() else padded[0]
        return padded if rows is None else taken(padded, "rows", rows, -2)


def last_call(task: Task, packed: Sequences | None) -> Task | PackedCall:
    """Keep what the weights of a call can be computed of, see `snapshot`.

    packed: the sequences that it was of, if it was of nested tensors.
    """
    kept = snapshot(_xp, task)
    if packed is None:
        return kept
    of_queries, of_keys = packed.cu_seqlens_q, packed.cu_seqlens_k
    return PackedCall(kept, of_queries, of_queries if of_keys is None else of_keys)


def last_weights(last: Task | PackedCall | None, *chosen: Chosen) -> Tensor | None:
    """Compute the weights of a last call for chosen rows, heads and examples; None without one."""
    with torch.no_grad():
        if isinstance(last, PackedCall):
            return last.weights(*chosen)
        return None if last is None else chosen_weights(last, *chosen)


def taken(x: Tensor, name: str, chosen: Any, axis: int) -> Tensor:
    """Index an axis of x as was chosen; one integer drops it."""
    index = torch.tensor(places_of(name, chosen, x.shape[axis]), device=x.device, dtype=torch.long)
    found = x.index_select(axis, index)
    return found.select(axis, 0) if isinstance(chosen, Integral) else found
