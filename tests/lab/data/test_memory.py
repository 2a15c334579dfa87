"""A table larger than memory is refused at once; with a limit, little memory reads the table."""

from __future__ import annotations

import errno
import gzip
import os
import re
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from anyscore.lab.data import memory
from anyscore.lab.data.memory import Memory, free_memory
from anyscore.lab.data.options import DataOptions
from anyscore.lab.data.pairs import Reader, group
from anyscore.lab.data.task import load_task
from anyscore.lab.errors import InputError, RunFailure
from helpers import machine
from lab.command_line import SMALL, call, check_refused

ROWS = [f"source {n}\ttarget {n}\n" for n in range(2000)]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(ROWS))
    return path


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the free memory to a megabyte: about 700 of the pairs fit."""
    monkeypatch.setattr(memory, "free_memory", lambda: 10**6)
    monkeypatch.setattr(memory, "_BETWEEN", 10**4)


def sparse(path: Path, size: int) -> Path:
    """Make a table too large for any machine; the disk holds only its first rows."""
    path.write_text("".join(f"source {n}\ttarget {n}\n" for n in range(60_000)))
    os.truncate(path, size)
    return path


def test_a_huge_table_is_refused_after_its_first_rows(tmp_path: Path) -> None:
    path = sparse(tmp_path / "p.tsv", 2**40)
    reader = Reader(path, None, DataOptions(path))
    with pytest.raises(InputError) as caught:
        group(reader, memory=reader.memory(limited=True))
    assert re.fullmatch(
        rf"{path}: expected pairs that memory holds, found more: they would take about "
        r"[\d.]+ GB, [\d.]+ GB are free; give --limit N to use a fair sample, as in --limit "
        r"[1-9]0+",
        str(caught.value),
    )
    assert reader.counts["rows"] < 60_000
    check_refused(call("compare", path, *SMALL), "expected pairs that memory holds, found more")


@pytest.mark.usefixtures("little")
def test_the_message_says_how_much_and_how_many(table: Path) -> None:
    with pytest.raises(InputError, match=r"about 0\.0 GB, 0\.0 GB are free.* --limit 700$"):
        load_task(DataOptions(table))
    assert len(load_task(DataOptions(table, limit=700)).train) == 560


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("part", ["valid", "test"])
def test_published_parts_are_counted_too(table: Path, part: str) -> None:
    few = table.with_name("few.tsv")
    few.write_text("".join(ROWS[:20]))
    for limit in (None, 10):
        with pytest.raises(InputError) as caught:
            load_task(DataOptions(few, **{part: table}, limit=limit))
        assert str(caught.value).startswith(f"{table}: expected pairs that memory holds")
        assert str(caught.value).endswith("; give a smaller file")  # the limit is for training data


def packed(path: Path) -> tuple[Path, int]:
    path.write_bytes(gzip.compress("".join(ROWS).encode()))
    return path, 850


def pipe(path: Path) -> tuple[Path, int]:
    os.mkfifo(path)
    threading.Thread(target=lambda: path.write_text("".join(ROWS[:1000])), daemon=True).start()
    return path, 850


def parquet(path: Path) -> tuple[Path, int]:
    pyarrow = machine.package("pyarrow")
    from pyarrow import parquet

    sources, targets = zip(*(row.split("\t") for row in ROWS), strict=True)
    parquet.write_table(pyarrow.table({"a": sources, "b": targets}), path)
    return path, 100


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize(
    ("make", "name"), [(packed, "p.tsv.gz"), (pipe, "p.tsv"), (parquet, "p.parquet")]
)
def test_every_kind_of_file_is_refused_before_its_end(
    tmp_path: Path, make: Callable[[Path], tuple[Path, int]], name: str
) -> None:
    """A file is refused by its known size, packed or in rows; a pipe, when memory is full."""
    path, most = make(tmp_path / name)
    reader = Reader(path, None, DataOptions(path))
    with pytest.raises(InputError, match="expected pairs that memory holds"):
        group(reader, memory=reader.memory(limited=True))
    assert 0 < reader.counts["rows"] <= most


def test_a_full_disk_beside_a_parquet_file_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path, _ = parquet(tmp_path / "p.parquet")
    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(RunFailure, match=r"the disk is full.* or name another folder with TMPDIR"):
        load_task(DataOptions(path))


def test_a_limit_reads_in_bounded_memory(tmp_path: Path) -> None:
    """A limit reads all rows for a fair sample, and keeps the sample alone in memory."""
    path = tmp_path / "p.tsv"
    with path.open("w") as stream:
        for n in range(20_000):
            stream.write(f"source {n} of many\tits target, number {n}\n")
    peaks = []
    for limit in (100, None):
        reader = Reader(path, None, DataOptions(path, limit=limit))
        tracemalloc.start()
        examples = group(reader, limit=limit, memory=reader.memory(limited=True))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert reader.counts["rows"] == 20_000
        assert len(examples) == (limit or 20_000)
    assert peaks[0] < peaks[1] / 10


@pytest.mark.usefixtures("little")
def test_a_limit_does_not_bound_the_targets_of_a_source(table: Path) -> None:
    pairs = (("one", f"target {n}") for n in range(10_000))
    with pytest.raises(InputError, match=r"^the pairs: expected pairs that memory holds"):
        group(pairs, limit=10, memory=Memory())


@pytest.mark.usefixtures("little")
def test_repeated_and_driven_out_texts_take_no_memory() -> None:
    pairs = [(f"source {n % 30}", "target") for n in range(10_000)]
    assert len(group(pairs, memory=Memory())) == 30
    assert len(group(((f"source {n}", "t") for n in range(10_000)), limit=20)) == 20


def test_the_estimate_is_that_of_the_process(tmp_path: Path) -> None:
    """Reading and encoding take about as many bytes as the reader counts, and no more."""
    from anyscore.lab.data.encoding import encode

    words = ["some", "of", "the", "many", "words", "that", "there", "are", "and", "their"]
    path = tmp_path / "p.tsv"
    with path.open("w") as stream:
        for n in range(4_000):
            text = " ".join(words[(n * k) % len(words)] for k in range(1, 9))
            stream.write(f"{n} {text}\t{text} {n}\n")
    options = DataOptions(path, unit="character")
    reader = Reader(path, None, options)
    counted = reader.memory(limited=True)
    group(reader, memory=counted)
    tracemalloc.start()
    encode(load_task(options))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0.4 * counted.bytes < peak < counted.bytes


def test_the_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert free_memory() > 2**20
    files = tmp_path / "max", tmp_path / "current"
    monkeypatch.setattr(memory, "_CGROUPS", (tuple(map(str, files)),))
    for limit, used, free in (("3000", "1000", 2000), ("3000", "2900", 750)):
        files[0].write_text(limit)
        files[1].write_text(used)
        assert free_memory() == free
    files[0].write_text("max\n")
    assert free_memory() == memory._available()
