"""Functions of single numbers are exact in each instruction set, compiled like the kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from core.cpp import CSRC, library
from core.raw import runnable

CODE = """
#define ANYSCORE_ISA here
#include "scorers/outer.h"

#define OF_TYPE(function, T, type) \\
    extern "C" void function##_##type(const T* x, T* y, long n) { \\
        for (long i = 0; i < n; i++) y[i] = anyscore::here::function(x[i]); \\
    }
#define OF(function) OF_TYPE(function, float, float32) OF_TYPE(function, double, float64)
OF(tanh_of)
OF(arcosh_of_one_and)

template <class T> void run(anyscore::Outer outer, const T* x, T* y, long n) {
    for (long i = 0; i < n; i++) y[i] = x[i];
    anyscore::here::apply(outer, T(1), y, int(n));
}
#define OF_OUTER(name, kind) \\
    extern "C" void name##_float32(const float* x, float* y, long n) { \\
        run(anyscore::Outer::kind, x, y, n); \\
    } \\
    extern "C" void name##_float64(const double* x, double* y, long n) { \\
        run(anyscore::Outer::kind, x, y, n); \\
    }
OF_OUTER(sqrt, SQRT)
OF_OUTER(log1p, LOG1P)
OF_OUTER(arcosh, ARCOSH)
"""

FLAGS = (
    "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-ffinite-math-only",
    "-ffp-contract=fast",
)  # fmt: skip
SETS: dict[str, tuple[str, ...]] = {
    "baseline": (),
    "avx2": ("-march=x86-64-v3",),
    "avx512": ("-march=x86-64-v4", "-mprefer-vector-width=512"),
}
WIDER = {"float32": np.float64, "float64": np.longdouble}
EXACT: dict[str, Callable[[Any], Any]] = {
    "tanh_of": np.tanh,
    "arcosh_of_one_and": lambda x: 2 * np.arcsinh(np.sqrt(x / 2)),
}
ULP = {"tanh_of": 4, "arcosh_of_one_and": 5}


@pytest.fixture(scope="module", params=SETS)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function from (name, array) to the array of results."""
    if request.param not in runnable():
        pytest.skip(f"no {request.param} here")
    flags = "-O3", *FLAGS, *SETS[request.param]
    functions = library(tmp_path_factory.mktemp("numbers"), CODE, *flags)

    def call(name: str, x: np.ndarray) -> np.ndarray:
        y = np.full_like(x, 7)
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in (x, y))
        getattr(functions, f"{name}_{x.dtype}")(*pointers, ctypes.c_long(x.size))
        return y

    return call


def numbers(dtype: str) -> np.ndarray:
    """Draw numbers of every magnitude of the dtype, many where functions curve or forms meet."""
    rng = np.random.default_rng(0)
    info = np.finfo(dtype)
    exponents = rng.uniform(np.log2(info.smallest_subnormal), np.log2(info.max), 20_000)
    parts = (
        np.exp2(exponents.astype(np.longdouble)),
        rng.uniform(0, 25, 50_000),
        rng.uniform(0, 1, 50_000),
    )
    return np.concatenate([part.astype(dtype) for part in parts])


def test_the_flags_are_the_kernels() -> None:
    told = (CSRC.parent / "CMakeLists.txt").read_text(encoding="utf-8")
    for flag in (*FLAGS, *sum(SETS.values(), ())):
        assert flag in told, flag


@pytest.mark.parametrize("dtype", WIDER)
@pytest.mark.parametrize("name", EXACT)
def test_a_few_ulp_at_any_magnitude(compiled: Any, name: str, dtype: str) -> None:
    x = numbers(dtype)
    x = np.concatenate([x, -x]) if name == "tanh_of" else x
    exact = EXACT[name](x.astype(WIDER[dtype]))
    ulp = np.spacing(np.abs(exact.astype(dtype))).astype(WIDER[dtype])
    assert np.max(np.abs(compiled(name, x) - exact) / ulp) <= ULP[name]


@pytest.mark.parametrize("dtype", WIDER)
@pytest.mark.parametrize("name", EXACT)
def test_what_is_not_finite_and_zeros(compiled: Any, name: str, dtype: str) -> None:
    x = np.array([np.inf, 0.0, np.nan, -np.nan] * 11, dtype)  # more than a register
    x = x[np.isfinite(x) | (name == "tanh_of")]
    if name == "tanh_of":
        x = np.concatenate([x, -x])
    y = compiled(name, x)
    expected = EXACT[name](x)
    np.testing.assert_array_equal(y, expected)
    there = ~np.isnan(x)
    np.testing.assert_array_equal(np.signbit(y)[there], np.signbit(expected)[there])


@pytest.mark.parametrize("dtype", WIDER)
@pytest.mark.parametrize("name", ["sqrt", "log1p", "arcosh"])
def test_outer_functions_of_distances(compiled: Any, name: str, dtype: str) -> None:
    """Outer functions take negative numbers as 0, and keep ∞ and NaN in any lane."""
    x = np.array([np.inf, -np.inf, 3, -3, 0.0, -0.0, np.nan, -np.nan, -1e-40, 7] * 11, dtype)
    with np.errstate(all="ignore"):
        positive = np.where(x < 0, 0, x)
    exact = {"sqrt": np.sqrt, "log1p": np.log1p, "arcosh": EXACT["arcosh_of_one_and"]}[name]
    np.testing.assert_allclose(compiled(name, x), -exact(positive), rtol=4 * np.finfo(dtype).eps)
