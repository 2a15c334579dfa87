"""The tests of kernels that no GPU has run switch them on."""

from __future__ import annotations

import pytest

from anyscore.kernels import tried


@pytest.fixture(autouse=True)
def _switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tried.SWITCH, "1")
