"""Objects with one or two wrong fields: constructed, or rebuilt as from a file, and used."""

from __future__ import annotations

import decimal
import fractions
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st

import anyscore
from anyscore.score import ABSOLUTE, Factors, Init, Outer, Projection

Tensor = Callable[[Any], Any]
"""A function of a NumPy array that returns the framework's tensor of its dtype."""

LEAD, QUERIES, KEYS, WIDTH, HIDDEN = (2, 3), 5, 7, 4, 6


class Raising:
    """An object that cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def _cyclic() -> list[Any]:
    x: list[Any] = [1]
    x.append(x)
    return x


def _nested(depth: int) -> list[Any]:
    x: list[Any] = [1]
    for _ in range(depth):
        x = [x]
    return x


def _other(tensor: Tensor) -> Any:
    """Return a tensor of another framework."""
    import torch

    ours = tensor(np.ones(2, np.float32))
    return np.ones(WIDTH, np.float32) if isinstance(ours, torch.Tensor) else torch.ones(WIDTH)


NUMBERS: dict[str, Any] = {
    "None": None, "True": True, "False": False, "0": 0, "-0.0": -0.0, "-1": -1, "1": 1, "2.5": 2.5,
    "nan": math.nan, "inf": math.inf, "-inf": -math.inf, "10**400": 10**400, "-10**400": -(10**400),
    "2**63": 2**63, "2**64": 2**64, "1e-320": 1e-320, "1e308": 1e308, "1j": 1j,
    "a fraction": fractions.Fraction(1, 3), "a huge fraction": fractions.Fraction(10**400, 3),
    "a decimal": decimal.Decimal("1.5"),
    "np.float64": np.float64(2), "np.float16": np.float16(2), "np.longdouble": np.longdouble(2),
    "np.int8": np.int8(2), "np.uint64": np.uint64(2**64 - 1), "np.bool_": np.bool_(True),
    "np.complex64": np.complex64(1), "np.datetime64": np.datetime64(1, "s"),
}  # fmt: skip
OTHERS: dict[str, Callable[[], Any]] = {
    "''": str, "'start'": lambda: "start", "'t5'": lambda: "t5", "'softmax'": lambda: "softmax",
    "a long text": lambda: "x" * 10_000, "a surrogate": lambda: "\ud800", "bytes": lambda: b"1",
    "[]": list, "()": tuple, "{}": dict, "set": set, "range": lambda: range(3),
    "[1]": lambda: [1], "[1, 2]": lambda: [1, 2], "[1.5, nan]": lambda: [1.5, math.nan],
    "ragged": lambda: [[1, 2], [3]], "[None]": lambda: [None], "['1']": lambda: ["1"],
    "[10**400]": lambda: [10**400, 1], "[1j]": lambda: [1j], "[True]": lambda: [True, False],
    "[object]": lambda: [object()], "[dict]": lambda: [{}], "cyclic": _cyclic,
    "nested 40": lambda: _nested(40), "nested 5000": lambda: _nested(5000),
    "[array, 1]": lambda: [np.ones(3), 1], "an object": object, "a class": lambda: int,
    "a score's class": lambda: anyscore.Gaussian, "a mask's class": lambda: anyscore.Causal,
    "a lambda": lambda: lambda *args: None, "a function": lambda: len, "raises": Raising,
    "a generator": lambda: (x for x in (1, 2)), "Ellipsis": lambda: ...,
    "a slice": lambda: slice(2), "a score": anyscore.Gaussian, "a mask": anyscore.Causal,
    "a bias": anyscore.ALiBi, "a normalizer": anyscore.Sigmoid, "a module": lambda: math,
    "an exception": ValueError,
}  # fmt: skip
ARRAYS: dict[str, Callable[[], Any]] = {
    "()": lambda: np.array(1.5, np.float32), "() int": lambda: np.array(1),
    "() bool": lambda: np.array(True), "() nan": lambda: np.array(math.nan, np.float32),
    "() -1": lambda: np.array(-1.0, np.float32), "(0,)": lambda: np.ones(0, np.float32),
    "(0,) int": lambda: np.ones(0, np.int64), "(1,)": lambda: np.ones(1, np.float32),
    "(2,) int": lambda: np.array([1, 2]), "(2,) int32": lambda: np.array([1, 2], np.int32),
    "(2,) uint8": lambda: np.array([1, 2], np.uint8), "(3,)": lambda: np.ones(3, np.float32),
    "(4,)": lambda: np.ones(4, np.float32), "(6,)": lambda: np.ones(6, np.float32),
    "(7,) bool": lambda: np.ones(7, bool), "(2, 7) bool": lambda: np.ones((2, 7), bool),
    "(5, 7) bool": lambda: np.ones((5, 7), bool), "(6, 4)": lambda: np.ones((6, 4), np.float32),
    "(4, 6) 64": lambda: np.ones((4, 6)), "(3, 6, 4)": lambda: np.ones((3, 6, 4), np.float32),
    "(0, 4)": lambda: np.ones((0, 4), np.float32), "(4, 0)": lambda: np.ones((4, 0), np.float32),
    "(2, 3, 5, 7)": lambda: np.ones((2, 3, 5, 7), np.float32),
    "rank 6": lambda: np.ones((1,) * 6, np.float32), "float16": lambda: np.ones(4, np.float16),
    "complex": lambda: np.ones(4, np.complex64), "falls": lambda: np.array([0, 5, 3, 7]),
    "offsets": lambda: np.array([0, 3, 5]), "huge": lambda: np.array([2**62, -(2**62)]),
}  # fmt: skip
ODD_ARRAYS: dict[str, Callable[[], Any]] = {  # of NumPy alone
    "objects": lambda: np.array([1, None], object), "texts": lambda: np.array(["1", "2"]),
    "records": lambda: np.zeros(2, [("a", int)]), "dates": lambda: np.zeros(2, "datetime64[s]"),
    "longdouble": lambda: np.ones(4, np.longdouble),
    "masked": lambda: np.ma.masked_array(np.ones(4), [True, False, False, False]),
    "an object ()": lambda: np.array(None, object), "void": lambda: np.zeros((), "V4"),
}  # fmt: skip
VALUES = [
    *NUMBERS, *OTHERS, *(f"array {x}" for x in ARRAYS), *(f"odd {x}" for x in ODD_ARRAYS),
    "of another framework",
]  # fmt: skip


def value(name: str, tensor: Tensor) -> Any:
    """Return the value of a name of `VALUES`, new where it can change."""
    if name in NUMBERS:
        return NUMBERS[name]
    if name in OTHERS:
        return OTHERS[name]()
    if name == "of another framework":
        return _other(tensor)
    kind, name = name.split(" ", 1)
    return tensor(ARRAYS[name]()) if kind == "array" else ODD_ARRAYS[name]()


def _ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


@dataclass(frozen=True, eq=False)
class Weighted(anyscore.Score):
    """A score of a user, as in the documentation."""

    w: Any
    shapes: ClassVar[Any] = {"w": ("d_q",)}
    equal_widths: ClassVar[bool] = True

    def lower(self, xp: Any, query: Any, key: Any) -> Factors:
        return Factors(query, key, ABSOLUTE, weight=-self.w)


HIDDEN_FIELDS = {"W_q": (HIDDEN, WIDTH), "W_k": (HIDDEN, WIDTH), "w_v": (HIDDEN,)}
OBJECTS: dict[str, dict[str, Any]] = {
    "Dot": {}, "ScaledDot": {"scale": 0.5}, "Bilinear": {"W": _ones(WIDTH, WIDTH), "scale": 0.5},
    "Cosine": {"tau": 1.0}, "Trilinear": {n: _ones(WIDTH) for n in ("w_q", "w_k", "w_p")},
    "Gaussian": {"sigma": 1.0}, "Laplace": {"sigma": 1.0}, "Euclidean": {"sigma": 1.0},
    "StudentT": {"nu": 1.0, "sigma": 1.0}, "Lorentz": {"sigma": 1.0, "scale": 1.0},
    "Additive": {
        **{n: _ones(*s) for n, s in HIDDEN_FIELDS.items()}, "bias": _ones(HIDDEN), "scale": 1.0,
    },
    "Concat": {"W": _ones(HIDDEN, 2 * WIDTH), "w_v": _ones(HIDDEN), "bias": None, "scale": None},
    "GATv2": {**{n: _ones(*s) for n, s in HIDDEN_FIELDS.items()}, "negative_slope": 0.1},
    "Weighted": {"w": _ones(WIDTH)},
    "Lengths": {"n": [3, 7]}, "Interval": {"start": 0, "stop": [3, 7]},
    "Keys": {"keep": np.ones((2, KEYS), bool)},
    "Window": {"left": 2, "right": 1, "align": "end", "offset": None},
    "Causal": {"align": "end", "offset": None},
    "Sequences": {"cu_seqlens_q": np.array([0, 2, 5]), "cu_seqlens_k": np.array([0, 3, 7])},
    "Edges": {
        "rowptr": np.array([0, 2, 2, 3, 3, 4]), "col": np.array([1, 2, 0, 6]),
        "permutation": None, "terms": None,
    },
    "ALiBi": {"slopes": None, "align": "end", "offset": None},
    "Relative": {
        "table": _ones(5), "buckets": "clipped", "bidirectional": True, "max_distance": 128,
        "align": "end", "offset": None,
    },
    "Sigmoid": {"bias": None},
    "Contiguous": {"over": None, "tokens": None}, "Zigzag": {"over": None, "tokens": None},
    "Uneven": {"over": None, "lengths": (2, 3)},
    "PreparedKeys": {
        "key": _ones(*LEAD, KEYS, WIDTH), "score": anyscore.Gaussian,
        "b": _ones(*LEAD, KEYS, WIDTH), "key_bias": None, "packed": None, "empty_key": None,
    },
    "Cache": {
        "b": _ones(*LEAD, 20, WIDTH), "key_bias": None, "packed": None,
        "values": _ones(*LEAD, 20, WIDTH), "length": np.array(KEYS), "empty_query":
        _ones(*LEAD, 0, WIDTH), "score": anyscore.Gaussian, "d_k": WIDTH, "window": None,
        "scalar_fields": "sigma=1.0", "prepared": None,
    },
    "Pair": {"name": "a name", "value": lambda ops, a, b: a * b, "triton": None},
    "Outer": {"name": "sqrt", "scale": 1.0},
    "Init": {"shape": (WIDTH,), "bound": 0.0, "value": 1.0},
    "Projection": {
        "call": lambda x: x, "shape": (WIDTH, WIDTH), "dtype": "float32", "tensors": (),
    },
}  # fmt: skip
"""Fields that make a right object, by the name of its class."""
ROLES = {"ALiBi": "bias", "Relative": "bias", "Sigmoid": "normalizer"} | dict.fromkeys(
    ("Contiguous", "Zigzag", "Uneven"), "across"
)
OUTSIDE = {"Weighted": Weighted, "Outer": Outer, "Init": Init, "Projection": Projection}
FUNCTIONS = (
    "attention", "scores", "log_sum_exp", "log_weights", "plan", "prepare_keys", "make_cache",
    "layer",
)  # fmt: skip
OF_CACHE = "attend", "append", "reorder", "mask", "positions"
CALLED = "call", "value"
"""Fields that are functions of a user, whose errors are the user's."""
UNCALLABLE = [x for x in VALUES if x not in OTHERS or not callable(OTHERS[x]())]


