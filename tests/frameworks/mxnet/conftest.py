"""What the tests of MXNet share. They run in processes of their own, see norecursedirs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

with warnings.catch_warnings():  # of names that NumPy has given up since
    warnings.simplefilter("ignore")
    import mxnet as mx


@pytest.fixture(params=["np", "nd"])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """Which of its two kinds of arrays a user has; of "np" MXNet is told, as its guide says."""
    if request.param == "np":
        mx.npx.set_np()
    yield request.param
    mx.npx.reset_np()


@pytest.fixture
def np_mode() -> Iterator[None]:
    mx.npx.set_np()
    yield
    mx.npx.reset_np()
