"""Logits of scores by the definitions: biases, a softcap, and a bias inside a score's function."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from helpers.bias_objects import clipped, distance, t5
from helpers.table_shapes import T_K, T_Q
from parity.extras import BUCKETS, COLUMNS, EXTRAS, FARTHEST
from parity.rows import Row, of


def _index(entry: Callable[..., float]) -> np.ndarray:
    return np.array([[int(entry(0, i, j)) for j in range(T_K)] for i in range(T_Q)])


CLIPPED = _index(clipped(np.arange(COLUMNS)[None]))
BUCKET = _index(t5(np.arange(BUCKETS)[None], True, FARTHEST))
FAR = [[abs(distance(i, j)) for j in range(T_K)] for i in range(T_Q)]
ENTRIES: dict[str, Callable[[Tensor], Tensor]] = {
    "matrix": lambda x: x,
    "positive": lambda x: x,
    "clipped": lambda x: x[..., CLIPPED],
    "t5": lambda x: x[..., BUCKET],
    "alibi": lambda x: -x[..., None, None] * x.new_tensor(FAR),
}
"""The bias of each query and key, by the kind of its tensor."""
BEFORE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Euclidean": lambda s, bias: -torch.sqrt(s * s + bias)
}
"""Scores with a bias inside their outer function; to other scores a bias is added."""


def logits(row: Row, s: Tensor, own: dict[str, Tensor]) -> Tensor:
    """Return the logits of scores s (..., T_q, T_k)."""
    extra = EXTRAS[row[3]]
    biases = {
        name: ENTRIES[kind](own[name]) for name, kind in extra.tensors.items() if kind in ENTRIES
    }
    if "bias" in biases:
        before = BEFORE.get(of(row).score.kind, torch.add)
        s = before(s, biases["bias"])
    if "softcap" in extra.options:
        s = extra.options["softcap"] * torch.tanh(s / extra.options["softcap"])
    return s + biases["bias_after"] if "bias_after" in biases else s
