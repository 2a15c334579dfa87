"""The right answer in float64, by operations that share no code with anyscore; and the check."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyscore.lab.bench.formulas import FORMULAS
from anyscore.lab.bench.tasks import BY_QUERY
from anyscore.lab.bench.work import Work

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
    """Compute the task of the work in plain PyTorch: the formula, broadcast.

    inputs: as `work.inputs`, with a weight in any case; of the queries there may be some alone.
    """
    query, key, *others, weight = inputs
    taken = len(work.of_scores.takes)
    beside, projections = others[:taken], others[taken:]
    if projections:
        query, key = query @ projections[0].mT, key @ projections[1].mT
    scores = FORMULAS[score].scores(query, key, weight)
    if work.valid_lens is not None:
        read = torch.arange(key.shape[-2], device=key.device) < work.valid_lens[:, None, None]
        scores = torch.where(read, scores, -1e6)
    return work.of_scores.plain(scores, *beside)


def truth(work: Work, score: str) -> dict[str, Tensor]:
    """Compute in float64 what the task gives with `score` for the inputs of `work`.

    Returns the output and, in training, the gradients by name; what has a row for each query has
    those of `checked_rows`, of which a few are computed at a time.
    """
    own = work.own_truth(score)
    if own is not None:
        return own
    inputs = work.inputs | {"weight": work.weight_of(score)}
    leaves = {name: x.double() for name, x in inputs.items()}
    upstream = work.upstream.double()
    few = max(1, _AT_ONCE[work.device] // (work.shape.triples // work.shape.queries))
    by_query: dict[str, list[Tensor]] = {"output": []}
    sums: dict[str, Tensor] = {}
    for rows in torch.split(work.checked_rows.to(work.query.device), few):
        some = [x[..., rows, :] if name in BY_QUERY else x for name, x in leaves.items()]
        if work.training:
            some = [x.detach().requires_grad_() for x in some]
        output = attend(work, score, *some)
        by_query["output"].append(output.detach())
        if work.training:
            made = torch.autograd.grad(output, some, upstream[:, rows])
            for name, gradient in zip(leaves, made, strict=True):
                if name in BY_QUERY:
                    by_query.setdefault(name, []).append(gradient)
                else:
                    sums[name] = sums[name] + gradient if name in sums else gradient
    found = sums | {name: torch.cat(each, -2) for name, each in by_query.items()}
    answer = {"output": found["output"]}
    if work.training:
        names = [name for name in leaves if name != "weight" or FORMULAS[score].learned]
        answer |= {f"gradient of the {name}": found[name] for name in names}
    return answer


def check(found: Sequence[Any], right: dict[str, Tensor], work: Work) -> tuple[float, str | None]:
    """Compare results, arrays of any framework, with `truth`.

    Returns the largest error, as a share of the largest entry, and what is wrong, or None. What has
    a row for each query is compared in the rows that were checked.
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
