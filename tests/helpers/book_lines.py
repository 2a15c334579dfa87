"""Lines of *Dive into Deep Learning*: constructors and calls of all editions, and their results.

The editions are the tags 0.7 to 1.0.3 of d2l-ai/d2l-en; JAX is in 1.0 alone. Every front runs every
constructor, whichever framework prints it. `DIFFERENT` has the lines that cannot run as printed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "chapter.md"
NUMBERS: dict[str, Any] = {
    "num_hiddens": 100, "embedding_size": 100, "num_heads": 5, "dropout": 0.1,
    "key_size": 7, "query_size": 11, "value_size": 13, "use_bias": False, "bias": False,
}  # fmt: skip
"""Values of the names in the lines; sizes are distinct, so that none takes another's place."""


class Line(NamedTuple):
    """A constructor as printed. widths: of queries, keys and values in its call."""

    constructor: str
    printed: str
    widths: tuple[int, int, int]
    heads: int | None = None
    bias: bool = True

    @property
    def kind(self) -> str:
        return re.sub(r"Attention.*|d2l\.", "", self.constructor)


_ALL, _SIZED = (100, 100, 100), (11, 7, 13)
LINES = [
    Line("DotProductAttention(dropout=0.5)", "all since 0.7", (2, 2, 4)),
    Line("d2l.DotProductAttention(dropout)", "all since 0.7", (20, 20, 4)),
    Line("d2l.DotProductAttention(self.dropout)", "JAX", (20, 20, 4)),
    Line("MLPAttention(units=8, dropout=0.1)", "MXNet 0.7 to 0.15", (2, 2, 4)),
    Line("d2l.MLPAttention(num_hiddens, dropout)", "MXNet 0.7 to 0.15", (100, 100, 100)),
    Line(
        "MLPAttention(key_size=2, query_size=2, units=8, dropout=0.1)",
        "PyTorch 0.14, 0.15",
        (2, 2, 4),
    ),
    Line("d2l.MLPAttention(num_hiddens, num_hiddens, num_hiddens, dropout)", "PyTorch 0.15", _ALL),
    Line("AdditiveAttention(num_hiddens=8, dropout=0.1)", "MXNet, PyTorch, JAX", (20, 2, 4)),
    Line("d2l.AdditiveAttention(num_hiddens, dropout)", "MXNet, PyTorch", _ALL),
    Line("d2l.AdditiveAttention(self.num_hiddens, self.dropout)", "JAX", _ALL),
    Line(
        "AdditiveAttention(key_size=2, query_size=20, num_hiddens=8,\ndropout=0.1)",
        "TensorFlow; PyTorch 0.16, 0.17",
        (20, 2, 4),
    ),
    Line(
        "d2l.AdditiveAttention(num_hiddens, num_hiddens,\nnum_hiddens, dropout)",
        "TensorFlow; PyTorch 0.16, 0.17",
        _ALL,
    ),
    Line("MultiHeadAttention(num_hiddens, num_heads, 0.5)", "MXNet, PyTorch, JAX", _ALL, 5),
    Line("MultiHeadAttention(100, 10, 0.5, d_q=5, d_k=5, d_v=5)", "see DIFFERENT", (5, 5, 5), 10),
    Line("MultiHeadAttention(embedding_size, num_heads,\ndropout)", "MXNet 0.7", _ALL, 5),
    Line("d2l.MultiHeadAttention(num_hiddens, num_heads, dropout)", "MXNet, PyTorch", _ALL, 5),
    Line(
        "d2l.MultiHeadAttention(\nnum_hiddens, num_heads, dropout, use_bias)",
        "MXNet, PyTorch",
        _ALL,
        5,
        False,
    ),
    Line(
        "d2l.MultiHeadAttention(self.num_hiddens, self.num_heads,\nself.dropout)",
        "JAX",
        _ALL,
        5,
    ),
    Line(
        "d2l.MultiHeadAttention(self.num_hiddens, self.num_heads,\nself.dropout, self.use_bias)",
        "JAX",
        _ALL,
        5,
        False,
    ),
    Line("MultiHeadAttention(5, 5, 5, 100, 10, 0.5)", "PyTorch 0.15", (5, 5, 5), 10),
    Line(
        "MultiHeadAttention(num_hiddens, num_hiddens, num_hiddens,\nnum_hiddens, num_heads, 0.5)",
        "TensorFlow; PyTorch 0.16, 0.17",
        _ALL,
        5,
    ),
    Line(
        "d2l.MultiHeadAttention(\n"
        "key_size, query_size, value_size, num_hiddens, num_heads, dropout)",
        "TensorFlow; PyTorch 0.15 to 0.17",
        _SIZED,
        5,
    ),
    Line(
        "d2l.MultiHeadAttention(\n"
        "key_size, query_size, value_size, num_hiddens, num_heads, dropout,\nuse_bias)",
        "TensorFlow; PyTorch 0.15 to 0.17",
        _SIZED,
        5,
        False,
    ),
    # Signatures, by name
    Line(
        "MultiHeadAttention(num_hiddens=100, num_heads=5, dropout=0.5, bias=False)",
        "signature of PyTorch and JAX",
        _ALL,
        5,
        False,
    ),
    Line(
        "MultiHeadAttention(num_hiddens=100, num_heads=5, dropout=0.5, use_bias=False)",
        "signature of MXNet",
        _ALL,
        5,
        False,
    ),
    Line(
        "MultiHeadAttention(hidden_size=100, num_heads=5, dropout=0.5)",
        "signature of MXNet 0.7",
        _ALL,
        5,
    ),
    Line(
        "MultiHeadAttention(key_size=7, query_size=11, value_size=13, num_hiddens=100, "
        "num_heads=5, dropout=0.5)",
        "signature of TensorFlow",
        _SIZED,
        5,
    ),
]
IDS = [re.sub(r"\W+", "_", line.constructor).strip("_") for line in LINES]
each_line = pytest.mark.parametrize("line", LINES, ids=IDS)

