"""Energies of location-sensitive attention and their gradients follow the formula."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest

from core.raw import core
from helpers.budget import EPS

pytestmark = pytest.mark.sample

ISAS = pytest.mark.parametrize("isa", core.isas())
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])
SIZES = [(1, 1, 1, 1), (2, 5, 3, 2), (3, 37, 17, 11), (2, 300, 70, 33), (5, 16, 16, 1)]


class Step(NamedTuple):
    """The arrays of a step, in the core's order."""

    key: Any
    feature: Any
    stacked: Any
    vector: Any
    spans: Any


def step(sizes: tuple[int, ...], dtype: str, scale: float = 1.0) -> Step:
    batch, keys, width, features = sizes
    rng = np.random.default_rng(sizes)
    shapes = (batch, keys, width), (batch, keys, features), (batch, features, width), (width,)
    arrays = [rng.standard_normal(s) for s in shapes]
    arrays[0] *= scale
    spans = np.sort(rng.integers(0, keys + 1, (batch, 2)), -1)
    spans[0] = 0, keys
    return Step(*(x.astype(dtype) for x in arrays), spans)


def formula(x: Step) -> tuple[Any, Any]:
    """Return energies and hidden units in long double."""
    key, feature, stacked, vector = (np.asarray(y, np.longdouble) for y in x[:4])
    with np.errstate(all="ignore"):
        hidden = np.tanh(key + feature @ stacked)
        return hidden @ vector, hidden


def within(x: Step) -> Any:
    numbers = np.arange(x.key.shape[1])
    return (numbers >= x.spans[:, :1]) & (numbers < x.spans[:, 1:])


def energies(x: Step, threads: int = 1) -> Any:
    made = np.full(x.key.shape[:2], 7, x.key.dtype)
    core.energies(x, made, threads)
    return made


def gradients(x: Step, upstream: Any, threads: int = 1) -> list[Any]:
    """Return the gradients of key, added to 1, of feature and stacked, and of vector by item."""
    per_item = np.full((len(x.key), x.key.shape[2]), math.nan, x.key.dtype)
    made = [np.ones_like(x.key), np.zeros_like(x.feature), np.full_like(x.stacked, math.nan)]
    core.energies_backward(x, upstream, (*made, per_item), threads)
    return [*made, per_item]


def exact_gradients(x: Step, upstream: Any) -> list[Any]:
    _, hidden = formula(x)
    g = np.where(within(x), upstream, 0).astype(np.longdouble)[..., None]
    d_x = g * x.vector * (1 - hidden**2)
    d_feature = np.einsum("bjd,bmd->bjm", d_x, x.stacked.astype(np.longdouble))
    d_stacked = np.einsum("bjm,bjd->bmd", x.feature.astype(np.longdouble), d_x)
    return [d_x + 1, d_feature, d_stacked, (g * hidden).sum(1)]


def near(found: Any, want: Any, dtype: str, terms: int) -> None:
    size = max(1.0, float(np.abs(want).max(initial=0)))
    bound = 8 * EPS[dtype] * size * math.sqrt(terms)
    np.testing.assert_allclose(found.astype("float64"), want.astype("float64"), rtol=0, atol=bound)


@pytest.mark.sanitize
@ISAS
@DTYPES
@pytest.mark.parametrize("scale", [1e-2, 1, 30])
@pytest.mark.parametrize("sizes", SIZES)
def test_values_and_gradients(sizes: tuple[int, ...], scale: float, dtype: str, isa: str) -> None:
    core.use(isa)
    x = step(sizes, dtype, scale)
    want, _ = formula(x)
    rounding = max(1, int(scale))  # of tanh's arguments
    near(energies(x), np.where(within(x), want, 7), dtype, rounding * sizes[2] * (1 + sizes[3]))
    upstream = np.random.default_rng(1).standard_normal(want.shape).astype(dtype)
    for one, other in zip(gradients(x, upstream), exact_gradients(x, upstream), strict=True):
        near(one, other, dtype, rounding * sizes[1] * sizes[2])


@ISAS
def test_what_is_not_finite_stays_where_it_is(isa: str) -> None:
    """NaN makes the energy of its key NaN; tanh of ∞ and of an overflowing sum is ±1."""
    core.use(isa)
    x = step((2, 40, 9, 3), "float32")
    x.spans[:] = 0, 40
    x.key[0, 3, 2], x.key[0, 20, 8], x.key[1, 5, 0] = math.nan, math.inf, -math.inf
    x.key[1, 5, 1], x.key[1, 7, :3] = math.inf, 3e38
    want, _ = formula(x)
    found = energies(x)
    assert np.argwhere(np.isnan(found)).tolist() == [[0, 3]]
    near(np.nan_to_num(found), np.nan_to_num(want), "float32", 30)


def test_the_same_bits_for_any_number_of_threads() -> None:
    x = step((3, 500, 40, 5), "float32")
    upstream = np.random.default_rng(1).standard_normal((3, 500)).astype("float32")
    one, other = ([energies(x, n), *gradients(x, upstream, n)] for n in (1, 3))
    assert all(map(np.array_equal, one, other))


def test_nothing() -> None:
    for sizes in ((0, 4, 3, 2), (2, 0, 3, 2)):
        x = step((2, 4, 3, 2), "float32")
        b, n, *_ = sizes
        x = Step(
            x.key[:b, :n].copy(), x.feature[:b, :n].copy(), x.stacked[:b], x.vector, x.spans[:b]
        )
        x.spans[:] = 0, n
        assert energies(x).size == 0
        assert (gradients(x, np.zeros((b, n), "float32"))[2] == 0).all()


WRONG: dict[str, tuple[Any, str]] = {
    "a type": (
        lambda x: x._replace(vector=x.vector.astype("float64")),
        "vector must have the type",
    ),
    "half": (lambda x: Step(*(y.astype("float16") for y in x[:4]), x.spans), "key must be float32"),
    "a rank": (lambda x: x._replace(key=x.key[0]), r"key must have shape \(B, T_k, h\)"),
    "a size": (lambda x: x._replace(stacked=x.stacked[:, :1]), "stacked has shape"),
    "strides": (lambda x: x._replace(feature=x.feature[:, ::-1]), "feature must be C-contiguous"),
    "spans": (lambda x: x._replace(spans=x.spans + 1), "spans must be within the keys"),
    "their type": (lambda x: x._replace(spans=x.spans.astype("int32")), "spans must be int64"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arrays_are_refused(what: str) -> None:
    change, said = WRONG[what]
    x = step((2, 4, 3, 2), "float32")
    x.spans[:] = 0, 4
    with pytest.raises(ValueError, match=said):
        core.energies(change(x), np.zeros((2, 4), "float32"), 1)
