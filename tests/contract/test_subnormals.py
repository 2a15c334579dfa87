"""Subnormal numbers on threads that flush them to 0: XLA's always, PyTorch's on request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import anyscore
from anyscore.backends import numpy_core
from helpers import machine

pytestmark = pytest.mark.sample

core: Any = pytest.importorskip("anyscore._core", reason=machine.CORE)

ISA = pytest.mark.parametrize("isa", core.isas())
VALUE = np.full((64, 300, 16), 1e-40, np.float32)


@pytest.fixture(autouse=True)
def _flushing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the caller flush subnormals; its helper threads were made by a thread that does not."""
    monkeypatch.setattr(numpy_core, "threads", lambda: 4)
    _mean()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    yield
    torch.set_flush_denormal(False)
    core.use(core.isas()[0])


def _mean() -> np.ndarray:
    """Return means of 300 values of 1e-40, computed by several threads."""
    zero = np.zeros((64, 300, 32), np.float32)
    return anyscore.attention(zero, zero, VALUE, score=anyscore.Dot(), impl="fused")


@ISA
def test_every_float16_is_read(isa: str) -> None:
    """Every finite float16 as the value of a single key, with weight 1, is the output."""
    core.use(isa)
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    value = every[np.isfinite(every)].reshape(-1, 1, 64)
    one = np.ones((len(value), 1, 1), np.float16)
    output = anyscore.attention(one, one, value, score=anyscore.Dot(), impl="fused")
    np.testing.assert_array_equal(output, value)


@ISA
def test_subnormal_float16_in_scores(isa: str) -> None:
    """Differences of subnormal float16 are normal float32: 2 · 2⁻²⁴ over a sigma of 2⁻²⁴ is 2."""
    core.use(isa)
    least = 2.0**-24
    query, key, value = (np.array([[[x]]], np.float16) for x in (3 * least, least, 1.0))
    score = anyscore.Laplace(sigma=least)
    found = anyscore.attention(query, key, value, score=score, impl="fused", return_lse=True)
    assert found.lse.item() == -2.0


def test_helpers_flush_as_the_caller_does() -> None:
    for _ in range(5):
        assert not _mean().view(np.uint32).any()


@pytest.mark.slow
def test_helpers_flush_no_longer_than_that() -> None:
    _mean()
    torch.set_flush_denormal(False)
    for _ in range(5):
        assert _mean().view(np.uint32).all()
