"""The exact output, weights, log-sum-exp and gradients of a call, each with its allowed error.

The definition is computed one head of one example at a time, without code of the package.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fuzz import formulas
from fuzz.beside import Beside
from fuzz.normalized import normalized
from fuzz.rounding import Number, mix, project, roundings
from fuzz.scored import scored
from fuzz.sinks import Sunk, sunk
from helpers.table_scores import RANKS

Shape = tuple[int, ...]
PROJECTIONS = "W", "W_q", "W_k", "w_q", "w_k", "w_p", "sigma"
"""Parameters that are combined with each token."""


@dataclass
class Expected:
    """An array x and the allowed error e of each entry; entries that are not `known` may be
    anything.

    size: sum of |terms| of an entry. count: number of its terms.
    """

    x: np.ndarray
    e: np.ndarray
    known: np.ndarray
    size: np.ndarray
    count: np.ndarray

    @classmethod
    def nothing(cls, shape: Shape, dtype: Any) -> Expected:
        zero = (np.zeros(shape, dtype) for _ in range(3))
        x, e, size = zero
        return cls(x, e, np.ones(shape, bool), size, np.zeros(shape))

    def add(self, at: Any, n: Number) -> None:
        self.x[at] += n.x
        self.e[at] += n.e
        self.size[at] += np.where(np.isfinite(n.x), np.abs(n.x), 0.0)
        self.count[at] += 1

    def bound(self, eps: float) -> np.ndarray:
        """Return the errors of the sums, roundings of the sums included."""
        several = np.where(self.count > 1, roundings(int(self.count.max(initial=1))), 0.0)
        return np.asarray(self.e + eps * several * self.size)


@dataclass(frozen=True)
class Problem:
    """A call in float64 or better.

    parameters: by name, numbers too. lead: leading dimensions of the output. keep: attended pairs,
    boolean (*lead, T_q, T_k). kept: weights that dropout keeps at `rate`. d_output, d_weights,
    d_lse: gradients of a loss, or None. tanh: see `Form`. softcap: c, or 0 for no cap. beside,
    tensors: sink, biases and normalizer, with their tensors. exact: True if no order of summation
    rounds a score before a bias. rounds_weights: whether the sum of values takes stored weights.
    function: the outer function of a formula, see `outers.FORMULAS`; "" for none.
    """

    kind: str
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    parameters: dict[str, Any]
    lead: Shape
    keep: np.ndarray
    eps: float
    store: float
    kept: np.ndarray | None = None
    rate: float = 0.0
    d_output: np.ndarray | None = None
    d_weights: np.ndarray | None = None
    d_lse: np.ndarray | None = None
    tanh: float = 1.0
    softcap: float = 0.0
    beside: Beside = field(default_factory=Beside)
    tensors: dict[str, np.ndarray] = field(default_factory=dict)
    exact: bool = False
    rounds_weights: bool = False
    function: str = ""

    def projects_bad_rows(self, at: dict[str, Shape]) -> bool:
        """Return whether tokens at these places, that any head attends, are not finite.

        Parameters of all heads multiply the tokens that heads share, before the mask.
        """
        shapes = {"query": self.query.shape, "key": self.key.shape}
        bad = {n: ~np.isfinite(getattr(self, n)[at[n]]).all(-1) for n in shapes}
        if not any(rows.any() for rows in bad.values()):
            return False
        used = used_rows(shapes, self.lead, self.keep)
        return any((rows & used[n][at[n]]).any() for n, rows in bad.items())


@dataclass
class Answer:
    output: Expected
    weights: Expected
    lse: Expected
    gradients: dict[str, Expected] = field(default_factory=dict)


def solve(call: Problem) -> Answer:
    """Return the answer of a call; results that depend on an attended NaN or ±∞ are not known.

    A cap turns infinite scores into numbers, but not NaN, so these results stay unknown.
    """
    dtype, rows, columns = call.query.dtype, call.query.shape[-2], call.key.shape[-2]
    answer = Answer(
        Expected.nothing((*call.lead, rows, call.value.shape[-1]), dtype),
        Expected.nothing((*call.lead, rows, columns), dtype),
        Expected.nothing((*call.lead, rows), dtype),
    )
    if call.d_output is not None:
        tensors = {"query": call.query, "key": call.key, "value": call.value}
        tensors |= {
            n: x for n, x in call.parameters.items() if isinstance(x, np.ndarray)
        } | call.tensors
        answer.gradients = {n: Expected.nothing(x.shape, dtype) for n, x in tensors.items()}
    for n in np.ndindex(*call.lead):
        _solve_one(call, n, answer)
    return answer


def place(lead: Shape, n: Shape, full: Shape) -> Shape:
    """Return the index into a tensor with dimensions `lead` for the output at n of `full`."""
    ends = zip(lead, n[len(n) - len(lead) :], full[len(full) - len(lead) :], strict=True)
    return tuple(0 if own == 1 else i // (size // own) for own, i, size in ends)


def used_rows(shapes: dict[str, Shape], lead: Shape, keep: np.ndarray) -> dict[str, np.ndarray]:
    """Return which tokens of query, key and value, of these shapes, are in an attended pair."""
    used = {name: np.zeros(shape[:-1], bool) for name, shape in shapes.items()}
    for n in np.ndindex(*lead):
        for name, shape in shapes.items():
            axis = 1 if name == "query" else 0
            used[name][place(shape[:-2], n, lead)] |= keep[n].any(axis)
    return used


def _solve_one(call: Problem, n: Shape, answer: Answer) -> None:
    at = {
        name: place(x.shape[:-2], n, call.lead)
        for name, x in (("query", call.query), ("key", call.key), ("value", call.value))
    }
    keep, arrays, bad = call.keep[n], {}, {}
    attends = {"query": keep.any(1), "key": keep.any(0), "value": keep.any(0)}
    for name, x in (("query", call.query), ("key", call.key), ("value", call.value)):
        rows = np.where(attends[name][:, None], x[at[name]], 0.0)  # no other row is read
        bad[name] = ~np.isfinite(rows).all(1)
        rows = np.where(bad[name][:, None], 0.0, rows)
        arrays[name] = Number(rows, np.zeros_like(rows), call.eps, call.store)
    q, k, v = (arrays[name] for name in ("query", "key", "value"))
    p: dict[str, Any] = {}
    ranks = RANKS | call.beside.ranks
    for name, y in (call.parameters | call.tensors).items():
        p[name] = y
        if isinstance(y, np.ndarray):
            at[name] = place(y.shape[: y.ndim - ranks[name]], n, call.lead)
            p[name] = q.like(y[at[name]])
    form = replace(formulas.form(call.kind, p, q, k), tanh=call.tanh)
    form = replace(form, apart=_apart(call, p, q, call.key[at["key"]]))
    scores = scored(call.kind, p, q, k, form, call.beside, call.softcap, call.exact, call.function)
    normal = normalized(call.beside.normalizer, scores.s, keep)
    weights, lse = normal.p, normal.lse
    z = np.ones_like(weights.x) if call.kept is None else call.kept[n] / (1 - call.rate)
    summed = weights.stored() if call.rounds_weights else weights
    output, sink = mix(summed * z, v).stored(), _sunk(call, p, lse)
    spoilt = attends["query"] & (bad["query"] | (keep & (bad["key"] | bad["value"])).any(1))
    share = 1.0 if sink is None else sink.share[:, None]
    answer.output.add(n, output if sink is None else (output * share).stored())
    answer.weights.add(n, (weights if sink is None else weights * share).stored())
    if lse is not None:
        answer.lse.add(n, lse.worse(lse.eps * _size(lse)) if sink is None else sink.lse)
    for one in (answer.output, answer.weights, answer.lse):
        one.known[n][spoilt] = False
    if call.d_output is None:
        return
    d_output, none = q.like(call.d_output[n]), np.zeros(len(keep))
    d_lse, d_sink = none if call.d_lse is None else call.d_lse[n], None
    d_row = q.like(np.where(attends["query"], d_lse, 0.0))  # of the keys' log-sum-exp
    if sink is not None:
        d_row, d_sink = sink.back((d_output * output).features(), d_lse)
        d_output = (d_output * share).stored()
    d_p = project(d_output, v.T) * z
    size = mix(q.like(np.abs(weights.x) * z), q.like(np.abs(v.x))).x
    sizes = q.like(output.x, call.eps * roundings(keep.shape[1]) * size).stored()
    along_e = (d_output * sizes).features().e  # the sum may be Σ d_output · output
    found = scores.back(*normal.back(d_p, along_e, d_row))
    found["sink="] = d_sink and d_sink.tokens(0)
    found["value"] = mix((weights * z).T, d_output)
    if call.d_weights is not None:  # may be computed apart and added
        d_p, d_row = q.like(call.d_weights[n]), q.like(none)
        if sink is not None:
            d_row, d_sink = sink.back((d_p * weights).tokens(1), none)
            d_p = d_p * share
        more = scores.back(*normal.back(d_p, none, d_row))
        more["sink="] = d_sink and d_sink.tokens(0)
        found |= {
            name: found[name].stored() + x.stored() for name, x in more.items() if x is not None
        }
    read = call.projects_bad_rows(at)
    reached = (keep & spoilt[:, None]).any(0)
    unknown = {"query": spoilt, "key": reached, "value": reached}
    for name, expected in answer.gradients.items():
        expected.add(at[name], found[name].stored())
        if spoilt.any():
            rows = unknown.get(name)
            expected.known[at[name]] &= False if rows is None else ~rows[:, None]
        elif read and name in PROJECTIONS:
            expected.known[at[name]] = False


def _size(lse: Number) -> np.ndarray:
    return np.where(np.isfinite(lse.x), np.abs(lse.x), 0.0)


def _sunk(call: Problem, p: dict[str, Any], lse: Number | None) -> Sunk | None:
    """Return the shares of keys and sink; a sink that is a number has the call's precision."""
    if call.beside.sink is None or lse is None:
        return None
    sink = p.get("sink=", call.beside.sink)
    return sunk(lse, sink if isinstance(sink, Number) else lse.like(sink, call.eps * abs(sink)))


