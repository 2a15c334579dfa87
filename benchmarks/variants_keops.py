"""KeOps, the one other library that computes such formulas in memory of O(n), with gradients.

KeOps compiles its symbolic matrices to C++ for each formula and width at the first use, in about
ten seconds. The results are kept in the folder `KEOPS_CACHE_FOLDER`, else in ~/.cache.
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
from anyscore.lab.bench.variants import gradient_call
from benchmarks.work import Work


def lazy(work: Work) -> list[Variant]:
    """List `LazyTensor.sumsoftmaxweight`, or `logsumexp`, of a formula.

    KeOps has no tanh, so additive uses tanh x = 1 − 2 / (1 + e^(2x)), whose constant cancels in the
    softmax. One variant takes exponentials once for each token, which overflow for numbers beyond
    44. The other takes one for each triple.
    """
    formulas: dict[str, dict[str, Callable[..., Any]]] = {
        "additive": {"−2w / (1 + e^2q e^2k)": _by_tokens, "−2w / (1 + e^2(q + k))": _by_triples},
        "gatv2": {"w (0.8 relu(q + k) + 0.2 (q + k))": _gatv2},
        "laplace": {"abs": lambda sym, q, k, w: -(sym(w * q) - sym(w * k)).abs().sum(-1)},
        "gaussian": {"sqdist": lambda sym, q, k, w: -sym(w**0.5 * q).sqdist(sym(w**0.5 * k))},
        "euclidean": {"sqdist, sqrt": lambda sym, q, k, w: -sym(w * q).sqdist(sym(w * k)).sqrt()},
        "student_t": {"sqdist, log": _student_t},
        "softplus": {"log(1 + exp(q + k))": _softplus},
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


def _softplus(sym: Any, q: Tensor, k: Tensor, w: Tensor) -> Any:
    return (sym(w) * (1 + (sym(q) + sym(k)).exp()).log()).sum(-1)


def _student_t(sym: Any, q: Tensor, k: Tensor, w: Tensor) -> Any:
    return -(1 + sym(w**0.5 * q).sqdist(sym(w**0.5 * k))).log()


def _build(work: Work, scores: Callable[..., Any]) -> Call:
    os.environ.setdefault("PYKEOPS_VERBOSE", "0")
    os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))  # read when it is loaded
    sym = importlib.import_module("pykeops.torch").LazyTensor

    def attend(*inputs: Tensor) -> Tensor:
        q, k, *value, w = (x.float() for x in inputs)  # it has no bfloat16
        found = scores(sym, q.unsqueeze(2), k.unsqueeze(1), w if work.formula.learned else float(w))
        output: Tensor
        if value:
            output = found.sumsoftmaxweight(sym(value[0].unsqueeze(1)), axis=2)
        else:
            output = found.logsumexp(axis=2)
            if work.score == "additive":
                output = output + w.sum()  # the constant of tanh
        return output.to(inputs[0].dtype)

    return gradient_call(attend, work)
