"""The support matrix: the implementation that `plan` chooses, by framework and feature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import anyscore

Maker = Callable[[np.ndarray], Any]


def _frameworks() -> dict[str, Maker]:
    import jax.numpy as jnp
    import tensorflow as tf
    import torch

    makers = np.asarray, torch.tensor, jnp.asarray, tf.constant
    return dict(zip(("NumPy", "PyTorch", "JAX", "TensorFlow"), makers, strict=True))


def _features(to: Maker) -> dict[str, dict[str, Any]]:
    """Return the arguments of each feature, for queries (2, 4, 6) and keys (2, 4, 6)."""
    ones = np.ones((2, 4, 4), bool)
    return {
        "plain": {},
        "lengths, `Keys`, `Causal`, `Window`, `Interval`": {"valid_lens": [4, 2]},
        "a boolean matrix": {"mask": to(ones)},
        "`Edges` of a graph": {
            "mask": anyscore.Edges.from_index(to(np.array([[0, 1], [1, 0]])), 4)
        },
        "dropout": {"dropout": 0.1, "dropout_seed": 1},
        "softcap": {"softcap": 5.0},
        "a sink": {"sink": 0.0},
        "a bias": {"bias": to(np.zeros((4, 4), np.float32))},
        "`ALiBi`, `Relative`": {"bias": anyscore.ALiBi(to(np.ones(1, np.float32)))},
        "normalizer: sigmoid": {"normalizer": "sigmoid"},
        "normalizer: sparsemax, entmax15": {"normalizer": "sparsemax"},
        "weights returned": {"return_weights": True},
    }


def page() -> str:
    """Return the matrix as a table of Markdown."""
    makers = _frameworks()
    rows: dict[str, list[str]] = {}
    for to in makers.values():
        x = to(np.ones((2, 4, 6), np.float32))
        score = anyscore.Additive(None, None, to(np.ones(6, np.float32)))
        for feature, arguments in _features(to).items():
            rows.setdefault(feature, []).append(_route(x, score, arguments))
        rows.setdefault("a callable score", []).append(_route(x, _distances, {}))
    lines = [f"| | {' | '.join(makers)} |", "|---" * (len(makers) + 1) + "|"]
    return "\n".join([*lines, *(f"| {name} | {' | '.join(row)} |" for name, row in rows.items())])


def _distances(query: Any, key: Any) -> Any:
    """Score by minus the distance of the first features."""
    return -abs(query[..., :, None, 0] - key[..., None, :, 0])


def _route(x: Any, score: Any, arguments: dict[str, Any]) -> str:
    try:
        route = anyscore.plan(x, x, x, score=score, **arguments).route
    except (TypeError, ValueError, NotImplementedError):
        return "refused"
    return route if route == "reference" else "fused"
