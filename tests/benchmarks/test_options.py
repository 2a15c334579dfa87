"""The benchmark of options checks its answers, and gives a row for each call and mode."""

from __future__ import annotations

import pytest

from benchmarks import options
from helpers import machine

pytestmark = machine.needs_core


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "ROUNDS", 1)
    monkeypatch.setattr(options, "LENGTH", 16)
    monkeypatch.setattr(options, "FORMULAS", options.FORMULAS[:1])


def test_rows() -> None:
    rows = list(options.rows())
    assert len(rows) == 2 * (2 + 4 + 2)
    assert all(row["median"] > 0 for row in rows)
    assert {row["workload"] for row in rows} == {"pairs", "biases", "sparse normalizers"}


def test_another_answer_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "FORMULAS", ("a + b",))
    with pytest.raises(AssertionError, match="not close"):
        options.pairs()
