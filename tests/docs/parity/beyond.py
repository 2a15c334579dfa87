"""Exact results of an extra, errors of plain operations, and roundings of the terms of gradients.

Scores come from the oracle: by loops for values, one query at a time for gradients. The definitions
here turn scores into results: exact results in float64, a user's results in the dtype of a cell.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from helpers import oracle, plain
from helpers.oracle_gradients import attending, formula_of, largest_sums, leaves_of
from parity.extras import EXTRAS
from parity.logits import logits
from parity.rows import Arrays, Row, clean, kept, of, upstream
from parity.textbook import made, named, plain_leaves, slopes_of

Tensors = dict[str, Tensor]
POWERS = {"sparsemax": 1, "entmax15": 2}


def exact(row: Row, dtype: str) -> Arrays:
    return exact_of(row, clean(row, dtype))


def exact_of(row: Row, given: Arrays) -> Arrays:
    """Return results and gradients of a row with the inputs `given`."""
    extra = EXTRAS[row[3]]
    tensors, score = made(row, given, np.asarray)
    leaves = leaves_of(*tensors, score)
    leaves = {name: leaves[name] for name in leaves if name in given}
    own = {name: torch.tensor(given[name]).requires_grad_() for name in extra.tensors}
    value = _of_heads(row, leaves.get("value", leaves["key"]))
    by_loops = torch.tensor(oracle.scores(*tensors[:2], score, **of(row).masking(np.asarray)))
    found = weigh(row, by_loops, value, own)
    recorded = weigh(row, _recorded(row, leaves, score), value, own)
    slopes = slopes_of(recorded, leaves | own, upstream(row))
    values = {name: found[name] for name in extra.results}
    return {name: x.detach().numpy() for name, x in (values | slopes).items()}


def plainly(row: Row, dtype: str) -> Tensors:
    leaves = plain_leaves(row, dtype)
    tensors, score = made(row, leaves, torch.as_tensor)
    found = weigh(row, *plain.matrix(torch, *tensors, score), leaves)
    results = {name: found[name] for name in EXTRAS[row[3]].results}
    return results | slopes_of(found, leaves, upstream(row))


def terms(row: Row) -> dict[str, float]:
    """Return four roundings for each term of a sum, as `oracle_gradients.largest_terms`.

    `_terms_of_logits` gives the terms of a logit's gradient. The terms of a score's gradient are
    these times the slopes of the functions around the score. The terms of an extra's gradient are
    the same terms, summed as the tensor is spread: no two slopes of a tensor differ in sign.
    """
    given, extra = clean(row, "float32"), EXTRAS[row[3]]
    tensors, score = made(row, given, np.asarray)
    masking = of(row).masking(np.asarray)
    s = torch.tensor(oracle.scores(*tensors[:2], score, **masking))
    s = torch.where(s == -torch.inf, 1.0, s).requires_grad_()
    own = {name: torch.tensor(given[name]).requires_grad_() for name in extra.tensors}
    value = _of_heads(row, torch.tensor(tensors[2]))
    with torch.no_grad():
        of_logits, of_sinks = _terms_of_logits(row, weigh(row, s, value, own), value, own)
    total = (of_logits * logits(row, s, own)).sum()
    if "sink" in own:
        total = total + (of_sinks * own["sink"][:, None]).sum()
    of_scores, *slopes = torch.autograd.grad(total, [s, *own.values()])
    sums = largest_sums(
        *tensors, score, lambda at, attended, *_: of_scores[at][attended].abs(), **masking
    )
    sums |= {name: 4 * float(x.abs().max()) for name, x in zip(own, slopes, strict=True)}
    return named({name: x for name, x in sums.items() if name in given})


def _terms_of_logits(row: Row, found: Tensors, value: Tensor, own: Tensors) -> tuple[Any, Any]:
    """Return the sizes of the terms of gradients: logits (..., T_q, T_k) and sinks (..., T_q).

    With weights P and a = |dO| · |v| + |dP|, the terms of a logit are
    P (a + |dO| · |O| + |dlse| + Σ P |dP|) for the softmax, P (1 − P) a for the sigmoid, and
    g (a + Σ g a / Σ g) for sparse weights. A gradient of scores adds |ds|; a gradient of
    log-weights adds |dl| + P Σ |dl|.
    """
    up = {name: torch.tensor(x).abs() for name, x in upstream(row).items()}
    normalizer, P = EXTRAS[row[3]].options.get("normalizer", "softmax"), found["weights"]
    keep = torch.as_tensor(kept(row))

    def of_pairs(name: str) -> Tensor:
        return torch.where(keep, up.get(name, torch.zeros_like(P)), 0.0)

    d_output = up.get("output", torch.zeros_like(found["output"]))
    a = d_output @ value.abs().mT + of_pairs("weights")
    if normalizer == "sigmoid":
        return P * (1 - P) * a, 0.0
    if normalizer in POWERS:
        g = (P > 0).double() if normalizer == "sparsemax" else P.sqrt()
        mean = (g * a).sum(-1, keepdim=True) / g.sum(-1, keepdim=True).clamp(min=1e-300)
        return g * (a + mean), 0.0
    whole = (d_output * found["output"].abs()).sum(-1) + (P * of_pairs("weights")).sum(-1)
    whole = whole + up.get("lse", 0.0)
    logs = of_pairs("log_weights")
    of_logits = P * (a + whole[..., None] + logs.sum(-1, keepdim=True)) + logs + of_pairs("scores")
    if "sink" not in own:
        return of_logits, 0.0
    return of_logits, torch.exp(own["sink"][:, None] - found["lse"]) * whole


def _recorded(row: Row, leaves: Tensors, score: Any) -> Tensor:
    """Return the scores (..., T_q, T_k) in float64, 0 where masked, recorded for gradients."""
    c, formula = of(row), formula_of(score)
    zeros, rows = torch.zeros(c.shape.keys, dtype=torch.float64), {}
    given = {"value": leaves["key"], **leaves}
    for at, found, q, k, _, p in attending(given, score, **_both(c.masking(np.asarray))):
        rows[at] = zeros.index_put((found,), formula(q, k, p))
    lead = (*c.shape.lead, c.shape.queries)
    s = torch.stack([rows.get(at, zeros) for at in np.ndindex(*lead)])
    return s.reshape(*lead, c.shape.keys)


def _both(masking: dict[str, Any]) -> dict[str, Any]:
    return {"mask": None, "valid_lens": None} | masking


def _of_heads(row: Row, value: Tensor) -> Tensor:
    """Return the value with all leading dimensions of the output."""
    lead = of(row).shape.lead
    places = [oracle.place(tuple(value.shape[:-2]), n, lead) for n in np.ndindex(*lead)]
    return torch.stack([value[at] for at in places]).reshape(*lead, *value.shape[-2:])


def weigh(row: Row, s: Tensor, value: Tensor, own: Tensors) -> Tensors:
    """Return all results of a matrix of scores; the value has the heads of the query."""
    keep, normalizer = (
        torch.as_tensor(kept(row)),
        EXTRAS[row[3]].options.get("normalizer", "softmax"),
    )
    x = logits(row, torch.where(keep, s, 1.0), own)
    found = {"scores": torch.where(keep, x, -torch.inf)}
    if normalizer == "softmax":
        found |= _softmax(x, keep, own["sink"][:, None] if "sink" in own else None)
    elif normalizer == "sigmoid":
        n = keep.sum(-1, keepdim=True).clamp(min=1).to(x.dtype)
        found["weights"] = torch.where(keep, torch.sigmoid(x - n.log()), 0.0)
    else:
        found["weights"] = _sparse(x, keep, POWERS[normalizer])
    return found | {"output": found["weights"] @ value}


def _softmax(x: Tensor, keep: Tensor, sink: Tensor | None) -> Tensors:
    """Return weights, log-weights and log-sum-exp; a sink is one more logit."""
    top = torch.where(keep, x, -torch.inf).detach().amax(-1, keepdim=True)
    if sink is not None:
        top = torch.maximum(top, sink.detach()[..., None])
    top = torch.where(top == -torch.inf, 0.0, top)
    e = torch.where(keep, torch.exp(torch.where(keep, x, top) - top), 0.0)
    total = e.sum(-1, keepdim=True)
    if sink is not None:
        total = total + torch.exp(sink[..., None] - top)
    some = total > 0
    total = torch.where(some, total, 1.0)
    lse = torch.where(some, top + total.log(), -torch.inf)
    logs = torch.where(keep, x - lse, -torch.inf)
    return {"weights": e / total, "log_weights": logs, "lse": lse[..., 0]}


def _sparse(x: Tensor, keep: Tensor, power: int) -> Tensor:
    """Return max(x / power − τ, 0)^power, with τ by sorting.

    Sources: Martins & Astudillo 2016, algorithm 1 (sparsemax); Peters, Niculae & Martins 2019,
    algorithm 2 (entmax15).
    """
    z = torch.where(keep, x, -torch.inf)
    top = z.detach().amax(-1, keepdim=True)
    z = (z - torch.where(top == -torch.inf, 0.0, top)) / power
    with torch.no_grad():
        ordered = z.sort(-1, descending=True).values
        k = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype)
        mean = ordered.cumsum(-1) / k
        if power == 1:
            tau = mean - 1 / k
        else:
            squares = (ordered**2).cumsum(-1) - k * mean**2
            tau = mean - ((1 - squares) / k).sqrt()
        count = (tau < ordered).sum(-1, keepdim=True)
        inside = keep & (z >= ordered.gather(-1, (count - 1).clamp(min=0)))
    k = inside.sum(-1, keepdim=True).clamp(min=1).to(z.dtype)
    z = torch.where(inside, z, 0.0)
    mean = z.sum(-1, keepdim=True) / k
    if power == 1:
        tau = mean - 1 / k
    else:
        squares = torch.where(inside, z - mean, 0.0).square().sum(-1, keepdim=True)
        tau = mean - ((1 - squares) / k).sqrt()
    return torch.where(inside, (z - tau) ** power, 0.0)
