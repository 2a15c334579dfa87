"""The vector functions of pairs from formulas are exact, compiled like these pairs."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import pytest

from anyscore.kernels.own_formulas import compiler
from core.cpp import CSRC, library
from core.raw import core, runnable

NAMES = "exp", "expm1", "log", "log1p", "log1p_unit", "sqrt", "tanh", "erf", "sin", "cos"
CODE = """
#define ANYSCORE_ISA here
#include "simd/functions.h"
using namespace anyscore::here;
#define SEEN extern "C" __attribute__((visibility("default")))
#define RUN(name, T) SEEN void name##_##T(const T* x, T* y, long n) { \\
    for (long i = 0; i < n; i += LANES<T>) store<T>(y + i, name##_each(load<T>(x + i))); }
""" + "".join(f"RUN({name}, float) RUN({name}, double)\n" for name in NAMES)
EXACT: dict[str, Any] = {
    "log1p_unit": np.log1p,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
}
ULP = {"erf": 16}  # an ulp halves just below 1
TYPES = {"float": (np.float32, np.float64), "double": (np.float64, np.longdouble)}


@pytest.fixture(scope="module", params=["baseline", "avx2", "avx512"])
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    if request.param not in runnable():
        pytest.skip(f"no {request.param} here")
    flags = compiler.flags(request.param)
    return library(tmp_path_factory.mktemp("functions"), CODE, *flags)


def call(compiled: Any, name: str, kind: str, x: np.ndarray) -> np.ndarray:
    x = np.resize(x, -(-x.size // 16) * 16)
    y = np.full_like(x, 7)
    pointers = (ctypes.c_void_p(array.ctypes.data) for array in (x, y))
    getattr(compiled, f"{name}_{kind}")(*pointers, ctypes.c_long(x.size))
    return y


def numbers(name: str, dtype: Any) -> np.ndarray:
    """Draw finite numbers of every magnitude, many of them where functions curve."""
    rng, info = np.random.default_rng(0), np.finfo(dtype)
    ends = np.log2(float(info.smallest_subnormal)), np.log2(float(info.max)) - 1e-6
    of_all, below_7 = np.exp2(rng.uniform(*ends, 20_000)), rng.uniform(0, 7, 40_000)
    quarters = np.arange(5000) * (np.pi / 2)  # sin or cos is near 0
    parts = (
        of_all,
        quarters,
        rng.uniform(0, 8192, 20_000),
        below_7,
        below_7 / 7,
        1 + rng.normal(size=20_000) / 100,
        [0.0],
    )
    x = np.concatenate(parts)
    if name == "log1p_unit":
        x = x[x <= 1]
    elif name not in ("log", "sqrt"):
        x = np.concatenate([x, -x])
    return np.asarray(x[x > -1] if name == "log1p" else x, dtype)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", NAMES)
def test_a_few_ulp_at_any_magnitude(compiled: Any, name: str, kind: str) -> None:
    dtype, wider = TYPES[kind]
    x = numbers(name, dtype)
    x = np.resize(x, -(-x.size // 16) * 16)
    with np.errstate(all="ignore"):
        exact = EXACT.get(name, getattr(np, name, None))(x.astype(wider))
        found = call(compiled, name, kind, x).astype(wider)
        rounded = exact.astype(dtype)
        least = np.finfo(dtype).tiny if name in ("exp", "erf") else 0  # smaller results are 0
        ulp = np.spacing(np.maximum(np.abs(rounded), least)).astype(wider)
        error = np.where(found == exact, 0, np.abs(found - exact) / ulp)
        overflowing = np.abs(rounded) > float(np.finfo(dtype).max) / 8  # e^x may be ∞ already
        close = error <= ULP.get(name, 4)
        if name in ("exp", "expm1"):
            close |= overflowing & ((found > exact / 2) | np.isinf(found))
            close |= np.abs(found - exact) <= 2 * np.finfo(dtype).tiny
    assert close.all(), (x[~close][:5], found[~close][:5], exact[~close][:5])


def test_ends(compiled: Any) -> None:
    """Functions give ±∞ and NaN at finite numbers as NumPy does."""
    for kind, (dtype, _) in TYPES.items():
        ends = np.array([-1.0, 0.0, 1.0, -1e30, 1e30], dtype)
        with np.errstate(all="ignore"):
            for name in ("exp", "expm1", "log", "log1p", "tanh", "erf"):
                exact = np.asarray(EXACT.get(name, getattr(np, name, None))(ends), dtype)
                found = call(compiled, name, kind, ends)[:5]
                np.testing.assert_allclose(found, exact, rtol=1e-5, err_msg=name)


def test_the_flags_are_the_kernels() -> None:
    told = (CSRC.parent / "CMakeLists.txt").read_text(encoding="utf-8")
    for isa in core.isas():
        for flag in compiler.flags(isa):
            known = "-std=c++17", "-O3", "-DNDEBUG", "-fPIC", "-shared"  # flags of a release
            assert flag in (*known, *compiler.HIDDEN) or flag in told, flag
