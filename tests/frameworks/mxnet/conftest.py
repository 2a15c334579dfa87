"""Setup of the tests of MXNet, which run in processes of their own; see norecursedirs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

with warnings.catch_warnings():  # of names that NumPy has removed
    warnings.simplefilter("ignore")
    import mxnet as mx


@pytest.fixture(params=["np", "nd"])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """Kind of a user's arrays: "np", with `set_np()` as in MXNet's guide, or "nd"."""
    if request.param == "np":
        mx.npx.set_np()
    yield request.param
    mx.npx.reset_np()


@pytest.fixture
def np_mode() -> Iterator[None]:
    mx.npx.set_np()
    yield
    mx.npx.reset_np()
