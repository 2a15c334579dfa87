"""Many calls that differ, and what they leave behind: bytes, and objects of the caller."""

from __future__ import annotations

import gc
import os
import tracemalloc
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import anyscore
from anyscore.backends.repeated import MAX_CALLS, MAX_KINDS, REPEATED
from anyscore.ops import checks, load
from anyscore.score import Factors, Outer, Projection
from anyscore.score import checks as score_checks

LEAK = 256
"""The most bytes that a call may leave behind: a quarter of a leak of 1 KiB."""
MOST_CHECKED = 1000
"""The most calls whose checks are remembered."""
Make = Callable[[np.ndarray], Any]
"""NumPy array → tensor of the framework."""
Watched = list[Any]
"""Objects of the caller, which must die with the last reference of the caller."""
Entry = Callable[["Drawn"], Watched]
"""Call → its objects."""


@dataclass(frozen=True)
class Drawn:
    """The sizes and numbers of the call i, and its framework.

    many: True for others in each call, of 267,561 combinations of sizes; False for three, as each
    is another program in JAX.
    """

    i: int
    make: Make
    many: bool = True

    @property
    def number(self) -> int:
        return self.i if self.many else self.i % 3

    def array(self, *shape: int) -> Any:
        return self.make(np.full(shape, 0.1, np.float32))

    def tokens(self) -> list[Any]:
        """Return query, key and value (2, tokens, width)."""
        n = self.number
        width = 1 + n % 31
        return [self.array(2, 1 + n % tokens, width) for tokens in (89, 97, 97)]


def _plain(of: Drawn) -> Watched:
    q, k, v = of.tokens()
    sigma = of.make(np.array(1.0 + of.i, np.float32))
    score = anyscore.Gaussian(sigma)
    anyscore.attention(q, k, v, score=score, return_weights=of.i % 2 == 0)
    return [q, k, v, sigma, score]


def _numbers(of: Drawn) -> Watched:
    q, k, v = of.tokens()
    score, mask = anyscore.ScaledDot(1.0 + of.number), anyscore.Window(of.number, 1, "end")
    for _ in range(3):  # the second call of a kind is kept
        anyscore.attention(q, k, v, score=score, mask=mask, softcap=1.0 + of.number)
    return [q, k, v, score, mask]


def _callables(of: Drawn) -> Watched:
    q, k, v = of.tokens()
    shift = of.make(np.array(of.i, np.float32))
    xp = load(checks.find_framework(q=q))

    def score(query: Any, key: Any) -> Any:
        return xp.matmul(query, xp.transpose(key)) + shift

    anyscore.attention(q, k, v, score=score)
    anyscore.scores(q, k, score=score)
    anyscore.plan(q, k, v, score=score)
    return [q, k, v, shift, score]


def _scores(of: Drawn) -> Watched:
    q, k = of.tokens()[:2]
    width = int(q.shape[-1])
    w = of.array(width)
    score, lengths = anyscore.Additive(None, None, w), of.make(np.array([1 + of.i % 5, 2]))
    anyscore.scores(q, k, score=score, valid_lens=lengths)
    anyscore.log_sum_exp(q, k, score=score, valid_lens=lengths, softcap=1.0 + of.number)
    anyscore.log_weights(q, k, score=score, valid_lens=lengths)
    return [q, k, w, score, lengths]


def _masks(of: Drawn) -> Watched:
    q, k, v = of.tokens()
    queries, keys = q.shape[-2], k.shape[-2]
    keep = of.make(np.ones((2, int(keys)), bool))
    matrix = of.make(np.ones((int(queries), int(keys)), bool))
    mask = anyscore.Keys(keep) & matrix & anyscore.Causal(offset=of.i)
    bias = anyscore.ALiBi(of.array(), offset=of.i % 1000)
    anyscore.attention(q, k, v, mask=mask, bias=bias, sink=float(of.i))
    anyscore.attention(q, k, v, mask=mask, normalizer=anyscore.Sigmoid(float(of.number)))
    return [q, k, v, keep, matrix, mask, bias]


def _kept_keys(of: Drawn) -> Watched:
    q, k, v = of.tokens()
    prepared = anyscore.prepare_keys(k, valid_lens=of.i)
    anyscore.attention(q, prepared, v)
    return [q, k, v, prepared]


def _caches(of: Drawn) -> Watched:
    k, v = of.tokens()[1:]
    score = anyscore.Laplace(1.0 + of.number)
    cache = anyscore.make_cache(k, v, score, capacity=200 + of.number % 7)
    for _ in range(2):
        cache = cache.append(k[:, :1], v[:, :1], score=score)
        cache.attend(k[:, :1], score=score)
    cache = cache.reorder([1, 0])
    return [k, v, score, cache]


def _projections(of: Drawn) -> Watched:
    q, k, v = of.tokens()
    width = int(q.shape[-1])
    weight = of.array(width)

    def call(x: Any) -> Any:
        return x * weight

    one = Projection(call, (width, width), "float32", (weight,))
    score = anyscore.Additive(one, one, weight)
    anyscore.attention(q, k, v, score=score)
    return [q, k, v, weight, call, score]


