"""Calls with one change, which may be wrong: such a call must work or raise one clear error."""

from __future__ import annotations

import linecache
import math
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import anyscore
from anyscore.modifiers.biases import Bias

Tensor = Callable[[np.ndarray], Any]
Arguments = dict[str, Any]
"""Arguments of `attention` by name; a parameter of the score is "score.name"."""


@dataclass(frozen=True)
class Hostile:
    """change: name of an argument's change. what: its value. must: True if the call must raise."""

    kind: str
    heads: bool
    change: str
    to: str
    what: Any
    must: bool

    def arguments(self, tensor: Tensor) -> Arguments:
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
        if self.change in BESIDE and isinstance(new, np.ndarray):
            new = tensor(new)
        elif isinstance(new, Bias):
            new = new.map(tensor)
        return {**arguments, self.to: new}


def attend(kind: str, arguments: Arguments, impl: str) -> Any:
    given = dict(arguments)
    fields = {n.removeprefix("score."): given.pop(n) for n in arguments if n.startswith("score.")}
    if kind in ("Additive", "GATv2") and "W_q" not in fields:
        fields |= {"W_q": None, "W_k": None}
    tensors = [given.pop(name) for name in ("query", "key", "value")]
    score = getattr(anyscore, kind)(**fields)
    return anyscore.attention(*tensors, **{"score": score, "impl": impl, **given})


def is_announced(error: Exception) -> bool:
    """Return whether the package raised the error on purpose, with one short line."""
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


def _longer(x: Any, by: int, at: int, tensor: Tensor) -> Any:
    shape = [max(n + by * (axis == at), 0) for axis, n in enumerate(x.shape)]
    return tensor(np.ones(shape, np.float32))


def _matrix(x: np.ndarray) -> Any:
    with warnings.catch_warnings():  # NumPy advises against matrices
        warnings.simplefilter("ignore")
        return np.matrix(x.reshape(-1, x.shape[-1]))


OF_TORCH = "on meta", "sparse"
CHANGES: dict[str, Callable[[Any, Any, Tensor], Any]] = {
    "an axis longer": lambda x, at, tensor: _longer(x, 1, at, tensor),
    "an axis shorter": lambda x, at, tensor: _longer(x, -1, at, tensor),
    "an axis more": lambda x, n, tensor: tensor(np.ones((n, *x.shape), np.float32)),
    "an axis less": lambda x, _, tensor: x[0] if x.ndim else x,
    "another dtype": lambda x, dtype, tensor: tensor(np.asarray(x).astype(dtype)),
    "on meta": lambda x, _, tensor: x.to("meta"),
    "a masked array": lambda x, _, tensor: np.ma.masked_greater(np.asarray(x), 0),
    "a matrix": lambda x, _, tensor: _matrix(np.atleast_2d(np.asarray(x))),
    "sparse": lambda x, _, tensor: x.to_sparse(),
    "a list": lambda x, _, tensor: np.asarray(x).tolist(),
}