def functions(kind: str) -> tuple[str, ...]:
    """Return the functions that use an object of a class."""
    return OF_CACHE if kind == "Cache" else ("layer",) if kind == "Init" else FUNCTIONS


@dataclass(frozen=True)
class Wrong:
    """An object with some fields replaced, and the function that uses it.

    rebuilt: whether the object is made without its constructor, as `torch.load` does.
    """

    kind: str
    fields: dict[str, str]
    function: str
    rebuilt: bool = False

    @property
    def words(self) -> list[str]:
        """Words of which an error must have one: the class, its fields, and arguments."""
        arguments = "score", "mask", "bias", "normalizer", "across", "layout", "cache", "valid_lens"
        return [self.kind, *OBJECTS[self.kind], *arguments, "outer", "keys"]

    def object(self, tensor: Tensor) -> Any:
        given = {
            n: tensor(x) if isinstance(x, np.ndarray) else x for n, x in OBJECTS[self.kind].items()
        }
        given |= {name: value(x, tensor) for name, x in self.fields.items()}
        cls = OUTSIDE.get(self.kind) or getattr(anyscore, self.kind)
        if not self.rebuilt or not hasattr(cls, "__setstate__"):
            return cls(**given)
        made: Any = object.__new__(cls)
        made.__setstate__(given | ({"known": {}} if self.kind == "Edges" else {}))
        return made

    def use(self, tensor: Tensor, layer: Any) -> Any:
        """Use the object in the function. layer: (score, **options) → function of a call."""
        return self.used(self.object(tensor), tensor, layer)

    def used(self, one: Any, tensor: Tensor, layer: Any) -> Any:
        rng = np.random.default_rng(0)
        query, key, values = (
            tensor(rng.standard_normal((*LEAD, n, WIDTH), np.float32))
            for n in (QUERIES, KEYS, KEYS)
        )
        if self.kind == "Cache":
            return self._step(one, query, key, values)
        given = self._arguments(one, tensor)
        if self.kind == "PreparedKeys":
            key, given = one, {"score": anyscore.Gaussian()}
        if self.function == "prepare_keys":
            given = {name: x for name, x in given.items() if name in ("score", "mask")}
            return anyscore.prepare_keys(key, **given)
        if self.function == "make_cache":
            score = given.get("score", anyscore.Dot())
            return anyscore.make_cache(key, values, score, capacity=9)
        if self.function == "layer":
            options = {n: given.pop(n) for n in ("score", "normalizer") if n in given}
            given.pop("across", None)
            made = layer(options.pop("score", "scaled_dot"), **options)
            return made(query, key, values, **given)
        if self.function in ("attention", "plan"):
            return getattr(anyscore, self.function)(query, key, values, **given)
        if self.function != "log_sum_exp":
            given.pop("across", None)
        given.pop("normalizer", None)
        return getattr(anyscore, self.function)(query, key, **given)

    def _arguments(self, one: Any, tensor: Tensor) -> dict[str, Any]:
        """Return the arguments of `attention` that have the object."""
        if isinstance(one, anyscore.Score):
            return {"score": one}
        if isinstance(one, anyscore.Mask):
            return {"mask": one}
        if self.kind in ("Pair", "Outer"):
            return {"score": Holder(one)}
        if self.kind == "Projection":
            return {"score": anyscore.Additive(one, None, tensor(_ones(WIDTH)))}
        if self.kind == "Init":
            parameters = {"parameters": classmethod(lambda *_: {"w": one})}
            return {"score": type("Drawing", (Weighted,), parameters)}
        return {ROLES.get(self.kind, "score"): one}

    def _step(self, cache: Any, query: Any, key: Any, values: Any) -> Any:
        """Use a cache."""
        score = anyscore.Gaussian()
        if self.function == "append":
            return cache.append(key, values, score=score)
        if self.function == "attend":
            return cache.attend(query, score=score)
        if self.function == "reorder":
            return cache.reorder([1, 0])
        return cache.mask(2) if self.function == "mask" else cache.positions()


