"""The benchmark's times of single kernels have the names of the sums that the kernels compute."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import pytest
import torch

from anyscore import Additive, ScaledDot, attention
from anyscore.kernels.triton import attention as host
from anyscore.kernels.triton import call as home
from benchmarks.private import FORWARD, KERNELS, REST, kernel_times

QUERIES, KEYS = 67, 71
SUMS = {
    "query, and for w if there is one": (QUERIES, 8),
    "key": (KEYS, 8),
    "value": (KEYS, 5),
}
"""The purpose of a kernel's sums → rows and columns of its result."""


@pytest.mark.parametrize("score", [Additive(None, None, torch.randn(8)), ScaledDot()])
def test_kernels_have_the_names_of_their_sums(score: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    launch, written = home.launch, []

    def spy(kernel: Any, programs: int, *args: Any, **options: Any) -> None:
        if kernel.fn.__name__ in ("feature_sums", "matrix_sums"):
            named = dict(zip(inspect.signature(kernel.fn).parameters, args, strict=False))
            target = named.get("d_own", named.get("target"))
            written.append(tuple(target.shape[1:]))
        launch(kernel, programs, *args, **options)

    for module in (home, host):
        monkeypatch.setattr(module, "launch", spy)
    q, k, v = torch.randn(1, QUERIES, 8), torch.randn(1, KEYS, 8), torch.randn(1, KEYS, 5)
    leaves = [x.requires_grad_() for x in (q, k, v)]

    def call() -> None:
        attention(*leaves, score=score).sum().backward()

    ticks = itertools.count()
    found = kernel_times(call, True, lambda: next(ticks), lambda begin, end: end - begin)
    sums = [name.removeprefix("backward: sums for the ") for name in found if ": sums" in name]
    assert [SUMS[name] for name in sums] == written
    assert set(found) == {*KERNELS.values(), REST}
    assert all(found[name] == 1 for name in KERNELS.values())
    assert home.launch is host.launch is spy
    forward = kernel_times(
        lambda: attention(q, k, v, score=score), False, lambda: 0, lambda begin, end: 1
    )
    assert set(forward) == {FORWARD}


def test_a_call_without_kernels_has_no_times() -> None:
    with pytest.raises(LookupError, match="launched no kernels"):
        kernel_times(lambda: None, False, lambda: 0, lambda begin, end: 1)
