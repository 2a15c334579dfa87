"""The benchmark of ranks checks parity, and prints each quantity."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import ranks, record


def test_work_is_even_with_zigzag() -> None:
    assert ranks.busiest("zigzag", 8, 2**12) == 1.0
    assert ranks.busiest("contiguous", 8, 2**12) == pytest.approx(15 / 8, rel=1e-3)


def test_arithmetic_on_paper() -> None:
    """Seconds of arithmetic fall with machines; those of exchange hardly grow."""
    found = {(tokens, machines): rest for tokens, machines, *rest in ranks.on_paper()}
    for tokens in (2**20, 2**24):
        few, many = found[tokens, 8], found[tokens, 64]
        assert few[0] == pytest.approx(8 * many[0])
        assert few[1] < many[1] < 1.2 * few[1]


def test_the_page_has_this_arithmetic() -> None:
    page = (Path(__file__).parents[2] / "docs" / "ranks.md").read_text(encoding="utf-8")
    for tokens, machines, arithmetic, exchange in ranks.on_paper():
        found = [arithmetic, *(exchange / speed for speed in ranks.BANDWIDTHS)]
        line = " | ".join(f"{x:.3g}" for x in found)
        assert f"| {tokens:,} tokens, {machines} GPUs | {line} |" in page


@pytest.mark.weekly
def test_tables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name, value in {"TOKENS": 64, "WIDTH": 8, "ROUNDS": 1, "LONG": 1024}.items():
        monkeypatch.setattr(ranks, name, value)
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    monkeypatch.setattr("sys.argv", ["ranks", "--threads", "1", "--record", "tried"])
    ranks.main()
    said = capsys.readouterr().out
    for words in ("seconds", "waiting", "one process", "÷ (a quarter + one block)", "64 GPUs"):
        assert words in said
    (file,) = tmp_path.glob("tried-*.json")
    quantities = {row["quantity"] for row in json.loads(file.read_text("utf-8"))["rows"]}
    assert quantities == {
        "work of the busiest rank ÷ mean", "processor seconds ÷ one process's",
        "part of the time spent waiting", "a rank, MiB", "one process, MiB",
        "a rank ÷ (a quarter of one process + one block)",
    }  # fmt: skip
