"""Whole calls of `attention` as plain data, drawn by hypothesis; their numbers come from a seed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from exact import RANKS, Problem, Shape, philox_kept, place
from hypothesis import strategies as st
from mask_specs import Spec, allowed, bounds, specs

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-23, "bfloat16": 2.0**-23}
STORE = {"float64": 0.0, "float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}
KINDS = (
    "Dot", "ScaledDot", "Bilinear", "Cosine", "Trilinear",
    "Gaussian", "Laplace", "Additive", "Concat", "GATv2",
)  # fmt: skip
SCALES = {
    "ScaledDot": "scale", "Bilinear": "scale",
    "Cosine": "tau", "Gaussian": "sigma", "Laplace": "sigma",
}  # fmt: skip
LAYOUTS = ("dense", "dense", "columns", "every other", "wider", "backwards", "read-only")
DENSE = ("dense", "wider", "read-only")
SOFTCAPS = (*[0.0] * 6, 0.5, 3.0, 30.0, 1000.0)
"""From a cap that flattens nearly all scores to one that most do not feel; mostly none."""
WORK = 120_000
"""Elements of a call: pairs of a query and a key, times their widths."""


@dataclass(frozen=True)
class Call:
    """parameters: the shapes of those that are tensors, the rest as they are passed. data: how
    queries and keys are drawn, of that magnitude. fill: what stands where nobody attends; None for
    ordinary numbers. poison: a tensor of which one token, attended or not, is not finite, and what
    it is. layout: how query, key and value lie in memory. softcap: c, or 0 for no cap.
    """

    framework: str
    dtype: str
    kind: str
    parameters: dict[str, Any]
    query: Shape
    key: Shape
    value: Shape
    groups: int
    mask: list[Spec]
    valid_lens: Any
    lists: bool
    data: str
    magnitude: float
    spread: float
    fill: float | None
    poison: tuple[str, float] | None
    layout: tuple[str, str, str]
    softcap: float
    dropout: float
    seed: int
    weights: bool
    lse: bool
    derivatives: bool
    sum_of_output: bool
    prepared: bool
    numbers: int
    lead: Shape = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lead", lead_of(self.query, self.key, self.value, self.groups))

    @property
    def keep(self) -> np.ndarray:
        given = [*self.mask]
        if self.valid_lens is not None:
            given.append(Spec("Lengths", {"n": self.valid_lens}))
        return allowed(given, self.lead, self.query[-2], self.key[-2])

    def problem(self) -> Problem:
        """The call in numbers."""
        rng = np.random.default_rng(self.numbers)
        keep = self.keep
        arrays = {
            name: _tokens(rng, self.data if name != "value" else "normal", shape, sign)
            * (self.magnitude if name != "value" else 1.0)
            for name, shape, sign in (
                ("query", self.query, 1), ("key", self.key, -1), ("value", self.value, 1),
            )
        }  # fmt: skip
        parameters: dict[str, Any] = {}
        for name, given in self.parameters.items():
            parameters[name] = given
            if isinstance(given, tuple):
                x = rng.standard_normal(given) * self.spread
                if RANKS[name] == 2:
                    x = x / math.sqrt(max(given[-1], 1))
                if RANKS[name] == 0:
                    x = np.exp(rng.uniform(-1, 1, given)) * self.spread
                parameters[name] = x
        if self.poison is not None:
            which, what = self.poison
            flat = arrays[which].reshape(-1)
            if flat.size:
                flat[rng.integers(flat.size)] = what
        if self.fill is not None:
            for name, used in used_rows(self, keep).items():
                arrays[name][~used] = self.fill
        exact = np.longdouble if self.dtype == "float64" else np.float64
        arrays = {name: stored(x, self.dtype).astype(exact) for name, x in arrays.items()}
        parameters = {
            name: stored(x, self.dtype).astype(exact) if isinstance(x, np.ndarray) else x
            for name, x in parameters.items()
        }
        d_output = d_weights = d_lse = kept = None
        rows = (*self.lead, self.query[-2])
        if self.derivatives:
            d_output = rng.standard_normal((*rows, self.value[-1]))
            if self.sum_of_output:
                d_output[:] = 1.0
            d_output = stored(d_output, self.dtype).astype(exact)
            if self.weights:
                d_weights = stored(rng.standard_normal((*rows, self.key[-2])), self.dtype)
                d_weights = d_weights.astype(exact)
            if self.lse:
                wide = "float64" if self.dtype == "float64" else "float32"
                d_lse = stored(rng.standard_normal(rows), wide).astype(exact)
        if self.dropout:
            kept = philox_kept(self.seed, self.dropout, self.lead, *keep.shape[-2:])
        return Problem(
            self.kind, arrays["query"], arrays["key"], arrays["value"], parameters, self.lead,
            keep, EPS[self.dtype], STORE[self.dtype], kept, self.dropout,
            d_output, d_weights, d_lse, softcap=self.softcap,
        )  # fmt: skip


def lead_of(query: Shape, key: Shape, value: Shape, groups: int) -> Shape:
    """The leading dimensions of the output; each key head serves `groups` query heads."""
    leads = [query[:-2]]
    for shape in (key, value):
        heads = shape[-3:-2] if groups == 1 or shape[-3] == 1 else (shape[-3] * groups,)
        leads.append((*shape[:-3], *heads))
    return tuple(np.broadcast_shapes(*leads))


def used_rows(call: Call, keep: np.ndarray) -> dict[str, np.ndarray]:
    """Which tokens of query, key and value take part in anything."""
    shapes = {"query": call.query, "key": call.key, "value": call.value}
    used = {name: np.zeros(shape[:-1], bool) for name, shape in shapes.items()}
    for n in np.ndindex(*call.lead):
        for name, shape in shapes.items():
            axis = 1 if name == "query" else 0
            used[name][place(shape[:-2], n, call.lead)] |= keep[n].any(axis)
    return used


def stored(x: np.ndarray, dtype: str) -> np.ndarray:
    """The numbers that a tensor of that type holds instead."""
    if dtype == "bfloat16":
        bits = np.asarray(x, np.float32).view(np.uint32)
        upper = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        rounded = (upper & np.uint32(0xFFFF0000)).view(np.float32)
        return np.where(np.isfinite(x), rounded, x).astype(np.float64)
    with np.errstate(over="ignore"):
        return np.asarray(x).astype(dtype).astype(np.float64)


def _tokens(rng: np.random.Generator, data: str, shape: Shape, sign: int) -> np.ndarray:
    x = rng.standard_normal(shape)
    if data == "small":
        return x / math.sqrt(max(shape[-1], 1))
    if data == "opposite":
        return 0.1 * x + 50 * sign
    if data == "shifted":
        return x + 1e3
    if data == "integers":
        return rng.integers(-2, 3, shape).astype(float)
    if data == "zero rows":
        return np.where(rng.random((*shape[:-1], 1)) < 0.3, 0.0, x)
    if data == "alike" and shape[-2]:  # tokens come again, in queries and keys alike
        few = np.random.default_rng(0).standard_normal((3, shape[-1]))
        return few[rng.integers(0, 3, shape[:-1])]
    return x


# --------------------------------------------------------------------------------- strategies

TOKENS = st.sampled_from((1, 2, 3, 5, 7, 16, 17, 31, 33, 63, 64, 65, 80, 129, 0))
WIDTHS = st.sampled_from((1, 2, 3, 5, 8, 13, 16, 17, 31, 32, 33, 64, 65, 70))
WIDE = st.sampled_from((128, 257, 512, 1024, 2048, 4096))


@st.composite
def calls(draw: st.DrawFn, framework: str, gradients: bool = True) -> Call:
    some = st.integers(0, 9)
    kind = draw(st.sampled_from(KINDS))
    dtype = draw(
        st.sampled_from(("float32", "float32", "float32", "float64", "bfloat16", "float16"))
    )
    half = STORE[dtype] > 0
    lead, groups = _leads(draw)
    widths = WIDE if draw(some) == 0 and not half else WIDTHS
    d_q = d_k = draw(widths)
    d_v = draw(WIDE if draw(some) == 0 else WIDTHS | st.just(0))
    hidden = draw(widths)
    if kind in ("Additive", "Concat", "GATv2", "Bilinear"):
        d_k = draw(WIDTHS)
    parameters: dict[str, Any] = {}
    q_lead, k_lead, v_lead = (_own_lead(draw, lead, groups, at == 0) for at in range(3))
    if groups > 1 and k_lead[-1] == v_lead[-1] == 1:
        k_lead = (*k_lead[:-1], lead[-1] // groups)
    whole = lead_of((*q_lead, 1, 1), (*k_lead, 1, 1), (*v_lead, 1, 1), groups)

    def own() -> Shape:
        """Leading dimensions of a parameter: none, those of heads, all."""
        return draw(st.sampled_from(((), (), whole[-1:], whole)))

    if kind in ("Additive", "GATv2"):
        if draw(some) < 3:
            d_q, parameters["W_q"] = hidden, None
        else:
            parameters["W_q"] = (*own(), hidden, d_q)
        if draw(some) < 3:
            d_k, parameters["W_k"] = hidden, None
        else:
            parameters["W_k"] = (*(own() if groups == 1 else ()), hidden, d_k)
        parameters["w_v"] = (*own(), hidden)
    elif kind == "Concat":
        parameters["W"] = (*(own() if groups == 1 else ()), hidden, d_q + d_k)
        parameters["w_v"] = (*own(), hidden)
    elif kind == "Bilinear":
        parameters["W"] = (*own(), d_q, d_k)
    elif kind == "Trilinear":
        for name in ("w_q", "w_k", "w_p"):
            parameters[name] = (*(own() if groups == 1 or name != "w_k" else ()), d_q)
    if kind in ("Additive", "Concat"):
        parameters["bias"] = draw(st.sampled_from((None, (*own(), hidden))))
    natural = math.sqrt(max(d_q, 1)) if kind in ("Gaussian", "Laplace") else 1.0
    if kind in SCALES:
        number = round(natural * draw(st.sampled_from((1.0, 0.5, 1.7))), 3)
        choices = [number, own(), own()] + [None] * (SCALES[kind] == "scale")
        parameters[SCALES[kind]] = draw(st.sampled_from(choices))
    queries, keys = draw(TOKENS), draw(TOKENS)
    pair = hidden if kind in ("Additive", "Concat", "GATv2") else max(d_q, d_k)
    limit = WORK // 3 if dtype == "float64" else WORK
    while math.prod(whole) * queries * keys * (pair + d_v) > limit and max(queries, keys) > 1:
        queries, keys = (queries // 2, keys) if queries > keys else (queries, keys // 2)
    exotic = draw(some) < 3
    data = draw(st.sampled_from(
        ("small", "integers", "zero rows", "alike") + ("opposite", "shifted") * (not half)
    )) if exotic else "normal"  # fmt: skip
    magnitudes = (1.0, 1.0, 0.1, 3.0) if half else (1.0, 1.0, 1.0, 1e-2, 10.0, 100.0, 1e4)
    poison = None
    if draw(some) == 0:
        what = draw(st.sampled_from((math.nan, math.inf, -math.inf)))
        poison = draw(st.sampled_from(("query", "key", "value"))), what
    # NumPy itself adds what is not dense one after another.
    layouts = st.sampled_from(LAYOUTS if max(d_q, d_k, hidden) < 128 else DENSE)
    fill = draw(st.sampled_from((None, math.nan, math.inf, -math.inf, 1e4)))
    prepared = draw(some) == 0
    if prepared:  # before there is a mask
        fill = poison = None
    rate = draw(st.sampled_from((0.0, 0.0, 0.0, 0.1, 0.5, 0.9)))
    valid_lens = draw(bounds(whole, queries, keys)) if draw(some) < 2 else None
    return Call(
        framework, dtype, kind, parameters,
        (*q_lead, queries, d_q), (*k_lead, keys, d_k), (*v_lead, keys, d_v), groups,
        draw(specs(whole, queries, keys)), valid_lens, draw(st.booleans()),
        data, draw(st.sampled_from(magnitudes)),
        natural if kind in ("Gaussian", "Laplace") else draw(st.sampled_from((1.0, 0.5))),
        fill, poison,
        (draw(layouts), draw(layouts), draw(st.sampled_from(LAYOUTS))),
        draw(st.sampled_from(SOFTCAPS)), rate, draw(st.integers(0, 2**64 - 1)) if rate else 0,
        draw(st.booleans()), draw(st.booleans()), gradients and draw(st.booleans()),
        draw(st.booleans()), prepared, draw(st.integers(0, 2**16)),
    )  # fmt: skip


def _leads(draw: st.DrawFn) -> tuple[Shape, int]:
    """Leading dimensions of a call, heads last; query heads for each head of keys."""
    sizes = st.sampled_from((1, 2, 3, 2, 0) if draw(st.integers(0, 9)) == 0 else (1, 2, 3, 2))
    lead = tuple(draw(st.lists(sizes, max_size=3)))
    if len(lead) >= 2 and draw(st.booleans()):
        groups = draw(st.sampled_from((2, 3)))
        return (*lead[:-1], 2 * groups), groups
    return lead, 1


def _own_lead(draw: st.DrawFn, lead: Shape, groups: int, of_query: bool) -> Shape:
    """Those of one tensor: some of size 1, the first of them missing."""
    first = draw(st.integers(0, max(len(lead) - (2 if groups > 1 else 0), 0)))
    first = first if draw(st.integers(0, 3)) == 0 else 0
    own = [1 if draw(st.integers(0, 4)) == 0 else n for n in lead]
    if groups > 1:
        own[-1] = lead[-1] if of_query else own[-1] if own[-1] == 1 else lead[-1] // groups
    return tuple(own[first:])
