"""The tasks of a benchmark: attention, and other functions of scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anyscore import attention, log_sum_exp, log_weights
from anyscore.lab.bench.work import attended


@dataclass(frozen=True)
class Task:
    """A function of scores (B, T_q, T_k), row by row.

    takes: the inputs beside queries and keys: value (B, T_k, D_v), prior (B, T_q, T_k), bias (T_q,
        T_k), one for the whole batch.
    plain: (scores, *inputs) → (B, T_q, n), in plain PyTorch.
    ours: (query, key, *inputs, score=…, **options) → the same by anyscore.
    gives: the meaning of n: the width of the values, the number of keys, or 1.
    """

    takes: tuple[str, ...]
    plain: Callable[..., Tensor]
    ours: Callable[..., Any]
    gives: str = "values"


def _with_bias(scores: Tensor, bias: Tensor, value: Tensor) -> Tensor:
    return (scores + bias).softmax(-1) @ value


def _our_bias(query: Tensor, key: Tensor, bias: Tensor, value: Tensor, **options: Any) -> Any:
    return attention(query, key, value, bias=bias, **options)


def _aligner(scores: Tensor, prior: Tensor) -> Tensor:
    return scores.log_softmax(-1) + prior


def _our_aligner(query: Tensor, key: Tensor, prior: Tensor, **options: Any) -> Any:
    return log_weights(query, key, **options) + prior


def _log_sum_exp(scores: Tensor) -> Tensor:
    return scores.logsumexp(-1, keepdim=True)


def _our_log_sum_exp(query: Tensor, key: Tensor, **options: Any) -> Any:
    return log_sum_exp(query, key, **options).unsqueeze(-1)


def _sigmoid(scores: Tensor, value: Tensor) -> Tensor:
    return torch.sigmoid(scores - math.log(scores.shape[-1])) @ value


def _sparsemax(scores: Tensor, value: Tensor) -> Tensor:
    """By sorting: Martins and Astudillo 2016, algorithm 1. Only the support has a gradient."""
    with torch.no_grad():
        z = scores.sort(-1, descending=True)[0]
        counts = _counts(z)
        size = (1 + counts * z > z.cumsum(-1)).sum(-1, keepdim=True)
        kept = scores >= z.gather(-1, size - 1)
    threshold = ((scores * kept).sum(-1, keepdim=True) - 1) / size
    return (scores - threshold).clamp_min(0) @ value


def _entmax15(scores: Tensor, value: Tensor) -> Tensor:
    """By sorting: Peters, Niculae and Martins 2019, algorithm 2."""
    half = (scores - scores.amax(-1, keepdim=True).detach()) / 2
    with torch.no_grad():
        z = half.sort(-1, descending=True)[0]
        counts = _counts(z)
        mean, mean_square = z.cumsum(-1) / counts, (z * z).cumsum(-1) / counts
        spread = (1 - counts * (mean_square - mean * mean)) / counts
        size = (mean - spread.clamp_min(0).sqrt() <= z).sum(-1, keepdim=True)
        kept = half >= z.gather(-1, size - 1)
    mean = (half * kept).sum(-1, keepdim=True) / size
    mean_square = (half * half * kept).sum(-1, keepdim=True) / size
    threshold = mean - ((1 - size * (mean_square - mean * mean)) / size).clamp_min(0).sqrt()
    return (half - threshold).clamp_min(0).square() @ value


def _counts(z: Tensor) -> Tensor:
    return torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)


TASKS = {
    "attention": Task(("value",), attended, attention),
    "aligner": Task(("prior",), _aligner, _our_aligner, "keys"),
    "log-sum-exp": Task((), _log_sum_exp, _our_log_sum_exp, "one"),
    "cache": Task(("value",), attended, attention),
    "bias": Task(("bias", "value"), _with_bias, _our_bias),
    "sigmoid": Task(("value",), _sigmoid, partial(attention, normalizer="sigmoid")),
    "sparsemax": Task(("value",), _sparsemax, partial(attention, normalizer="sparsemax")),
    "entmax15": Task(("value",), _entmax15, partial(attention, normalizer="entmax15")),
}
"""Tasks by name.

The aligner is FastPitch's: the logarithm of weights, and a prior added. Of a cache it is one step:
the last key and its value come with the query, the others before.
"""