SINGLE = "attention(queries, keys, values, valid_lens)"
HEADS = "attention(X, Y, Y, valid_lens)"
IN_BLOCK = "self.attention(X, X, X, valid_lens)"
MEANS = [[2, 3, 4, 5], [10, 11, 12, 13]]
"""The book's printed means of 0 … 39 in rows of four, with valid lengths 2 and 6."""


class Different(NamedTuple):
    """A line that cannot run as printed.

    row: a text of its row on docs/chapter.md. remedy: a text of the row and of the error.
    """

    line: str
    row: str
    remedy: str


DIFFERENT = {
    "width": Different(
        "attention(X, X, X, valid_lens)",
        "MXNet to 0.15: `MultiHeadAttention(100, 10, 0.5)`",
        "d_q=5",
    ),
    "call": Different(
        "attention(queries, keys, values, valid_lens)",
        "`attention(queries, keys, values, valid_lens)` of `anyscore.jax`",
        "layer.apply(params, …)",
    ),
    "rngs": Different(
        "attention.apply(params, queries, keys, values, valid_lens, training=True,\n"
        'rngs={"dropout": key})',
        '`rngs={"dropout": key}` of `anyscore.jax`',
        "dropout_seed=key",
    ),
    "training": Different(
        "attention.init_with_output(key, queries, keys, values, valid_lens,\ntraining=False)",
        "`init_with_output(…, training=False)` of `anyscore.jax`",
        "anyscore.jax.linen",
    ),
}


def names(front: Any, **more: Any) -> dict[str, Any]:
    """Return the names in lines of the book: those of a front, `d2l`, `self` and the numbers."""
    own = {name: getattr(front, name) for name in front.__all__}
    d2l = SimpleNamespace(**own, get_key=more.get("get_key"))
    return {**own, "d2l": d2l, "self": SimpleNamespace(**NUMBERS), **NUMBERS, **more}


def make(line: Line, front: Any) -> Any:
    """Run the constructor as printed; check that dropout is in its place."""
    attention = eval(line.constructor, names(front))
    inner = getattr(attention, "attention", attention)
    assert inner.dropout == (0.5 if "0.5" in line.constructor else 0.1)
    return attention


def inputs(line: Line) -> list[np.ndarray]:
    """Draw queries, keys and values, float32, of the book's numbers of tokens."""
    rng = np.random.default_rng(0)
    tokens = (1, 10, 10) if line.heads is None else (4, 6, 6)
    shapes = zip(tokens, line.widths, strict=True)
    return [rng.normal(size=(2, n, width)).astype("float32") for n, width in shapes]


def lengths(line: Line) -> np.ndarray:
    return np.array([2, 6] if line.heads is None else [3, 2], "int32")