NUMBERS = (
    1e-200, 1e-30, 1e-20, 1e30, 1e200, 0, 0.0, -1, math.nan, math.inf, True, "1", 1j, 10**400,
)  # fmt: skip
LENGTHS = (
    [10**30], [10**30, 1], [2**63], [2**63, 2], 10**30, -(10**30), math.nan, "3", ["3", "2"], b"12",
    [[1, 2], [3]], [], [None, 1], [True, False], [1 + 2j, 1], {}, object(), range(2), (3, 4),
    [1, 2, 3], [[1, 2, 3]], [[1], [2]], np.array([1, 2], object), np.array(["1", "2"]),
    np.array([3, 2**63 + 1], np.uint64), np.array([1, 2], "datetime64[s]"), np.longdouble(3),
)  # fmt: skip
MASKS = (
    np.ones((3, 7)), np.ones((3, 7), int), np.zeros((3, 7), np.float16), np.ones((2, 7), bool),
    np.ones((3, 6), bool), np.ones((9, 1, 3, 7), bool), np.ones((), bool), np.ones(7, bool),
    [[True]], True, "causal", anyscore.Causal, lambda: None, [], {},
)  # fmt: skip
BIASES = (
    *MASKS[:9], 0.0, -math.inf, math.nan, "alibi", anyscore.ALiBi, anyscore.Relative,
    np.zeros((3, 7), np.complex64), np.zeros((2, 3, 7), np.float32), np.zeros(7, np.float16),
    np.zeros((2, 4, 3, 7)), np.full((3, 7), -math.inf), np.full((1, 7), 1e38, np.float32),
    anyscore.ALiBi(), anyscore.ALiBi(align="end"), anyscore.ALiBi(np.ones(3), offset=1),
    anyscore.ALiBi(np.ones(4, np.float32), offset=-3),
    anyscore.Relative(np.zeros(5)), anyscore.Relative(np.zeros((4, 1), np.float32), align="start"),
    anyscore.Relative(np.ones(5, int), align="end"),
    anyscore.Relative(np.ones((9, 2, 5)), offset=0),
)  # fmt: skip
BESIDE: dict[str, tuple[Any, ...]] = {
    "sink": (
        *NUMBERS, None, False,
        [0.0], np.zeros(4, np.float32), np.zeros(2), np.zeros(3),
        np.zeros((2, 1), np.float16), np.zeros((1, 1, 1, 1)), np.zeros(2, int), np.zeros(2, bool),
        np.full(2, -math.inf, np.float32), np.full((), 1e38, np.float32), "zero", {},
    ),
    "bias": BIASES,
    "bias_after": BIASES,
    "normalizer": (
        "Softmax", "sigmod", "", None, True, 0, 1.5, [], {}, "sigmoid", "sparsemax", "entmax15",
        anyscore.Sigmoid, anyscore.Sigmoid(), anyscore.Sigmoid(1e30), anyscore.Sigmoid(-1e30),
        anyscore.Sigmoid(bias=0), b"softmax", lambda scores: scores, np.zeros(2),
    ),
}  # fmt: skip
WITH: dict[str, tuple[Any, ...]] = {
    "an axis longer": (0, 1, 2, 3),
    "an axis shorter": (0, 1, 2, 3),
    "an axis more": (1, 2, 4, 9, 0),
    "another dtype": ("float64", "float16", "int64", "bool", "complex64", "uint8"),
    "a number": NUMBERS,
    "valid_lens": LENGTHS,
    "mask": (*MASKS, *(anyscore.Window(1, 1, offset=n) for n in LENGTHS)),
    "dropout": (1, -0.1, math.nan, "0", None, True),
    "dropout_seed": (
        np.uint64(2**63 + 1), 2**64 + 5, -1, -(2**63), 10**40, 1.5, True, "1", [1], np.ones(2),
    ),
    "softcap": (
        -1, math.nan, math.inf, 1e-46, 1e39, "1", None, True, [1.0], 1j, 10**400, 1e-30, 1e30,
    ),
    "impl": ("fast", None, 1),
    **BESIDE,
}  # fmt: skip
"""Values of each change; other changes than those in `CHANGES` and numbers set an argument."""


@st.composite
def hostile_calls(draw: st.DrawFn, framework: str) -> Hostile:
    kind = draw(st.sampled_from(sorted(SHAPES)))
    changes = [x for x in {**CHANGES, **WITH} if framework == "torch" or x not in OF_TORCH]
    change = draw(st.sampled_from(changes))
    tensors = ["query", "key", "value", *(f"score.{name}" for name in SHAPES[kind])]
    to = draw(st.sampled_from(tensors)) if change in (*CHANGES, "a number") else change
    scale = to in ("score.sigma", "score.tau", "score.scale")
    must = change in ("on meta", "a masked array", "impl")
    must = must or (not scale and change in ("a list", "another dtype", "a number"))
    what = draw(st.sampled_from(WITH.get(change, (None,))))
    return Hostile(kind, draw(st.booleans()), change, to, what, must)
