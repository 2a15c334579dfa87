"""A new pair takes a few lines in the core: the histogram intersection min(a, b).

    s(q, k) = scale · Σ_d w_d min(a_d, b_d)

Source: Swain and Ballard 1991, Color indexing.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core import literal
from core.call import Call
from core.cpp import CSRC, build, library
from core.draw import draw
from helpers.budget import BAND, EPS, assert_near, error, size

PAIR = """
struct Smaller {
    template <class V> static ANYSCORE_INLINE V value(V a, V b) { return min(a, b); }
    template <class V> static ANYSCORE_INLINE void gradient(V a, V b, V& value, V& da, V& db) {
        V one = constant<V>(1), zero = constant<V>(0);
        value = min(a, b);
        da = a < b ? one : zero, db = one - da;
    }
};
"""

AROUND_IT = """
#define ANYSCORE_ISA baseline
#include "attention/gradients.h"
#include "scorers/plain.h"

namespace anyscore::baseline {
%s
using Scorer = Plain<Smaller, float>;
}

using namespace anyscore;

// One problem, all arrays dense and float32.
extern "C" void run(Size queries, Size keys, Size width, Size value_width, const float* a,
                    const float* b, const float* weight, const float* value, double scale,
                    const float* d_output, float* output, float* stats, float* d_a, float* d_b,
                    float* d_weight, float* d_value, int threads) {
    static const Size zero[] = {0}, first[] = {0, 1};
    static const bool alone[] = {true};
    Call call;
    call.problems = call.key_sets = 1, call.key_set = call.first_problem = zero;
    call.queries = queries, call.keys = keys, call.width = width, call.value_width = value_width;
    call.a = {a, Type::F32, zero, width}, call.b = {b, Type::F32, zero, width};
    call.weight = {weight, Type::F32, zero, width}, call.scale = scale;
    call.value = {value, Type::F32, zero, value_width};
    Forward made;
    made.output = output, made.stats = stats;
    baseline::forward<baseline::Scorer, float>(call, made, threads);
    Backward back;
    back.stats = stats, back.output = {output, Type::F32, zero, value_width};
    back.d_output = {d_output, Type::F32, zero, value_width};
    back.d_a = {d_a, zero, alone}, back.d_b = {d_b, zero, alone};
    back.d_weight = {d_weight, zero, alone}, back.d_value = {d_value, zero, alone};
    back.of_a = back.of_weight = back.tasks = {1, first, zero};
    baseline::backward<baseline::Scorer, float>(call, back, threads);
}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the core with this pair as a library."""
    sources = (str(CSRC / name) for name in ("runtime/memory.cpp", "runtime/parallel.cpp"))
    return library(tmp_path_factory.mktemp("pair"), AROUND_IT % PAIR, "-O1", *sources)


def run(library: Any, call: Call, threads: int) -> literal.Results:
    def pointer(x: np.ndarray) -> Any:
        return x.ctypes.data_as(ctypes.POINTER(ctypes.c_float))

    arrays = {
        name: np.ascontiguousarray(getattr(call, name)) for name in ("a", "b", "weight", "value")
    }
    found = {"output": np.full(call.d_output.shape, np.nan, np.float32)}
    found["stats"] = np.full((2, call.queries), np.nan, np.float32)
    found |= {f"d_{name}": np.full_like(x, np.nan) for name, x in arrays.items()}
    d_output = np.ascontiguousarray(call.d_output)
    sizes = call.queries, call.keys, call.a.shape[-1], call.value.shape[-1]
    library.run(
        *map(ctypes.c_int64, sizes), *map(pointer, arrays.values()), ctypes.c_double(call.scale),
        pointer(d_output), *map(pointer, found.values()), threads,
    )  # fmt: skip
    return found


@pytest.mark.parametrize("queries", [1, 70])
def test_min(compiled: Any, monkeypatch: pytest.MonkeyPatch, queries: int) -> None:
    monkeypatch.setitem(literal.VALUE, "min", np.minimum)
    monkeypatch.setitem(literal.SLOPES, "min", lambda a, b: (1.0 * (a < b), 1.0 * (a >= b)))
    rng = np.random.default_rng(queries)
    weight = rng.standard_normal(33).astype(np.float32)
    given = {"keys": 130, "hidden": 33, "width": 9, "weight": weight, "lead": (), "key_bias": None}
    given |= {
        "d_lse": None,
        "d_scores": None,
        "dropout": 0.0,
        "outer": "",
        "bias": None,
        "queries": queries,
    }
    call = draw(rng, "min", "none", "float32", **given)
    exact, plain = literal.run(call, np.float64), literal.run(call, np.float32)
    for name, x in run(compiled, call, threads=2).items():
        allowance = 2 * error(plain[name], exact[name]) + 2 * BAND * EPS["float32"] * size(
            exact[name]
        )
        assert_near(x, exact[name], allowance, name)


WRONG = """
#define ANYSCORE_ISA baseline
#include "scorers/plain.h"

using namespace anyscore::baseline;
struct Scorer : Plain<Product, float> {
    using Plain<Product, float>::Plain;
    %s
};
static_assert(check_scorer<Scorer, float>());
"""


@pytest.mark.parametrize("member", ["begin", "decode_scores", "FACTOR"])
def test_a_scorer_of_another_interface_is_refused(tmp_path: Path, member: str) -> None:
    """The compiler names the member of a scorer that differs from scorer.h."""
    wrong = "static constexpr double FACTOR = 1;" if member == "FACTOR" else f"void {member}(int);"
    build(tmp_path / "right.o", WRONG % "", "-fsyntax-only")
    with pytest.raises(AssertionError, match=rf"(?s)static assertion failed.*S::{member}"):
        build(tmp_path / "wrong.o", WRONG % wrong, "-fsyntax-only")
