"""Fixtures of the tests of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Reset the compiler before and after a test."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