@dataclass(frozen=True, eq=False)
class Holder(anyscore.Score):
    """A score of a user, of a pair or an outer function."""

    part: Any

    def lower(self, xp: Any, query: Any, key: Any) -> Factors:
        if isinstance(self.part, Outer):
            return Factors(query, key, ABSOLUTE, outer=self.part)
        return Factors(query, key, self.part)


def sweep(step: int = 1, first: int = 0) -> Iterator[Wrong]:
    """Yield each field of each class with each wrong value, in one function and one way each."""
    every = (
        (kind, name, x)
        for kind, known in OBJECTS.items()
        for name in known
        for x in (UNCALLABLE if name in CALLED else VALUES)
    )
    for n, (kind, name, x) in enumerate(every):
        if n % step == first:
            # 8 functions and 108 values: another function for a value in each field
            function = functions(kind)[(n + n // len(VALUES)) % len(functions(kind))]
            yield Wrong(kind, {name: x}, function, n % 3 == 0)


@st.composite
def wrongs(draw: st.DrawFn) -> Wrong:
    """Draw an object with two wrong fields."""
    kind = draw(st.sampled_from([kind for kind, known in OBJECTS.items() if known]))
    names = draw(st.lists(st.sampled_from([*OBJECTS[kind]]), min_size=1, max_size=2, unique=True))
    fields = {
        name: draw(st.sampled_from(UNCALLABLE if name in CALLED else VALUES)) for name in names
    }
    return Wrong(kind, fields, draw(st.sampled_from(functions(kind))), draw(st.booleans()))
