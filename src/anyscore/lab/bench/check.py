"""Results are checked against float64; a wrong answer gets no time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyscore.lab.bench.work import Work

TOLERANCES = {
    ("cpu", "float32"): 1e-3,
    ("cpu", "bfloat16"): 5e-2,
    ("cuda", "float32"): 2e-2,
    ("cuda", "bfloat16"): 2e-2,
}
"""The largest permitted error, as a share of the largest entry of the right answer. Rounding values
and weights to bfloat16 gives about 3e-3 on a GPU."""


def check(found: Sequence[Any], right: dict[str, Tensor], work: Work) -> tuple[float, str | None]:
    """Compare results, arrays of any framework, with `Work.truth`.

    Results with a row for each query are compared in `Work.checked_rows` only.

    Returns:
        The largest error, as a share of the largest entry, and the problem, or None.
    """
    worst = 0.0
    for place, (name, y) in enumerate(right.items()):
        if place >= len(found) or found[place] is None:
            return math.inf, f"wrong: it gives no {name}"
        x = work.checked(name, _float64(found[place]).to(y.device), y)
        if x.numel() != y.numel():
            return math.inf, f"wrong: its {name} has the shape {tuple(found[place].shape)}"
        if not bool(x.isfinite().all()):
            return math.inf, f"wrong: its {name} is not finite"
        error = float((x.reshape(y.shape) - y).abs().max() / y.abs().max().clamp_min(1e-300))
        worst = max(worst, error)
        if error > TOLERANCES[work.device, work.dtype]:
            return error, f"wrong: its {name} is off by {error:.2g} of the largest entry"
    return worst, None


def _float64(x: Any) -> Tensor:
    if isinstance(x, Tensor):
        return x.detach().double()
    return torch.from_numpy(np.asarray(x).astype(np.float64))
