"""Each mistake in a bias raises one clear error before any work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from anyscore import ALiBi, Relative, attention
from anyscore.modifiers.biases import Bias
from helpers.samples import normal

pytestmark = pytest.mark.sample

B, H, KV, T_Q, T_K, D, D_V = 2, 4, 2, 5, 7, 5, 3


def inputs() -> list[np.ndarray]:
    return [normal(B, H, T_Q, D), normal(B, KV, T_K, D), normal(B, KV, T_K, D_V)]


WRONG: list[tuple[Any, type[Exception], str]] = [
    (np.zeros((3, T_Q, T_K)), ValueError, r"bias has shape \(3, 5, 7\), expected what broadcasts"),
    (np.zeros((T_K, T_Q)), ValueError, r"expected what broadcasts to \(2, 4, 5, 7\)"),
    (np.zeros((1, B, H, T_Q, T_K)), ValueError, "bias has shape"),
    (
        np.ones((T_Q, T_K), bool),
        TypeError,
        "bias is bool, .* a boolean tensor is a mask, pass mask=",
    ),
    (np.ones((T_Q, T_K), int), TypeError, "bias is int64, expected one of"),
    (torch.zeros(T_Q, T_K), TypeError, "bias is a"),
    ([[0.0]], TypeError, r"bias must be a tensor .* Relative\(table\) or ALiBi\(slopes\)"),
    ("alibi", TypeError, "bias must be a tensor"),
    (ALiBi(), ValueError, 'ALiBi with 5 queries and 7 keys must say how they line up: align="st'),
    (Relative(np.zeros((3, 5)), align="end"), ValueError, r"leading dimensions \(3,\), expected"),
    (ALiBi(np.zeros(H, int), align="end"), TypeError, "bias.slopes is int64"),
    (ALiBi(offset=np.array([0])), TypeError, r"bias.offset is int64 of shape \(1,\), expected an"),
    (ALiBi(offset=np.array(1.5)), TypeError, "bias.offset is float64 of shape"),
]


@pytest.mark.parametrize(("wrong", "error", "message"), WRONG)
def test_wrong_biases(wrong: Any, error: type[Exception], message: str) -> None:
    for name in ("bias", "bias_after"):
        with pytest.raises(error, match=message.replace("bias", name, 1)):
            attention(*inputs(), **{name: wrong})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Relative(np.zeros((H, 4))),
            r"table has shape \(4, 4\), expected \(..., 2R \+ 1\)",
        ),
        (lambda: Relative(np.zeros((H, 5)), "t6"), 'buckets must be "clipped" or "t5"'),
        (lambda: Relative(np.zeros((H, 8)), "t5", max_distance=2), "max_distance=2 must be > 2"),
        (lambda: Relative([0.0]), "table must be a tensor"),
        (lambda: ALiBi(align="middle"), 'align must be "start" or "end"'),
        (lambda: ALiBi(1.0), r"slopes must be a tensor \(heads,\) or \(\), or None, got 1.0"),
        (lambda: ALiBi(offset=1.5), r"offset must be an integer or a tensor \(\), got 1.5"),
        (lambda: ALiBi(offset="1"), "offset must be an integer"),
        (lambda: ALiBi(offset=True), "offset must be an integer"),
        (lambda: Relative(np.zeros(5), offset=-(10**30)), "offset must be within ± 2³⁰, got -10"),
    ],
)
def test_wrong_objects(make: Callable[[], Bias], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.parametrize(("queries", "keys"), [(1, 0), (0, 1), (0, 0), (0, 3), (2, 0)])
def test_objects_where_there_is_nothing(queries: int, keys: int) -> None:
    """A bias object of a call without queries or keys has a gradient of 0."""
    xs = [torch.randn(2, n, 3, requires_grad=True) for n in (queries, keys, keys)]
    table = torch.randn(5, requires_grad=True)
    output = attention(*xs, bias=Relative(table, align="start"))
    assert not output.any()
    (slope,) = torch.autograd.grad(output.sum(), [table])
    assert (slope == 0).all()
