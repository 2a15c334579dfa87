"""Fixture of the C++ core's tests, which need neither PyTorch nor layers above the core."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "sanitize: run again by `make sanitize`, with the core built for it"
    )


@pytest.fixture(autouse=True)
def _best_isa() -> Iterator[None]:
    """Restore the default instruction set after each test."""
    yield
    core = sys.modules.get("anyscore._core")
    if core is not None:
        core.use(core.isas()[0])
