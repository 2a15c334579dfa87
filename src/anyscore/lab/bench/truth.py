"""The right answer in float64, by operations that share no code with anyscore; and the check."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyscore.lab.bench.work import FORMULAS, Work

TOLERANCES = {
    ("cpu", "float32"): 1e-3,
    ("cpu", "bfloat16"): 5e-2,
    ("cuda", "float32"): 2e-2,
    ("cuda", "bfloat16"): 2e-2,
}
"""The largest error let pass, as a share of the largest entry of the right answer. Rounding values
and weights to bfloat16 gives about 3e-3 on a GPU."""

_AT_ONCE = {"cpu": 2**22, "cuda": 2**24}  # triples held in memory at a time


def attend(work: Work, score: str, *inputs: Tensor) -> Tensor:
    """Compute attention in plain PyTorch: the formula, broadcast.

    inputs: as `work.inputs`, with a weight in any case; of the queries there may be some alone.
    """
    query, key, value, *projections, weight = inputs
    if projections:
        query, key = query @ projections[0].mT, key @ projections[1].mT
    scores = FORMULAS[score].scores(query, key, weight)
    if work.valid_lens is not None:
        read = torch.arange(key.shape[-2], device=key.device) < work.valid_lens[:, None, None]
        scores = torch.where(read, scores, -1e6)
    return scores.softmax(-1) @ value


def truth(work: Work, score: str) -> dict[str, Tensor]:
    """Compute in float64 what attention with `score` gives for the inputs of `work`.

    Returns the output and, in training, the gradients by name; outputs and gradients of queries are
    those of `checked_rows`, of which a few are computed at a time.
    """
    inputs = work.inputs | {"weight": work.weight_of(score)}
    leaves = {name: x.double() for name, x in inputs.items()}
    rows = work.checked_rows.to(work.query.device)
    query, upstream = leaves.pop("query")[:, rows], work.upstream.double()[:, rows]
    few = max(1, _AT_ONCE[work.device] // (work.shape.triples // work.shape.queries))
    outputs, d_query = [], []
    sums = {name: torch.zeros_like(x) for name, x in leaves.items()}
    for start in range(0, len(rows), few):
        some = [query[:, start : start + few].clone(), *leaves.values()]
        if work.training:
            some = [x.detach().requires_grad_() for x in some]
        output = attend(work, score, *some)
        outputs.append(output.detach())
        if work.training:
            found = torch.autograd.grad(output, some, upstream[:, start : start + few])
            d_query.append(found[0])
            for total, more in zip(sums.values(), found[1:], strict=True):
                total += more
    answer = {"output": torch.cat(outputs, 1)}
    if work.training:
        if not FORMULAS[score].learned:
            del sums["weight"]
        answer["gradient of the query"] = torch.cat(d_query, 1)
        answer |= {f"gradient of the {name}": x for name, x in sums.items()}
    return answer


def check(found: Sequence[Any], right: dict[str, Tensor], work: Work) -> tuple[float, str | None]:
    """Compare results, arrays of any framework, with `truth`.

    Returns the largest error, as a share of the largest entry, and what is wrong, or None. Outputs
    and gradients of the query are compared in the rows that were checked.
    """
    worst = 0.0
    for place, (name, y) in enumerate(right.items()):
        if place >= len(found) or found[place] is None:
            return math.inf, f"wrong: it gives no {name}"
        x = _float64(found[place]).to(y.device)
        whole = (work.shape.batch, work.shape.queries)
        if place < 2 and x.numel() == whole[0] * whole[1] * y.shape[-1]:
            x = x.reshape(*whole, -1)[:, work.checked_rows.to(y.device)]
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
