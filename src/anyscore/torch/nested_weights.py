"""The weights of a layer's last call with nested tensors, which are packed inside."""

from __future__ import annotations

from itertools import pairwise
from numbers import Integral
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from anyscore.call.task import Task
from anyscore.layers.last_weights import Chosen, chosen_weights, indices, select, to_list
from anyscore.masks.sequences import Sequences
from anyscore.ops import load

_xp = load("torch")


class PackedCall(NamedTuple):
    """A task of packed tokens, (1, …, T_q, T_k), and their sequences."""

    task: Task
    sequences: Sequences

    def weights(self, rows: Chosen, heads: Chosen, examples: Chosen) -> Tensor:
        """Compute the weights (B, …, longest T_q, longest T_k), padded with 0.

        Arguments: as for `chosen_weights`. examples: sequences; others are not computed.

        Raises:
            TypeError, IndexError: no integers, or an integer beyond its axis.
        """
        of_queries, of_keys = self.sequences.cu_seqlens_q, self.sequences.cu_seqlens_k
        queries = list(pairwise(of_queries.tolist()))
        keys = queries if of_keys is None else list(pairwise(of_keys.tolist()))
        most_q, most_k = (max((b - a for a, b in x), default=0) for x in (queries, keys))
        places = list(range(len(queries)))
        if examples is not None:
            places, examples = indices("examples", examples, len(queries)), to_list(examples)
        parts = []
        for s in places or [0]:  # an empty choice computes one, which is dropped below
            (top, bottom), (left, right) = queries[s], keys[s]
            part = chosen_weights(self.task, slice(top, bottom), heads)[0][..., left:right]
            parts.append(F.pad(part, (0, most_k - (right - left), 0, most_q - (bottom - top))))
        padded = torch.stack(parts)[: len(places)]
        padded = padded[0] if isinstance(examples, Integral) else padded
        return padded if rows is None else select(_xp, padded, -2, "rows", rows)
