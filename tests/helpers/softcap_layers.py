"""Layers with capped scores, s → c · tanh(s / c), and the expected results in NumPy.

The layers may have sinks, see `sink_layers`, and biases, see `bias_layers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

Arrays: TypeAlias = Mapping[str, np.ndarray]

CAP = 0.5
D, D_V, HEADS, LENGTHS = 6, 4, 2, np.array([2, 5])
LAYERS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "scaled_dot": ("Attention", ("scaled_dot",), {}),
    "trilinear": ("Attention", ("trilinear",), {"d_q": D, "d_k": D}),  # a cap keeps its query bias
    "dot": ("DotProductAttention", (), {}),
    "additive": ("AdditiveAttention", (8,), {"query_size": D, "key_size": D}),
    "mlp": ("MLPAttention", (8,), {"query_size": D, "key_size": D}),
    "heads": ("MultiHeadAttention", (D, HEADS), {"kv_heads": 1}),
    "self": ("SelfAttention", (D, 3), {"d_v": D_V}),
}


def make(module: Any, name: str, **options: Any) -> Any:
    """Return a layer of a front, with the cap CAP unless `options` set another."""
    kind, args, own = LAYERS[name]
    return getattr(module, kind)(*args, **{"softcap": CAP, **own, **options})


def inputs(name: str) -> list[np.ndarray]:
    """Draw inputs of a layer that are large enough for an effect of the cap."""
    widths = {"self": [D], "heads": [D, D, D]}.get(name, [D, D, D_V])
    tokens = [3, 5, 5] if len(widths) > 1 else [5]
    shapes = [(2, n, d) for n, d in zip(tokens, widths, strict=True)]
    return [2 * np.random.normal(size=shape).astype("float32") for shape in shapes]


def expected(
    name: str,
    parameters: Arrays,
    given: list[np.ndarray],
    cap: float = CAP,
    sink: Any = -np.inf,
    biases: tuple[Any, Any] = (0.0, 0.0),
) -> Any:
    """Return (output, weights) of a layer with these parameters, in float64."""
    p = {key: np.asarray(x, np.float64) for key, x in parameters.items()}
    x = [np.asarray(array, np.float64) for array in given]
    rest = cap, sink, biases
    if name == "self":
        cuts = np.cumsum(LAYERS[name][1][1:] * 2)
        return _attend(*np.split(_linear(p, x[0], "qkv"), cuts, axis=-1), *rest)
    if name == "heads":
        q, k, v = (_linear(p, y, f"W_{one}") for y, one in zip(x, "qkv", strict=True))
        q = np.swapaxes(q.reshape(*q.shape[:-1], HEADS, -1), 1, 2)
        output, weights = _attend(q, k[:, None], v[:, None], *rest)
        output = np.swapaxes(output, 1, 2)
        return _linear(p, output.reshape(*output.shape[:-2], -1), "W_o"), weights
    return _attend(*x, *rest, _scores(name, p, *x[:2]))


def _scores(name: str, p: Arrays, q: np.ndarray, k: np.ndarray) -> np.ndarray | None:
    if name == "trilinear":
        of_query, of_key = (
            (x @ p[f"w_{one}.weight"])[..., None] for x, one in ((q, "q"), (k, "k"))
        )
        return of_query + np.swapaxes(of_key, -1, -2) + (q * p["w_p.weight"]) @ k.swapaxes(1, 2)
    if name in ("additive", "mlp"):
        a, b = q @ p["W_q.weight"].T, k @ p["W_k.weight"].T
        return np.tanh(a[:, :, None] + b[:, None]) @ p["w_v.weight"][0]
    return None


def _attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    cap: float,
    sink: Any,
    biases: tuple[Any, Any],
    s: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    s = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]) if s is None else s
    s = s + biases[0]
    s = (cap * np.tanh(s / cap) if cap else s) + biases[1]
    lengths = LENGTHS.reshape(-1, *(1,) * (s.ndim - 1))
    e = np.where(np.arange(s.shape[-1]) < lengths, np.exp(s), 0.0)
    weights = e / (e.sum(-1, keepdims=True) + np.exp(np.asarray(sink, np.float64))[..., None, None])
    return weights @ v, weights


def _linear(p: Arrays, x: np.ndarray, name: str) -> np.ndarray:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]