def _edges(of: Drawn) -> Watched:
    x = of.tokens()[1]
    nodes = int(x.shape[-2])
    index = of.make(np.array([np.arange(nodes), np.arange(nodes)[::-1]]))
    edges = anyscore.Edges.from_index(index, nodes)
    anyscore.attention(x, x, x, mask=edges)
    return [x, index, edges]


def _sequences(of: Drawn) -> Watched:
    x = of.tokens()[1]
    tokens = int(x.shape[-2])
    offsets = of.make(np.array([0, of.i % (tokens + 1), tokens]))
    mask = anyscore.Sequences(offsets)
    anyscore.attention(x, x, x, mask=mask)
    return [x, offsets, mask]


def _formulas(of: Drawn) -> Watched:
    i = of.i
    pair = anyscore.Pair.from_formula("one of many", "tanh(a * b)")
    outer = Outer.from_formula("one of many", "x * 2")
    for text in (f"a * nothing{i}", f"log(a * {i})"):
        try:
            anyscore.Pair.from_formula(f"name {i}", text)
        except ValueError:
            pass
        else:
            raise AssertionError(text)
    assert pair.is_formula
    assert outer.label == "one of many"
    return []


class _Custom(anyscore.Score):
    """A score of a user, with fields of any kind."""

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)

    def lower(self, xp: Any, query: Any, key: Any) -> Factors:
        return anyscore.Dot().lower(xp, query, key)


def _own_scores(of: Drawn) -> Watched:
    q, k, v = of.tokens()

    def function() -> Drawn:
        return of

    score = _Custom(text=f"{of.i}" * 1000, number=10 ** (of.i % 4000), function=function)
    other = _Custom(text=f"{of.i}" * 1000, number=10 ** (of.i % 4000))
    for one in (score, other):
        anyscore.attention(q, k, v, score=one)
    return [q, k, v, score, other, function]


def _wrong(of: Drawn) -> Watched:
    q, k, v = of.tokens()
    score = anyscore.Gaussian(-1.0 - of.i)
    for given in ({"score": score}, {"mask": object()}, {"valid_lens": [of.i] * 99}):
        try:
            anyscore.attention(q, k, v, **given)
        except (TypeError, ValueError):
            pass
        else:
            raise AssertionError(given)
    return [q, k, v, score]


ENTRIES: dict[str, Entry] = {
    "plain": _plain, "numbers": _numbers, "callables": _callables, "scores": _scores,
    "masks": _masks, "kept keys": _kept_keys, "caches": _caches, "projections": _projections,
    "edges": _edges, "sequences": _sequences, "formulas": _formulas, "own scores": _own_scores,
    "wrong": _wrong,
}  # fmt: skip
"""Entry points of every framework, each with objects that differ from call to call."""


def run(entries: dict[str, Entry], calls: Iterable[Drawn], watch: bool = False) -> None:
    """Make the calls by each entry; watch: whether to check that their objects die."""
    kept: list[tuple[str, weakref.ref[Any]]] = []
    for of in calls:
        for name, entry in entries.items():
            objects = entry(of)
            if watch:
                kept += [(f"{name}: {type(x).__name__}", weakref.ref(x)) for x in objects]
            del objects
    gc.collect()
    alive = sorted({name for name, x in kept if x() is not None})
    assert not alive, f"{', '.join(alive)} live on after their calls"


def check_bounds() -> None:
    """Check that caches of calls are within their bounds."""
    for passed in (checks._passed, score_checks._passed):
        assert len(passed) <= MOST_CHECKED
    for repeats in REPEATED.values():
        assert len(repeats.known) <= MAX_KINDS
        assert len(repeats.seen) <= MAX_KINDS
        assert len(repeats.appends) <= MAX_KINDS
        assert all(len(x) <= MAX_CALLS for x in repeats.known.values())


def forget() -> None:
    """Empty the caches of calls, whose fill varies within their bounds."""
    checks._passed.clear()
    score_checks._passed.clear()
    for repeats in REPEATED.values():
        repeats.forget()
    gc.collect()


def traced_growth(entries: dict[str, Entry], calls: Sequence[Drawn]) -> float:
    """Return the bytes that Python keeps for each call of an entry; the first half warms up."""
    half = len(calls) // 2
    tracemalloc.start()
    try:
        run(entries, calls[:half])
        forget()
        before = tracemalloc.get_traced_memory()[0]
        run(entries, calls[half:])
        check_bounds()
        forget()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    return grown / ((len(calls) - half) * len(entries))


def resident_growth(entries: dict[str, Entry], calls: Sequence[Drawn]) -> float:
    """Return the bytes that the process keeps for each call of an entry, likewise."""
    half = len(calls) // 2
    run(entries, calls[:half])
    before = _resident()
    run(entries, calls[half:])
    check_bounds()
    return (_resident() - before) / ((len(calls) - half) * len(entries))


def _resident() -> int:
    """Return the bytes of this process in memory, on Linux."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
