"""Temporary files: where they lie, that none stays, a full disk, and how much memory is left."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyscore.lab.data import counts, disk, numbers
from anyscore.lab.data.counts import Counts
from anyscore.lab.data.numbers import NumberedPairs, Pair
from anyscore.lab.errors import RunFailure
from hang import HANG


def test_what_is_on_disk_goes_to_no_other_machine() -> None:
    pairs = [Pair((4, 5), (6, 2)), Pair((7,), (2,))] * 9
    stored, held = NumberedPairs(pairs, on_disk=True), NumberedPairs(pairs)
    assert list(pickle.loads(pickle.dumps(held))) == pairs == list(stored)
    with pytest.raises(RuntimeError, match="through inheritance"):
        pickle.dumps(stored)


def run_in_child(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    begin = (
        "import os, resource, sys\n"
        "from anyscore.lab.data import counts, disk, pairs\n"
        "from anyscore.lab.data.encoding import encode\n"
        "from anyscore.lab.data.memory import Budget\n"
        "from anyscore.lab.data.options import DataOptions\n"
        "from anyscore.lab.data.task import load_task\n"
    )
    return subprocess.run(
        [sys.executable, "-c", begin + program],
        capture_output=True,
        text=True,
        env=dict(os.environ) | environment,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
def test_files_lie_where_tmpdir_says_and_have_no_name(tmp_path: Path) -> None:
    """So that no end of the process, of whatever kind, leaves one."""
    table, place = tmp_path / "pairs.tsv", tmp_path / "temporary"
    place.mkdir()
    table.write_text("".join(f"source {n}\ttarget {n}\n" for n in range(90)))
    done = run_in_child(
        "pairs.Budget = lambda: Budget(0); disk._CACHE = 1\n"
        f"data = encode(task := load_task(DataOptions({str(table)!r})))\n"
        f"print(os.listdir({str(place)!r}))\n"
        "for fd in os.listdir('/proc/self/fd'):\n"
        "    try: print(os.readlink('/proc/self/fd/' + fd))\n"
        "    except OSError: pass\n",
        TMPDIR=str(place),
    )
    held, *files = done.stdout.splitlines()
    assert held == "[]", done.stderr
    ours = [name for name in files if name.startswith(str(place))]
    assert len(ours) == 5  # a database; tokens and lengths, of either side
    assert all(name.endswith("(deleted)") for name in ours)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_memory_stays_within_its_limit(tmp_path: Path) -> None:
    """Streaming gives the same numbers with less than half of the address space."""
    path = tmp_path / "p.tsv"
    with path.open("w") as stream:
        for n in range(30_000):
            words = f"source {n * 7919 % 30_000} of the many that there are, {n}"
            stream.write(f"{words}\tits target, number {n}, and {n % 7} more words\n")
    program = (
        "if {room}:\n"
        "    used = int(open('/proc/self/statm').read().split()[0]) * os.sysconf('SC_PAGESIZE')\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (used + {room},) * 2)\n"
        "disk._CACHE = 2**12; counts._MOST = 2**21\n"
        "def peak(): return int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])\n"
        "before = peak()\n"
        f"data = encode(load_task(DataOptions({str(path)!r}, unit='character')))\n"
        "print(data.on_disk, peak() - before)\n"
        "import hashlib\n"
        "sides = data.train.sources, data.train.targets\n"
        "arrays = [x.array().tobytes() for side in sides for x in (side.tokens, side.lengths)]\n"
        "print(hashlib.sha256(b''.join(arrays)).hexdigest())\n"
    )
    held, stored = (run_in_child(program.format(room=room)) for room in (0, 24 * 2**20))
    assert not held.stderr + stored.stderr
    (first, one), (second, other) = (x.stdout.splitlines() for x in (held, stored))
    assert one == other
    assert (first.split()[0], second.split()[0]) == ("False", "True")
    assert int(second.split()[1]) < int(first.split()[1]) / 2


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
@pytest.mark.parametrize("begin", ["", "task = load_task(DataOptions(path)); "])
def test_a_full_disk_is_one_line(tmp_path: Path, begin: str) -> None:
    """A limit on the size of files is met by the database, or by the numbers."""
    table = tmp_path / "pairs.tsv"
    table.write_text("".join(f"source {n}\ttarget {n}\n" for n in range(9000)))
    done = run_in_child(
        "pairs.Budget = lambda: Budget(0); disk._CACHE = 1; from anyscore.lab.data import numbers\n"
        f"numbers._TOGETHER = 100; path = {str(table)!r}\n"
        f"{begin}resource.setrlimit(resource.RLIMIT_FSIZE, (20_000,) * 2)\n"
        f"try: encode({'task' if begin else 'load_task(DataOptions(path))'})\n"
        "except Exception as error: print(type(error).__name__, error)\n",
        TMPDIR=str(table.parent),
    )
    assert done.stdout.startswith(f"RunFailure {table.parent}: cannot be written ("), done.stderr
    assert done.stdout.endswith("name another folder with TMPDIR, or give --limit\n")
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has it")
def test_a_full_disk_is_called_that(monkeypatch: pytest.MonkeyPatch) -> None:
    database = disk.Database()
    database.do("PRAGMA max_page_count = 4")
    database.do("CREATE TABLE t (x TEXT)")
    with pytest.raises(RunFailure, match=r": the disk is full; the data do not fit into memory"):
        database.add("INSERT INTO t VALUES (?)", [("x" * 5000,)] * 9)
    monkeypatch.setattr(numbers, "_TOGETHER", 1)
    with open("/dev/full", "r+b", buffering=0) as full, pytest.raises(RunFailure, match="is full"):
        numbers.Numbers("h", full).extend([1])


def test_the_folder_is_not_one_that_memory_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/proc/none")
    assert disk.folder() == "/var/tmp"
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert os.path.isdir(disk.folder())


def test_ctrl_c_is_seen_while_the_database_works() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells may ignore it
    try:
        _interrupt_a_count()
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt_a_count() -> None:
    database = disk.Database()
    count = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 200000000)"
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(database.rows(f"{count} SELECT sum(x) FROM n"))
    assert time.monotonic() - began < HANG


@given(st.lists(st.text("abcé漢😀", max_size=3), max_size=60), st.integers(1, 3), st.integers(0, 9))
def test_counts_are_the_same_on_disk(texts: list[str], least: int, size: int) -> None:
    held = Counts(texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts, "_MOST", 320)
        patch.setattr(counts, "_TOGETHER", 5)
        stored = Counts(texts)
    assert stored.ranked() == held.ranked()
    assert stored.ranked(size, least) == held.ranked(size, least)
    assert stored._database is not None or len({*texts}) < 9
    if texts:
        assert stored.facts() == held.facts()
    counted = Counter(texts)
    assert held.ranked() == sorted(counted, key=lambda text: (-counted[text], text))
