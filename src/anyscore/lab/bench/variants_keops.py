"""KeOps, the one other library that computes such formulas in memory of O(n), with gradients.

Its symbolic matrices are compiled to C++ for each formula and width at their first use, in ten
seconds or so each, and kept in the folder that `KEOPS_CACHE_FOLDER` names, else in ~/.cache.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anyscore.lab.bench.rivals import Call, Variant
from anyscore.lab.bench.variants_torch import gradient_call
from anyscore.lab.bench.work import Work


def lazy(work: Work) -> list[Variant]:
    """`LazyTensor.sumsoftmaxweight`. KeOps has no tanh, so additive is written in two other ways.

    tanh x = 1 − 2 / (1 + e^(2x)), of which the constant cancels in the softmax: by exponentials
    made once for each token, which overflow for numbers beyond 44, or by one for each triple.
    """
    formulas: dict[str, dict[str, Callable[..., Any]]] = {
        "additive": {"−2w / (1 + e^2q e^2k)": _by_tokens, "−2w / (1 + e^2(q + k))": _by_triples},
        "gatv2": {"w (0.8 relu(q + k) + 0.2 (q + k))": _gatv2},
        "laplace": {"abs": lambda sym, q, k, w: -(sym(w * q) - sym(w * k)).abs().sum(-1)},
        "gaussian": {"sqdist": lambda sym, q, k, w: -sym(w**0.5 * q).sqdist(sym(w**0.5 * k))},
        "scaled_dot": {"product": lambda sym, q, k, w: sym(w * q) | sym(k)},
    }
    return [
        Variant(f"KeOps, LazyTensor, {how}", partial(_build, work, scores), compiles=True)
        for how, scores in formulas[work.score].items()
    ]


def _by_tokens(sym: Any, q: Tensor, k: Tensor, w: Tensor) -> Any:
    return (sym(-2 * w) / (1 + sym((2 * q).exp()) * sym((2 * k).exp()))).sum(-1)


def _by_triples(sym: Any, q: Tensor, k: Tensor, w: Tensor) -> Any:
    return (sym(-2 * w) / (1 + (sym(2 * q) + sym(2 * k)).exp())).sum(-1)


def _gatv2(sym: Any, q: Tensor, k: Tensor, w: Tensor) -> Any:
    x = sym(q) + sym(k)
    return (sym(w) * (0.8 * x.relu() + 0.2 * x)).sum(-1)


def _build(work: Work, scores: Callable[..., Any]) -> Call:
    os.environ.setdefault("PYKEOPS_VERBOSE", "0")
    os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))  # read when it is loaded
    sym = importlib.import_module("pykeops.torch").LazyTensor

    def attend(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        q, k, v = (x.float() for x in (q, k, v))  # it has no bfloat16
        weight = w.float() if work.formula.learned else float(w)
        found = scores(sym, q.unsqueeze(2), k.unsqueeze(1), weight)
        output: Tensor = found.sumsoftmaxweight(sym(v.unsqueeze(1)), axis=2)
        return output.to(work.value.dtype)

    return gradient_call(attend, work)
