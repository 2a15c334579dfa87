"""The private names of the Triton kernels that a benchmark on a GPU uses; all of them are here."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from anyscore.call.operands import Operands, Settings
from benchmarks.work import Work


def tiles(work: Work) -> dict[str, float]:
    """The share of the tiles of a forward that is computed in each way of tanh.

    Empty for other scores, and without Triton.
    """
    if work.score != "additive" or work.device != "cuda":
        return {}
    try:
        scores: Any = importlib.import_module("anyscore.kernels.triton.scores")
        packed: Any = importlib.import_module("anyscore.kernels.triton.call")
        pairs: Any = importlib.import_module("anyscore.kernels.triton.pairs")
    except ImportError:
        return {}
    lead = tuple(work.query.shape[:1])
    x = Operands(work.query, work.key, work.weight)
    s = Settings("tanh", 1.0, 1, 0.0, 1, lead)
    call = packed.PackedCall(pairs.TANH, packed.Inputs(x, s), torch.float32)
    a, b = call.of_queries.bounds[:, :, None], call.of_keys.bounds[:, None]
    free = a[..., 0] + b[..., 0] <= scores.FREE.value
    near = ~free & (b[..., 1] <= scores.WIDE.value) & a[..., 0].isfinite()
    shares = {"free": free, "clamped": near, "one by one": ~(free | near)}
    return {name: float(share.float().mean()) for name, share in shares.items()}
