"""The private names of the Triton kernels that a benchmark on a GPU uses; all of them are here."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from anyscore.lab.bench.work import Work


def tiles(work: Work) -> dict[str, float]:
    """The share of the tiles of a forward that is computed in each way of tanh.

    Empty where the kernels do not say: without Triton, for other scores, or as they have changed
    inside.
    """
    if work.score != "additive" or work.device != "cuda":
        return {}
    try:
        from anyscore.kernels.triton import packed, pairs

        scores: Any = importlib.import_module("anyscore.kernels.triton.scores")

        given = packed.Inputs(
            work.query, work.key, work.weight, None, None, None, None, work.query.shape[:1], 1
        )
        call = packed.Call(pairs.TANH, given, 1.0, torch.float32)
        a, b = call.of_queries.bounds[:, :, None], call.of_keys.bounds[:, None]
        free = a[..., 0] + b[..., 0] <= scores.FREE.value
        near = ~free & (b[..., 1] <= scores.WIDE.value) & a[..., 0].isfinite()
        shares = {"free": free, "clamped": near, "one by one": ~(free | near)}
        return {name: float(share.float().mean()) for name, share in shares.items()}
    except Exception:
        return {}
