"""The tanh of single numbers, compiled as the kernels are, for each instruction set here."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from cpp import CSRC, library
from raw import core

CODE = """
#define ANYSCORE_ISA here
#include "tanh_of.h"

template <class T> void run(const T* x, T* y, long n) {
    for (long i = 0; i < n; i++) y[i] = anyscore::here::tanh_of(x[i]);
}
extern "C" void of_float32(const float* x, float* y, long n) { run(x, y, n); }
extern "C" void of_float64(const double* x, double* y, long n) { run(x, y, n); }
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
ULP = 4


@pytest.fixture(scope="module", params=SETS)
def tanh_of(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function from an array to another."""
    if request.param not in core.isas():
        pytest.skip(f"no {request.param} here")
    flags = "-O3", *FLAGS, *SETS[request.param]
    compiled = library(tmp_path_factory.mktemp("tanh"), CODE, *flags)

    def call(x: np.ndarray) -> np.ndarray:
        y = np.full_like(x, 7)
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in (x, y))
        getattr(compiled, f"of_{x.dtype}")(*pointers, ctypes.c_long(x.size))
        return y

    return call


def numbers(dtype: str) -> np.ndarray:
    """Draw numbers of every magnitude of the dtype, and many where tanh bends or its forms meet."""
    rng = np.random.default_rng(0)
    info = np.finfo(dtype)
    exponents = rng.uniform(np.log2(info.smallest_subnormal), np.log2(info.max), 20_000)
    parts = (
        np.exp2(exponents.astype(np.longdouble)),
        rng.uniform(0, 25, 50_000),
        rng.uniform(0, 1, 50_000),
    )
    x = np.concatenate([part.astype(dtype) for part in parts])
    return np.concatenate([x, -x])


def test_the_flags_are_the_kernels() -> None:
    told = (CSRC.parent / "CMakeLists.txt").read_text(encoding="utf-8")
    for flag in (*FLAGS, *sum(SETS.values(), ())):
        assert flag in told, flag


@pytest.mark.parametrize("dtype", WIDER)
def test_a_few_ulp_at_any_magnitude(tanh_of: Any, dtype: str) -> None:
    x = numbers(dtype)
    exact = np.tanh(x.astype(WIDER[dtype]))
    ulp = np.spacing(np.abs(exact.astype(dtype))).astype(WIDER[dtype])
    assert np.max(np.abs(tanh_of(x) - exact) / ulp) <= ULP


@pytest.mark.parametrize("dtype", WIDER)
def test_what_is_not_finite_and_zeros(tanh_of: Any, dtype: str) -> None:
    x = np.array([np.inf, -np.inf, 0.0, -0.0, np.nan, -np.nan] * 11, dtype)  # more than a register
    y = tanh_of(x)
    np.testing.assert_array_equal(y, np.tanh(x))
    np.testing.assert_array_equal(np.signbit(y), np.signbit(x))