def _apart(call: Problem, p: dict[str, Any], q: Number, key: np.ndarray) -> bool:
    """Return whether some b, masked tokens included, are more than 1 from the middle."""
    given = q.like(np.where(np.isfinite(key), key, 0.0))
    b = formulas.form(call.kind, p, q, given).b.x
    return bool(b.size) and bool((np.ptp(b, axis=0) > 2).any())


def philox_kept(seed: int, rate: float, lead: Shape, queries: int, keys: int) -> np.ndarray:
    """Return which weights dropout keeps at `rate`, boolean (*lead, queries, keys).

    A weight is kept if word j mod 4 of Philox4x32-10 (Salmon et al. 2011) is at least rate · 2³².
    The counter is (⌊j/4⌋, i, n) and the key is `seed`; n and `seed` have two words each.
    """
    mask, heads = 2**32 - 1, int(np.prod(lead, dtype=int))
    n, i, j = np.meshgrid(*(np.arange(s, dtype=np.uint64) for s in (heads, queries, -(-keys // 4))),
                          indexing="ij")  # fmt: skip
    c = [j, i, n & np.uint64(mask), n >> np.uint64(32)]
    k = [seed & mask, seed >> 32 & mask]
    for _ in range(10):
        one, two = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        high, low = np.uint64(32), np.uint64(mask)
        c = [
            (two >> high) ^ c[1] ^ np.uint64(k[0]), two & low,
            (one >> high) ^ c[3] ^ np.uint64(k[1]), one & low,
        ]  # fmt: skip
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    words = np.stack(c, -1).reshape(heads, queries, 4 * -(-keys // 4))[..., :keys]
    return np.asarray(words >= np.ceil(rate * 2.0**32)).reshape(*lead, queries, keys)
