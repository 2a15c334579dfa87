"""Fixtures that the tests of PyTorch share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Leave nothing compiled to the test, nor by it."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
