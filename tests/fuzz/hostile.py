"""Calls that may be wrong: a right one with one thing changed. They work, or say what is wrong."""

from __future__ import annotations

import linecache
import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import anyscore

Arguments = dict[str, Any]
"""What `attention` is given, by name; parameters of the score as "score.name"."""


@dataclass(frozen=True)
class Hostile:
    """change: what is done to an argument, with what. must: whether it must be refused."""

    kind: str
    heads: bool
    change: str
    to: str
    what: Any
    must: bool

    def arguments(self, tensor: Callable[[np.ndarray], Any]) -> Arguments:
        rng = np.random.default_rng(0)
        lead, kv = ((2, 4), (2, 2)) if self.heads else ((2,), (2,))
        made: Arguments = {
            "query": rng.standard_normal((*lead, 3, 5)),
            "key": rng.standard_normal((*kv, 7, 5)),
            "value": rng.standard_normal((*kv, 7, 2)),
        }
        for name, shape in SHAPES[self.kind].items():
            made[f"score.{name}"] = np.abs(rng.standard_normal(shape)) + 0.5
        arguments = {name: tensor(np.float32(x)) for name, x in made.items()}
        change = CHANGES.get(self.change)
        new = self.what if change is None else change(arguments[self.to], self.what, tensor)
        return {**arguments, self.to: new}


def attend(kind: str, arguments: Arguments, impl: str) -> Any:
    given = dict(arguments)
    fields = {n.removeprefix("score."): given.pop(n) for n in arguments if n.startswith("score.")}
    if kind in ("Additive", "GATv2") and "W_q" not in fields:
        fields |= {"W_q": None, "W_k": None}
    tensors = [given.pop(name) for name in ("query", "key", "value")]
    score = getattr(anyscore, kind)(**fields)
    return anyscore.attention(*tensors, score=score, impl=impl, **given)


