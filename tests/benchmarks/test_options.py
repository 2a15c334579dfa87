"""The benchmark of options checks its answers, and gives a row for each call and mode."""

from __future__ import annotations

import pytest

from anyscore.kernels import cpu
from benchmarks import options

pytestmark = [
    pytest.mark.slow,  # a compiler runs
    pytest.mark.skipif(cpu.problem() is not None, reason="the C++ core is not built"),
]


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
