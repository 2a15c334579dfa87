"""`python -m benchmarks.gpu_rates`: sections, what is missing, and the record."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from anyscore.lab.bench.timing import Deadline
from benchmarks import gpu_rates
from benchmarks.record import Row, row, write


def one(*_: object) -> Iterator[Row]:
    yield row("instructions", "x + y", "lanes", "lanes a clock", {"median": 127.6})


def half(*_: object) -> Iterator[Row]:
    yield from one()
    raise RuntimeError("no such unit\nand more")


def test_a_section_that_fails_loses_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes: list[str | None] = []

    def save(rows: Sequence[Row], note: str | None) -> None:
        notes.append(note)
        write("rates", rows, {"processor": "H100"}, folder=tmp_path, note=note)

    rows = gpu_rates.measure({"a": one, "b": half, "c": one}, (None, None), Deadline(None), save)
    assert len(rows) == 3
    missing = "Not measured: b (RuntimeError: no such unit)."
    assert notes == [None, None, missing, missing]
    assert "x + y: 127.6 lanes a clock" in capsys.readouterr().out
    (path,) = tmp_path.glob("rates-*.json")
    found = json.loads(path.read_text(encoding="utf-8"))
    assert (len(found["rows"]), found["note"]) == (3, missing)


def test_no_section_begins_when_the_time_is_over() -> None:
    notes: list[str | None] = []
    late = Deadline(-1)
    rows = gpu_rates.measure({"a": one}, (None, None), late, lambda _, note: notes.append(note))
    assert rows == []
    assert notes == ["Not measured: a (TimeoutError: the time was over)."]


def test_a_rate_is_highest_where_the_time_is_shortest() -> None:
    seconds = {"median": 2.0, "low": 1.0, "high": 4.0, "rounds": 15}
    assert gpu_rates._rate(8, seconds) == {"median": 4.0, "low": 2.0, "high": 8.0}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_without_a_gpu_one_line_says_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["gpu_rates"])
    with pytest.raises(SystemExit, match="gpu_rates: needs an NVIDIA GPU of compute capability"):
        gpu_rates.main()