def equal_keys(line: Line) -> list[np.ndarray]:
    """Return the book's queries and keys of ones, and values 0 … 39, for layers of one head."""
    d_q, d_k, _ = line.widths
    values = np.arange(40, dtype="float32").reshape(1, 10, 4).repeat(2, axis=0)
    return [np.ones((2, 1, d_q), "float32"), np.ones((2, 10, d_k), "float32"), values]


def check(line: Line, parameters: Mapping[str, np.ndarray], result: tuple[Any, Any]) -> None:
    """Compare (output, weights) of `inputs` with the book's formulas in float64."""
    assert any(".bias" in name for name in parameters) == (line.heads is not None and line.bias)
    p = {name: np.asarray(x, np.float64) for name, x in parameters.items()}
    q, k, v = (np.asarray(x, np.float64) for x in inputs(line))
    output, weights = expected(line, p, q, k, v)
    np.testing.assert_allclose(result[0], output, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result[1], weights, rtol=1e-4, atol=1e-5)


def expected(
    line: Line, p: Mapping[str, np.ndarray], q: np.ndarray, k: np.ndarray, v: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (output, weights) of the book's layer with these parameters, head by head."""
    if line.heads is None:
        weights = _masked_softmax(_scores(line, p, q, k), lengths(line))
        return weights @ v, weights
    q, k, v = (_linear(p, x, name) for x, name in ((q, "W_q"), (k, "W_k"), (v, "W_v")))
    parts = (np.split(x, line.heads, axis=-1) for x in (q, k, v))
    outputs, by_head = [], []
    for q_h, k_h, v_h in zip(*parts, strict=True):
        by_head.append(_masked_softmax(_dots(q_h, k_h), lengths(line)))
        outputs.append(by_head[-1] @ v_h)
    return _linear(p, np.concatenate(outputs, axis=-1), "W_o"), np.stack(by_head, axis=1)


def _scores(line: Line, p: Mapping[str, np.ndarray], q: np.ndarray, k: np.ndarray) -> np.ndarray:
    if line.kind == "DotProduct":
        return _dots(q, k)
    features = (q @ p["W_q.weight"].T)[:, :, None] + (k @ p["W_k.weight"].T)[:, None]
    return np.tanh(features) @ p["w_v.weight"][0]


def _dots(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    return q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])


def _masked_softmax(scores: np.ndarray, valid_lens: np.ndarray) -> np.ndarray:
    beyond = np.arange(scores.shape[-1]) >= valid_lens[:, None, None]
    e = np.where(beyond, 0, np.exp(scores - scores.max(-1, keepdims=True)))
    return e / e.sum(-1, keepdims=True)


def _linear(p: Mapping[str, np.ndarray], x: np.ndarray, name: str) -> np.ndarray:
    return x @ p[f"{name}.weight"].T + p.get(f"{name}.bias", 0)


def state(line: Line) -> dict[str, np.ndarray]:
    """Draw the state dict of the book's layer in PyTorch, by the book's names."""
    rng = np.random.default_rng(1)
    d_q, d_k, d_v = line.widths
    hidden = 8 if "8" in line.constructor else 100
    shapes = {"W_k": (hidden, d_k), "W_q": (hidden, d_q)}
    shapes |= {"w_v": (1, hidden)} if line.heads is None else {"W_v": (hidden, d_v)}
    shapes |= {} if line.heads is None else {"W_o": (hidden, hidden)}
    return {f"{x}.weight": rng.normal(size=y).astype("f") / 3 for x, y in shapes.items()}


STATES = [line for line in LINES if line.kind != "DotProduct" and (not line.heads or not line.bias)]
"""Lines of layers with parameters, without biases in projections as the book's default."""
each_state = pytest.mark.parametrize("line", STATES, ids=[IDS[LINES.index(x)] for x in STATES])


def check_different(name: str, call: Callable[[str], Any]) -> None:
    """Check that a line raises an error with its remedy, which its row of the page has too.

    call: runs the line as printed.
    """
    different = DIFFERENT[name]
    table = [x for x in PAGE.read_text(encoding="utf-8").splitlines() if x.startswith("| ")]
    (row,) = (x for x in table if different.row in x)
    with pytest.raises((TypeError, ValueError)) as raised:
        call(different.line)
    assert different.remedy in str(raised.value)
    assert different.remedy in row
