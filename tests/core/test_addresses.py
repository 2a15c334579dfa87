"""Elements at odd addresses, and rows without elements, are read as other arrays are.

The results show that odd addresses are copied; that nothing else is read, only sanitizers show.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from anyscore import Additive, attention, make_cache, prepare_keys, scores
from anyscore.call.operands import Operands, Settings
from anyscore.kernels import cpu
from core.call import DTYPES, PAIRS, Call
from core.draw import MASKS, draw
from core.raw import check, core, nan, prepare, run, same

pytestmark = pytest.mark.sanitize

assert core, "these tests are skipped with all others where the core is not built"


def odd(x: np.ndarray) -> np.ndarray:
    """Return the same numbers in the same layout, one byte after a multiple of their size."""
    if not x.size:
        return x
    reach = [(n - 1) * step for n, step in zip(x.shape, x.strides, strict=True)]
    low, high = sum(n for n in reach if n < 0), sum(n for n in reach if n > 0) + x.itemsize
    memory = np.zeros(high - low + 2 * x.itemsize, np.uint8)
    shift = 1 + -memory.ctypes.data % x.itemsize
    ctypes.memmove(memory.ctypes.data + shift, x.ctypes.data + low, high - low)
    found: np.ndarray = np.ndarray(x.shape, x.dtype, memory, shift - low, x.strides)
    assert x.itemsize == 1 or not found.flags.aligned
    return found


class Lent:
    """An array of another framework, which lends it by DLPack alone."""

    def __init__(self, x: np.ndarray) -> None:
        self.x, self.shape, self.dtype, self.ndim = x, x.shape, x.dtype, x.ndim

    def __dlpack__(self, **options: Any) -> Any:
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()


def moved(call: Call, to: Callable[[np.ndarray], Any]) -> Call:
    """Return the call with other arrays."""
    xs = {field.name: getattr(call, field.name) for field in fields(call)}
    return replace(call, **{n: to(x) for n, x in xs.items() if isinstance(x, np.ndarray)})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pair", PAIRS)
def test_all_operands_at_odd_addresses(pair: str, dtype: str) -> None:
    """Every result has the same bits; layouts, masks, biases and heads are drawn."""
    rng = np.random.default_rng(PAIRS.index(pair))
    for mask in MASKS[::2]:
        call = draw(rng, pair, mask, dtype)
        assert same(run(call), run(moved(call, odd))), call


def test_integers_at_odd_addresses() -> None:
    rng = np.random.default_rng(0)
    call = draw(rng, "product", "window", "float32", lead=(2, 3), queries=5, keys=9)
    assert call.start is not None
    assert call.stop is not None
    for dtype in (np.int32, np.int64):
        bounds = {"start": call.start.astype(dtype), "stop": call.stop.astype(dtype)}
        at_odd = {name: odd(x) for name, x in bounds.items()}
        assert same(run(replace(call, **bounds)), run(replace(call, **at_odd)))


@pytest.mark.parametrize("way", ["NumPy", "DLPack"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_prepared_keys_at_odd_addresses(dtype: str, way: str) -> None:
    """Keys to pack, packed keys and rows appended to them may be anywhere; results may not."""
    rng = np.random.default_rng(0)
    call = draw(rng, "tanh", "none", dtype, lead=(2,), queries=1, keys=70, hidden=13, outer="")

    def lend(x: np.ndarray) -> Any:
        return Lent(odd(x)) if way == "DLPack" else odd(x)

    packed = prepare(call)
    assert np.array_equal(packed, prepare(replace(call, b=lend(call.b))))
    results = []
    for arrays in (call.operands(packed), moved(call, lend).operands(lend(packed))):
        to = nan((*call.lead, 1, call.value.shape[-1]), dtype), nan((2, 2, 1), call.compute)
        core.forward(arrays, call.pair, call.numbers, (*to, None), 1)
        results.append(to)
    assert all(map(np.array_equal, *results))
    assert np.isfinite(results[0][1]).all()
    grown = nan(packed.shape, call.compute)
    core.append_keys("tanh", lend(call.b), grown, 0, 60, 1)
    core.append_keys("tanh", lend(call.b), grown, 60, 10, 1)
    assert np.isfinite(grown).all()
    for work in (
        lambda x: core.prepare_keys("tanh", call.b, x, 1),
        lambda x: core.append_keys("tanh", call.b, x, 0, 70, 1),
    ):
        with pytest.raises(TypeError):
            work(odd(packed))


def test_edges_at_odd_addresses() -> None:
    rng = np.random.default_rng(0)
    a, b, value, c = (rng.standard_normal((n, 3)).astype(np.float32) for n in (2, 3, 3, 4))
    rowptr, col, colptr, order, row = map(
        np.array, ([0, 3, 4], [0, 1, 2, 1], [0, 1, 3, 4], [0, 1, 3, 2], [0, 0, 0, 1])
    )
    numbers, results = Settings("tanh", 1.0, 1, 0.0, 1, ()).numbers, []
    for to in (lambda x: x, odd):
        x = Operands(
            *map(to, (a, b)), value=to(value), c=to(c), rowptr=to(rowptr), col=to(col),
            colptr=to(colptr), order=to(order), row=to(row),
        )  # fmt: skip
        output, stats = nan((2, 3), "float32"), nan((2, 2), "float32")
        core.forward(x, "tanh", numbers, (output, stats, None), 1)
        made = {name: nan(getattr(x, name).shape, "float32") for name in ("a", "b", "value", "c")}
        core.backward(
            x, "tanh", numbers, (to(output), to(stats), None), (to(output), to(stats), None),
            Operands(**({"a": None, "b": None} | made))[:7], 1,
        )  # fmt: skip
        results.append([output, stats, *made.values()])
    assert all(map(np.array_equal, *results))
    assert all(np.isfinite(x).all() for x in results[0])


def test_scores_energies_and_numbers_at_odd_addresses() -> None:
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        s, d = rng.standard_normal((2, 3, 7)).astype(dtype)
        key, feature, stacked, vector = (
            rng.standard_normal(shape).astype(dtype)
            for shape in ((2, 5, 4), (2, 5, 3), (2, 3, 4), (4,))
        )
        spans, upstream = np.array([[0, 5], [1, 3]]), rng.standard_normal((2, 5)).astype(dtype)
        results = []
        for to in (lambda x: x, odd):
            w, ds, e = np.zeros_like(s), np.zeros_like(s), np.zeros((2, 5), dtype)
            cpu.sparse(1, to(s), w, 1)
            cpu.sparse_backward(1, to(w), to(d), ds, 1)
            x = tuple(map(to, (key, feature, stacked, vector, spans)))
            cpu.energies(x, e, 1)
            made = tuple(map(np.zeros_like, (key, feature, stacked, stacked[:, 0])))
            cpu.energies_backward(x, to(upstream), made, 1)
            results.append([w, ds, e, *made])
        assert all(map(np.array_equal, *results))
        assert cpu.is_finite(odd(s))
        s[1, 2] = np.inf
        assert not cpu.is_finite(odd(s))


def made() -> tuple[list[Any], Settings]:
    """Return the ten operands of a repeated call, and its settings."""
    rng = np.random.default_rng(0)
    shapes = (2, 5, 3), (2, 7, 3), (3,), (2, 7), (2, 7, 6)
    xs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    return [*xs, None, None, np.full((2, 1), 4), None, None], Settings("tanh", 1.0, 1, 0.0, 1, (2,))


def repeated(xs: list[Any], s: Settings) -> Any:
    x = Operands(*xs[:5], packed=xs[5], start=xs[6], stop=xs[7], mask=xs[8])
    return cpu.repeated_call(x, s, None, lambda like, shape: np.empty(shape, like.dtype), False)


def test_repeated_calls_leave_odd_addresses_to_others() -> None:
    """A call on other arrays runs only on aligned ones, and none is kept of odd ones."""
    xs, s = made()
    call = repeated(xs, s)
    output, stats, _ = call.forward(tuple(xs), 1)
    assert np.array_equal(output, call.infer(tuple(xs), 1))
    for i, x in enumerate(xs):
        if x is None:
            continue
        other = [*xs[:i], odd(x), *xs[i + 1 :]]
        assert call.infer(tuple(other), 1) is None
        assert call.forward(tuple(other), 1) is None
        assert call.backward(tuple(other), output, stats, output, 1) is None
        with pytest.raises(ValueError, match="have to be copied"):
            repeated(other, s)
    slopes = [
        call.backward(tuple(xs), to(output), to(stats), to(output), 1) for to in (np.copy, odd)
    ]
    assert all(map(np.array_equal, slopes[0][:5], slopes[1][:5]))


def test_repeated_appends_leave_odd_addresses_to_others() -> None:
    rows, room = np.ones((2, 1, 3), np.float32), np.zeros((2, 4, 3), np.float32)
    values, length = room.copy(), np.array(0)
    append = cpu.repeated_append("product", rows, rows, (room, values, None, length))
    for key, value in ((odd(rows), rows), (rows, odd(rows))):
        assert not append(key, value, room, values, None, length, 1)
    assert not append(rows, rows, room, odd(values), None, length, 1)
    assert not append(rows, rows, room, values, None, odd(length), 1)
    assert (length, room.any()) == (0, False)
    assert append(rows, rows, room, values, None, length, 1)


def packed_field(x: np.ndarray) -> np.ndarray:
    """Return the same numbers as a field of records of odd sizes, whose strides are odd too."""
    records = np.zeros(x.shape, np.dtype([("tag", "u1"), ("x", x.dtype)]))
    records["x"] = x
    return records["x"]


@pytest.mark.parametrize("to", [odd, packed_field])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_numpy_calls_at_odd_addresses(dtype: str, to: Callable[[np.ndarray], np.ndarray]) -> None:
    """First and repeated calls, prepared keys, caches and scores have the same bits."""
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((2, n, 4)).astype(dtype) for n in (5, 7, 7))
    w, lengths = rng.standard_normal(4).astype(dtype), np.array([3, 7])
    results: list[list[np.ndarray]] = [[], []]
    for found, put in zip(results, (np.copy, to), strict=True):
        q, k, v, score, lens = (
            *map(put, (query, key, value)),
            Additive(None, None, put(w)),
            put(lengths),
        )
        for _ in range(4):
            for normalizer in ("softmax", "sparsemax"):
                given = {"score": score, "valid_lens": lens, "normalizer": normalizer}
                found.append(attention(q, k, v, **given))
            found.append(scores(q, k, score=score))
            found.append(attention(q[:, :1], prepare_keys(k, score), v, score=score))
        cache = make_cache(k[:, :0], v[:, :0], score, capacity=7)
        for i in range(7):
            cache = cache.append(k[:, i : i + 1], v[:, i : i + 1], score=score)
            found.append(cache.attend(q[:, :1], score=score))
    assert all(map(np.array_equal, *results))


def test_results_at_odd_addresses_are_refused() -> None:
    rng = np.random.default_rng(0)
    call = draw(rng, "product", "none", "float32", lead=(2,), queries=5, keys=7, width=3)
    results = {"output": nan((2, 5, 3), "float32"), "stats": nan((2, 2, 5), "float32")}
    for name, x in results.items():
        to = *(results | {name: odd(x)}).values(), None
        with pytest.raises(ValueError, match=f"{name} must be an array on the CPU that can be wri"):
            core.forward(call.operands(), call.pair, call.numbers, to, 1)


def test_a_broadcast_array_at_an_odd_address_is_not_expanded() -> None:
    far = np.lib.stride_tricks.as_strided(odd(np.ones(4, np.float32)), (2**40, 4), (0, 4))
    with pytest.raises(ValueError, match="too large"):
        core.prepare_keys("tanh", far, np.zeros((1, 4), np.float32), 1)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("empty", ["queries", "keys", "hidden", "width", "lead"])
def test_rows_without_elements(empty: str, pair: str) -> None:
    """Nothing is read of rows of width 0, of no rows, and of a batch of none, packed or not."""
    rng = np.random.default_rng(0)
    for dtype in DTYPES:
        for mask in MASKS[:: 1 if dtype == "float32" else 4]:
            for queries in (1, 2, 66):
                sizes = {"queries": queries, "keys": 70, "hidden": 5, "width": 3, "lead": (2,)}
                sizes |= {empty: (0,) if empty == "lead" else 0}
                call = draw(rng, pair, mask, dtype, **sizes)
                for prepared in {False, pair == "tanh"}:
                    check(call, prepared=prepared)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("empty", ["no query", "no key", "no edge", "hidden", "width"])
def test_graphs_without_elements(empty: str, pair: str) -> None:
    """Graphs of no nodes or no edges, and nodes of width 0, have zero outputs and gradients."""
    rng = np.random.default_rng(0)
    queries, keys = 3 * (empty != "no query"), 4 * (empty != "no key")
    edges = 5 * (empty in ("hidden", "width"))
    hidden, width = 2 * (empty != "hidden"), 3 * (empty != "width")
    row = np.sort(rng.integers(0, queries or 1, edges))
    col = rng.integers(0, keys or 1, edges)
    order = np.argsort(col, kind="stable")
    graph = {
        "rowptr": np.searchsorted(row, np.arange(queries + 1)), "col": col, "row": row,
        "colptr": np.searchsorted(col[order], np.arange(keys + 1)), "order": order,
    }  # fmt: skip
    for dtype in ("float32", "float64", "float16"):
        sums = "float64" if dtype == "float64" else "float32"
        for lead in ((), (2,)):
            shapes = {
                "a": (queries, hidden), "b": (keys, hidden), "weight": (hidden,),
                "key_bias": (keys,), "value": (keys, width), "bias": (1, edges),
                "c": (edges, hidden),
            }  # fmt: skip
            xs = {n: rng.standard_normal((*lead, *s)).astype(dtype) for n, s in shapes.items()}
            x = Operands(**xs, **graph)
            numbers = Settings(pair, 1.0, 1, 0.0, 1, lead).numbers
            output, stats = nan((*lead, queries, width), dtype), nan((*lead, 2, queries), sums)
            core.forward(x, pair, numbers, (output, stats, None), 2)
            slopes = [nan(y.shape, sums) for y in xs.values()]
            upstream = np.ones_like(output), None, None
            core.backward(x, pair, numbers, (output, stats, None), upstream, tuple(slopes), 2)
            assert all(np.isfinite(y).all() for y in (output, *slopes))
            if not edges:
                assert not any(y.any() for y in (output, *slopes))
