"""Values by table: every score × shape × mask, in NumPy and PyTorch, against the oracle.

The full product of three tables would say little more than its faces: all scores × all shapes with
and without a mask, all scores × all masks, and all masks × all shapes for a product and for a sum.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch

import oracle
import plain
from anyscore import attention
from anyscore.functional import plan
from budget import assert_within_budget
from cases import MASKS, SCORES, SHAPES, Case, applicable, case

ROWS = sorted(
    {(score, shape, mask) for score in SCORES for shape in SHAPES for mask in ("none", "four")}
    | {(score, "heads", mask) for score in SCORES for mask in MASKS}
    | {(s, shape, mask) for s in ("scaled_dot", "additive") for shape in SHAPES for mask in MASKS}
)
ROWS = [row for row in ROWS if applicable(*row[1:])]
SDPA_KINDS = ("Dot", "ScaledDot", "Bilinear", "Cosine")
PER_SHAPE = sorted({(score, shape) for score, shape, _ in ROWS})

each_row = pytest.mark.parametrize(
    ("score", "shape"), PER_SHAPE, ids=[f"{score}-{shape}" for score, shape in PER_SHAPE]
)


def masks_of(score: str, shape: str) -> list[str]:
    return [mask for f, s, mask in ROWS if (f, s) == (score, shape)]


@cache
def exact(score: str, shape: str, mask: str) -> oracle.Result:
    c = case(score, shape, mask)
    built = c.score.build(c.parameters, np.asarray)
    return oracle.attend(c.query, c.key, c.value, built, **c.masking(np.asarray))


@cache
def keep(shape: str, mask: str) -> np.ndarray:
    c = case("dot", shape, mask)
    masking, sizes = c.masking(np.asarray), (c.shape.lead, c.shape.queries, c.shape.keys)
    lengths = oracle.lengths(masking.get("valid_lens"))
    return oracle.allowed(masking.get("mask"), *sizes) & oracle.allowed(lengths, *sizes)


def check(xp: Any, to: Any, c: Case, row: tuple[str, str, str], **options: Any) -> None:
    """Output, weights and log-sum-exp; and the output alone, whose way may be another."""
    tensors, score = [to(x) for x in (c.query, c.key, c.value)], c.score.build(c.parameters, to)
    array = np.asarray if xp is np else torch.as_tensor
    call = partial(attention, *tensors, score=score, **c.masking(array), **options)
    with np.errstate(all="ignore"):
        same = plain.attend(xp, *tensors, score, array(keep(*row[1:])))
    dtype = str(tensors[0].dtype).removeprefix("torch.")
    found = call(return_weights=True, return_lse=True)
    for name, actual, expected, simple in zip(found._fields, found, exact(*row), same, strict=True):
        assert_within_budget(actual, expected, simple, f"{name} of {row}", dtype)
    assert_within_budget(call(), exact(*row).output, same[0], f"output alone of {row}", dtype)


@each_row
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_numpy(score: str, shape: str, dtype: Any) -> None:
    for mask in masks_of(score, shape):
        row = (score, shape, mask)
        check(np, partial(np.asarray, dtype=dtype), case(*row), row)


@each_row
@pytest.mark.parametrize(("dtype", "impl"), [(torch.float64, "reference"), (torch.float32, "auto")])
def test_torch(score: str, shape: str, dtype: Any, impl: str) -> None:
    for mask in masks_of(score, shape):
        row = (score, shape, mask)
        check(torch, partial(torch.as_tensor, dtype=dtype), case(*row), row, impl=impl)


@each_row
def test_torch_with_gradient(score: str, shape: str) -> None:
    """The same numbers while autograd records."""

    def to(x: np.ndarray) -> torch.Tensor:
        return torch.tensor(x).requires_grad_()

    for mask in masks_of(score, shape):
        row = (score, shape, mask)
        check(torch, to, case(*row), row)


PRODUCTS = sorted({score for score, case_ in SCORES.items() if case_.kind in SDPA_KINDS})


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sdpa(shape: str, dtype: Any, no_core: None) -> None:
    """Where PyTorch's own attention may be taken (no mask, d_v = d_k), it is, and it is right."""
    for score in PRODUCTS:
        c = case(score, shape, "none")
        tensors = [torch.as_tensor(x, dtype=dtype) for x in (c.query, c.key, c.value)]
        tensors[2] = tensors[2][..., : c.key.shape[-1]]
        built = c.score.build(c.parameters, partial(torch.as_tensor, dtype=dtype))
        expected = oracle.attend(*tensors, built)
        same = plain.attend(torch, *tensors, built)
        route = plan(*tensors, score=built).route
        assert (route == "sdpa") == (0 not in (*c.query.shape, *c.key.shape)), score
        found = attention(*tensors, score=built, return_weights=True)
        for name, x, simple in zip(("output", "weights"), expected, same, strict=False):
            actual = getattr(found, name)
            assert_within_budget(actual, x, simple, f"{name} of {score}", str(dtype)[6:])
        assert torch.equal(attention(*tensors, score=built), found.output)
