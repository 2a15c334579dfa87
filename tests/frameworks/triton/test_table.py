"""Interpreted kernels agree with the oracle: pairs, masks, dtypes, unusual sizes, gradients."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from anyscore import (
    Additive,
    Bilinear,
    Causal,
    GATv2,
    Gaussian,
    Keys,
    Laplace,
    Lengths,
    Trilinear,
    attention,
)
from anyscore.kernels.triton import call
from helpers import oracle, plain
from helpers.budget import assert_gradients_within_budget, assert_within_budget
from helpers.oracle_gradients import gradients, largest_terms

pytestmark = pytest.mark.sample

Sizes = tuple[int, ...]

SIZES: dict[str, Sizes] = {  # batch, heads, key/value heads, T_q, T_k, width, d_v
    "heads": (1, 2, 1, 5, 67, 5, 3),
    "one": (1, 1, 1, 1, 1, 1, 1),
    "two queries": (2, 2, 2, 2, 131, 7, 5),
    "tiles": (1, 1, 1, 67, 131, 3, 2),
    "whole tiles": (1, 1, 1, 64, 128, 4, 16),
    "wide": (1, 1, 1, 3, 5, 67, 131),
    "no width": (1, 2, 1, 3, 5, 0, 2),
    "no values": (1, 2, 1, 3, 5, 2, 0),
    "no keys": (1, 2, 1, 3, 0, 2, 2),
    "no queries": (1, 2, 1, 0, 5, 2, 2),
    "no batch": (0, 2, 1, 3, 5, 2, 2),
}
MASKS: dict[str, Any] = {
    "none": lambda *sizes: None,
    "lengths": lambda b, h, kv, q, k, *rest: Lengths(np.arange(b * q).reshape(b, q) * 16 % (k + 1)),
    "causal": lambda *sizes: Causal("end"),
    "boolean": lambda b, h, kv, q, k, *rest: np.random.default_rng(1).random((b, h, q, k)) > 0.5,
    "both": lambda b, h, kv, q, k, *rest: (
        Causal("end") & Keys(np.random.default_rng(2).random((b, k)) > 0.4)
    ),
}


def score_of(name: str, rng: np.random.Generator, heads: int, d: int, scale: float) -> Any:
    """Return parameters that keep scores near 1 for inputs of size `scale`."""
    w = (rng.standard_normal((heads, d)) / max(d, 1) ** 0.5).astype(np.float32)
    number = np.float32(1.5 * scale)
    return {
        "tanh": lambda: Additive(None, None, w),
        "leaky_relu": lambda: GATv2(None, None, (w / scale).astype(np.float32)),
        "squared": lambda: Gaussian(np.full(heads, number)),
        "absolute": lambda: Laplace(2.5 * float(scale)),
        "product": lambda: Bilinear(np.eye(d, dtype=np.float32), float(scale**-2)),
        "product with biases": lambda: Trilinear(
            *(rng.standard_normal((3, d)) / scale).astype("f4")
        ),
    }[name]()


PAIRS = ["tanh", "leaky_relu", "squared", "absolute", "product", "product with biases"]


def problem(name: str, sizes: Sizes, dtype: str, scale: float = 1.0) -> tuple[list[Any], Any]:
    b, h, kv, q, k, d, d_v = sizes
    rng = np.random.default_rng([len(name), *sizes])
    shapes = (b, h, q, d), (b, kv, k, d), (b, kv, k, d_v)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    arrays = [x * np.float32(scale) for x in arrays[:2]] + arrays[2:]
    score = score_of(name, rng, h, d, scale)
    to = lambda x: torch.tensor(x).to(getattr(torch, dtype))  # noqa: E731
    return [to(x) for x in arrays], score.map(to)


def check(
    name: str, sizes: Sizes, mask: Any, dtype: str, scale: float = 1.0, **options: Any
) -> None:
    """Assert the budget of output, log-sum-exp, weights and every gradient."""
    tensors, score = problem(name, sizes, dtype, scale)
    b, h, _, queries, keys, *_ = sizes
    made = MASKS[mask](*sizes)
    numbers = [oracle.numbers(x) for x in tensors]
    as_numbers = score.map(oracle.numbers)
    exact = oracle.attend(*numbers, as_numbers, mask=made)
    attended = torch.as_tensor(oracle.allowed(made, (b, h), queries, keys))
    leaves = [x.requires_grad_() for x in tensors]
    score = score.map(lambda x: x.requires_grad_())
    same = plain.attend(torch, *leaves, score, attended)
    found = attention(
        *leaves, score=score, mask=made, return_weights=True, return_lse=True, impl="fused",
        **options,
    )  # fmt: skip
    lse_dtype = "float64" if dtype == "float64" else "float32"
    for what, kind in (("output", dtype), ("weights", dtype), ("lse", lse_dtype)):
        actual, expected = getattr(found, what), getattr(exact, what)
        assert_within_budget(actual, expected, same[found._fields.index(what)], what, kind)

    rng = np.random.default_rng(3)
    sides = [rng.standard_normal(exact.output.shape), rng.standard_normal(exact.lse.shape)]
    inputs = dict(zip(("query", "key", "value"), leaves, strict=True)) | score.tensors()
    if not all(x.numel() for x in (found.output, found.lse)):
        return
    actual, simple = (
        derivatives(inputs, output, lse, sides) for output, lse in (found[::2], same[::2])
    )
    arguments = (*numbers, as_numbers, *sides)
    terms = partial(largest_terms, *arguments, mask=made)
    assert_gradients_within_budget(actual, gradients(*arguments, mask=made), simple, terms)


def derivatives(
    inputs: dict[str, Tensor], output: Tensor, lse: Tensor, sides: list[np.ndarray]
) -> dict[str, Tensor]:
    grads = [torch.tensor(x).to(y.dtype) for x, y in zip(sides, (output, lse), strict=True)]
    found = torch.autograd.grad([output, lse], list(inputs.values()), grads, materialize_grads=True)
    return dict(zip(inputs, found, strict=True))


DTYPES = ["float32", "float64", "bfloat16", "float16"]
ROWS = [
    (name, mask, DTYPES[(i + j) % len(DTYPES)])
    for i, name in enumerate(PAIRS)
    for j, mask in enumerate(MASKS)
]
"""Each mask and each dtype with each pair, and with each other."""


@pytest.mark.parametrize(("name", "mask", "dtype"), ROWS)
def test_pairs_masks_dtypes(name: str, mask: str, dtype: str) -> None:
    check(name, SIZES["heads"], mask, dtype)


@pytest.mark.parametrize("name", ["tanh", "product with biases"])
@pytest.mark.parametrize("size", [x for x in SIZES if x != "heads"])
def test_sizes(size: str, name: str) -> None:
    check(name, SIZES[size], "lengths", "float32")
    if size == "whole tiles":
        check(name, SIZES[size], "none", "float32")


@pytest.mark.parametrize("scale", [0.01, 8.0, 50.0, 1e4])
@pytest.mark.parametrize("name", ["tanh", "absolute"])
def test_magnitudes(name: str, scale: float) -> None:
    """All three ways of tanh agree; at 0.01, the gradient of w keeps its digits."""
    check(name, SIZES["heads"], "lengths", "float32", scale)


@pytest.mark.parametrize("name", ["tanh", "product with biases"])
def test_bands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backward of many keys takes one band of keys at a time."""
    monkeypatch.setattr(call, "BAND_BYTES", 1)
    monkeypatch.setattr(call, "LEAST_BAND", 64)
    check(name, SIZES["tiles"], "causal", "float32")