def is_announced(error: Exception) -> bool:
    """Whether an error was raised by the package, on purpose, in one short line."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    ours = str(Path(anyscore.__file__).parent) in place.filename
    on_purpose = "raise " in linecache.getline(place.filename, place.lineno or 0)
    message = str(error)
    kind = type(error) in (TypeError, ValueError, NotImplementedError)
    return kind and ours and on_purpose and "\n" not in message and 10 < len(message) < 600


SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "Dot": {},
    "ScaledDot": {"scale": ()},
    "Bilinear": {"W": (5, 5)},
    "Cosine": {"tau": ()},
    "Trilinear": {"w_q": (5,), "w_k": (5,), "w_p": (5,)},
    "Gaussian": {"sigma": ()},
    "Laplace": {"sigma": ()},
    "Additive": {"W_q": (4, 5), "W_k": (4, 5), "w_v": (4,)},
    "Concat": {"W": (4, 10), "w_v": (4,)},
    "GATv2": {"w_v": (5,)},
}


def _with_shape(x: Any, shape: Any, tensor: Any) -> Any:
    return tensor(np.ones([max(n + m, 0) for n, m in zip(x.shape, shape, strict=True)], np.float32))


CHANGES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "one axis longer": lambda x, at, tensor: _with_shape(x, np.eye(9, dtype=int)[at][: x.ndim], tensor),
    "one axis shorter": lambda x, at, tensor: _with_shape(x, -np.eye(9, dtype=int)[at][: x.ndim], tensor),
    "an axis more": lambda x, n, tensor: tensor(np.ones((n, *x.shape), np.float32)),
    "an axis less": lambda x, _, tensor: x[0] if x.ndim else x,
    "another dtype": lambda x, dtype, tensor: tensor(np.asarray(x).astype(dtype)),
    "on meta": lambda x, _, tensor: x.to("meta") if hasattr(x, "to") else None,
    "a masked array": lambda x, _, tensor: np.ma.masked_array(np.asarray(x), mask=np.asarray(x) > 0),
    "a matrix": lambda x, _, tensor: np.asmatrix(np.asarray(x).reshape(-1, x.shape[-1] if x.ndim else 1)),
    "sparse": lambda x, _, tensor: x.to_sparse() if hasattr(x, "to_sparse") else None,
    "a list": lambda x, _, tensor: np.asarray(x).tolist(),
}  # fmt: skip

LENGTHS = (
    [10**30], [10**30, 1], [2**63], [2**63, 2], 10**30, "3", ["3", "2"], [[1, 2], [3]], [], [None, 1],
    [True, False], [1 + 2j, 1], {}, object(), [1, 2, 3], [[1, 2, 3]], [[1], [2]], math.nan, -(10**30),
    np.array([1, 2], object), np.array([3, 2**63 + 1], np.uint64), np.array(["1", "2"]), range(2), (3, 4),
    np.array([1, 2], "datetime64[s]"), np.float128(3) if hasattr(np, "float128") else 3, b"12",
)  # fmt: skip
SEEDS = (
    np.uint64(2**63 + 1),
    2**64 + 5,
    -1,
    1.5,
    True,
    "1",
    [1],
    np.array([1, 2]),
    None,
    -(2**63),
    10**40,
)
NUMBERS = (
    1e-200,
    1e-30,
    1e-20,
    1e30,
    1e200,
    0,
    0.0,
    -1,
    math.nan,
    math.inf,
    True,
    "1",
    1j,
    10**400,
)
MASKS = (
    np.ones((3, 7)), np.ones((3, 7), int), np.ones((2, 7), bool), np.ones((3, 6), bool), [[True]], True,
    "causal", np.ones((9, 1, 3, 7), bool), np.ones((), bool), np.ones(7, bool), anyscore.Causal,
    np.zeros((3, 7), np.float16), lambda: None, [], {},
)  # fmt: skip


@st.composite
def hostile_calls(draw: st.DrawFn, framework: str) -> Hostile:
    kind, heads = draw(st.sampled_from(sorted(SHAPES))), draw(st.booleans())
    tensors = ["query", "key", "value", *(f"score.{name}" for name in SHAPES[kind])]
    scales = [n for n in tensors if n.split(".")[-1] in ("sigma", "tau", "scale")]
    ways: list[str] = ["one axis longer", "one axis shorter", "an axis more", "an axis less",
                       "another dtype", "a masked array", "a matrix", "a list"]  # fmt: skip
    if framework == "torch":
        ways += ["on meta", "sparse"]
    ways += [
        "valid_lens",
        "dropout_seed",
        "mask",
        "offset",
        "dropout",
        "impl",
        *["a number"] * bool(scales),
    ]
    change = draw(st.sampled_from(ways))
    to = draw(st.sampled_from(tensors))
    what: Any = None
    must = change in ("on meta", "a masked array", "sparse", "a list")
    if change in ("one axis longer", "one axis shorter"):
        what = draw(st.integers(0, 3))
    elif change == "an axis more":
        what = draw(st.sampled_from((1, 2, 4, 9, 0)))
    elif change == "another dtype":
        what = draw(st.sampled_from(("float64", "float16", "int64", "bool", "complex64", "uint8")))
        must = to not in scales
    elif change == "a number":
        to, what = draw(st.sampled_from(scales)), draw(st.sampled_from(NUMBERS))
    elif change == "offset":
        to, what = "mask", draw(st.sampled_from(LENGTHS))
        what = anyscore.Window(1, 1, offset=what)
    elif change in ("valid_lens", "mask", "dropout", "impl", "dropout_seed"):
        choices: dict[str, tuple[Any, ...]] = {
            "valid_lens": LENGTHS, "mask": MASKS, "dropout": (1, -0.1, math.nan, "0", None, True),
            "impl": ("fast", None, 1), "dropout_seed": SEEDS,
        }  # fmt: skip
        to, what = change, draw(st.sampled_from(choices[change]))
    if to == "value" and change in ("a masked array", "sparse"):
        must = True
    return Hostile(kind, heads, change, to, what, must)
