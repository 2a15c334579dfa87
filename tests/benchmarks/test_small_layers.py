"""The benchmark of small layers checks parity, and prints a ratio for each case and mode."""

from __future__ import annotations

import re

import pytest

from benchmarks import small_layers


def test_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(small_layers, "TURN", 0.0)
    monkeypatch.setattr(small_layers, "ROUNDS", 1)
    monkeypatch.setattr("sys.argv", ["small_layers", "--threads", "1"])
    small_layers.main()
    first, *rows = capsys.readouterr().out.splitlines()
    assert first.split()[-2:] == ["inference", "training"]
    layers, steps = rows[:11], rows[11:]
    assert len(list(small_layers.cases())) == 11
    assert len(steps) == 3 * len(small_layers.STEPS)
    for row in layers:
        assert re.search(r" \d+\.\d\d +\d+\.\d\d$", row), row
    for row in steps:
        assert re.search(r"width \d+ +\d+\.\d\d$", row), row


def test_another_answer_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = small_layers.PlainAdditive.forward
    monkeypatch.setattr(small_layers.PlainAdditive, "forward", lambda *xs: 2 * forward(*xs))
    monkeypatch.setattr("sys.argv", ["small_layers", "--threads", "1"])
    with pytest.raises(AssertionError, match="not close"):
        small_layers.main()
