"""What the tests of the C++ core share; they need neither PyTorch nor what lies above the core."""

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
    """Whatever a test chose, the next one starts with the default again."""
    yield
    core = sys.modules.get("anyscore._core")
    if core is not None:
        core.use(core.isas()[0])
