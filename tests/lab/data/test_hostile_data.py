"""Unusable data give one clear line, soon, and no harmful advice."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyscore.lab import extras
from anyscore.lab.data import opening
from anyscore.lab.data.check import check_files
from anyscore.lab.data.opening import LONGEST_LINE
from anyscore.lab.data.options import DataOptions
from anyscore.lab.data.pairs import Reader, group
from anyscore.lab.data.table import _distinct, _Twice
from anyscore.lab.data.task import load_task
from anyscore.lab.errors import InputError
from lab.command_line import call, plain

TWELVE = "".join(f"source {n}\ttarget {n}\n" for n in range(12)).encode()


def refusal(options: DataOptions, call: Callable[[DataOptions], object] = load_task) -> str:
    with pytest.raises(InputError) as caught:
        call(options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def archive() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as packed:
        packed.writestr("pairs.tsv", TWELVE)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (archive(), ": expected text, found a zip archive or an Office document; unpack it, or "
         "save its sheet as CSV"),
        (b"\x7fELF\2\1\1" + b"\0" * 50, ": expected text, found a program; give a table of pairs"),
        (TWELVE.decode().encode("utf-32"), ", line 1: expected UTF-8, found UTF-32; save it as "
         "UTF-8, for example: iconv -f UTF-32 -t UTF-8 {p} > utf8.tsv"),
        (TWELVE.decode().encode("utf-16-be"), ", line 1: expected UTF-8, found what looks like "
         "UTF-16 or UTF-32 without its mark (a NUL character at position 1); save the file as "
         "UTF-8 text"),
        (b"", ": there are no pairs in this file; give one that has some"),
        (gzip.compress(b"", mtime=0), ": there are no pairs in this file; give one that has some"),
        (
            gzip.compress(TWELVE, mtime=0)[:-9],
            ": this gzip file is cut short; download or pack it again",
        ),
        ("こんにちは\tHallo\n".encode("cp932"), ', line 1: expected UTF-8, found the byte 0x82 at '
         'position 1; it would read "こんにちは Hallo" in CP932, "偙傫偵偪偼 Hallo" in GB18030, '
         '"‚±‚ñ‚É‚¿‚Í H" in WINDOWS-1252, "‚±‚ń‚É‚ż‚Í H" in WINDOWS-1250; if one is right, save it '
         "as UTF-8, for example: iconv -f NAME -t UTF-8 {p} > utf8.tsv"),
        ("déjà\tx\n".encode("cp1252"), ', line 1: expected UTF-8, found the byte 0xe9 at position '
         '2; it would read "déjà x" in WINDOWS-1252, "déjŕ x" in WINDOWS-1250, "dйjа x" in '
         'WINDOWS-1251, "dИjЮ x" in KOI8-R; if one is right, save it as UTF-8, for example: iconv '
         "-f NAME -t UTF-8 {p} > utf8.tsv"),
        (bytes(range(14, 32)) + bytes(range(127, 256)) + b"\n", ", line 1: expected UTF-8, found "
         "the byte 0x80 at position 20; no usual encoding fits, so it may not be text; see what "
         "the command file says of it, or save it as UTF-8 in the program that made it"),
    ],
)  # fmt: skip
def test_what_is_no_text_is_refused_before_pytorch_is_imported(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "p.tsv"
    path.write_bytes(content)
    for reads in (check_files, load_task):
        assert refusal(DataOptions(path), reads) == str(path) + message.replace("{p}", str(path))


def test_the_check_imports_nothing_slow() -> None:
    program = (
        "import sys; from anyscore.lab.data.check import check_files; "
        "from anyscore.lab.data.options import DataOptions\n"
        "try: check_files(DataOptions('none.tsv'))\n"
        "except Exception as error: print(error)\n"
        "print(sorted({'torch', 'babel', 'tokenizers', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "none.tsv: there is no such file; check the name\n[]\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": ""}, "expected the name of a file, got an empty one"),
        ({"path": "a\0b"}, "a\0b: no file has a NUL character in its name; check it"),
        ({"source": "-1"}, "columns are counted from 1, got -1 for the source"),
        ({"target": "1" * 5000}, "the target column: expected a number from 1 or a name, got one "
         "of 5,000 digits, 111111111…"),
        ({"source": "2", "target": 2}, "the source and the target are both column 2: choose two "
         "different columns"),
        ({"split_seed": -1}, "the split's seed: expected 0 or more, got -1"),
        ({"max_tokens": 0}, "the most tokens of a side: expected 1 to 10,000, got 0"),
        ({"subwords": 7}, "subwords: expected 50 to 100,000, got 7"),
        ({"format": "xml"}, "the format: expected one of auto, tsv, csv, jsonl, parquet, got "
         "'xml'"),
        ({"target_unit": "line"}, "the target unit: expected one of auto, character, word, token, "
         "bpe, label, got 'line'"),
        ({"unit": "label"}, "a source cannot be one label; give the unit of the targets only"),
        ({"target_path": "p.tsv"}, "p.tsv: the sources and the targets are the same file"),
        ({"target_path": "q", "source": 2}, "two parallel files are plain text, a line for each "
         "side, without columns or a format; leave those out, or give one table"),
        ({"target_path": "q", "test": "t"}, "t: the training targets are in a file of their own, "
         "so these must be too; name the file of their targets"),
        ({"test_target": "t"}, "the test targets t have no sources; name their file too"),
        ({"path": "-", "test": "-"}, "standard input (-) can be read only once; name the other "
         "files"),
        ({"path": None, "test": "t"}, "a file of targets, validation or test needs a file to train "
         "on; name it"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together(
    options: dict[str, object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.tsv").write_bytes(TWELVE)
    given = DataOptions(**{"path": "p.tsv"} | options)  # type: ignore[arg-type]
    assert refusal(given) == message
    assert refusal(given, check_files) == message


def test_a_name_that_is_no_text_can_be_printed_and_saved(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.tsv"))
    path.write_bytes(TWELVE)
    task = load_task(DataOptions(path))
    assert (task.name, task.description) == ("caf\ufffd", "caf\ufffd.tsv: column 1 → column 2")
    assert str(task.summary).encode()
    path.write_bytes(b"a\n")
    assert refusal(DataOptions(path)).encode()


def test_a_packed_file_needs_no_ending_and_old_macs_are_read(tmp_path: Path) -> None:
    path = tmp_path / "p.tsv"
    path.write_bytes(TWELVE)
    expected = load_task(DataOptions(path)).train
    for content in (gzip.compress(TWELVE), TWELVE.replace(b"\n", b"\r")):
        path.write_bytes(content)
        assert load_task(DataOptions(path)).train == expected


def test_a_line_without_end_is_refused_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "zeros.tsv.gz"
    with gzip.open(path, "wb", 1) as stream:
        for _ in range(100):
            stream.write(bytes(2**20))
    program = (
        "import tracemalloc; from anyscore.lab.data.task import load_task\n"
        "from anyscore.lab.data.options import DataOptions\n"
        "tracemalloc.start()\n"
        f"try: load_task(DataOptions({str(path)!r}))\n"
        "except Exception as error: print(error)\n"
        "print(tracemalloc.get_traced_memory()[1])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    message, most = done.stdout.splitlines()
    assert message == (
        f"{path}, line 1: expected lines of at most {LONGEST_LINE:,} bytes, this one is longer; "
        "give a text with one pair a line"
    )
    assert int(most) < 4 * LONGEST_LINE


def test_long_cells_are_read_and_unclosed_ones_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.csv"
    rows = b"".join(b"s%d,t\n" % n for n in range(12))
    path.write_bytes(b'"' + b"a" * 200_000 + b'",b\n' + rows)
    assert load_task(DataOptions(path)).summary["sources"] == 13
    monkeypatch.setattr("anyscore.lab.data.table.LONGEST_LINE", 200_000)
    path.write_bytes(b'a,b\n"c,d\n' + rows * 10_000)
    assert refusal(DataOptions(path)) == (
        f"{path}, line 2: a cell of more than 200,000 characters begins here; close its quotation "
        "marks, or name the file .tsv if tabs divide its columns"
    )


def test_a_row_is_bounded_however_many_cells_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row is refused if quotation marks join many short lines and cells."""
    monkeypatch.setattr("anyscore.lab.data.table.LONGEST_LINE", 1000)
    path = tmp_path / "p.csv"
    path.write_bytes(b"a,b\nc,d\n" + b'e,"x' + b'\nx","x' * 1000 + b'"\n')
    assert refusal(DataOptions(path)) == (
        f"{path}, line 3: a row of more than 2,000 characters begins here; close its quotation "
        "marks, or name the file .tsv if tabs divide its columns"
    )


class Counted(str):
    """A text that counts its comparisons with other texts."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str(self) == other


def test_a_key_that_stands_twice_is_found_in_one_pass() -> None:
    pairs = [(Counted(f"k{n}"), n) for n in range(500)]
    Counted.compared = 0
    with pytest.raises(_Twice, match="k499"):
        _distinct([*pairs, (Counted("k499"), 0)])
    assert Counted.compared < 5 * len(pairs)


def test_sources_that_are_all_one(tmp_path: Path) -> None:
    path = tmp_path / "p.tsv"
    path.write_bytes(b"a\tb\n" * 50)
    assert refusal(DataOptions(path)).endswith(
        "found 1 distinct source, at least 10 are needed (all 50 rows repeat them: is it the right "
        "column?)"
    )


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (_Terminal(), "expected pairs, but it is a terminal; pipe a table into it, as in anyscore "
         "compare - < pairs.tsv, or name a file"),
        (None, "expected pairs, but it is closed; pipe a table into it, or name a file"),
        (io.TextIOWrapper(io.BytesIO()), "there are no pairs on it; pipe some into it"),
    ],
)  # fmt: skip
def test_standard_input(stream: object, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", stream)
    assert refusal(DataOptions("-")) == f"standard input: {message}"


def test_a_pipe_that_nobody_writes_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_WAIT", 0.1)
    os.mkfifo(tmp_path / "pipe")
    assert "this is a pipe, and nothing came in 0.1 s" in refusal(DataOptions(tmp_path / "pipe"))
    check_files(DataOptions(tmp_path / "pipe"))  # the pipe stays closed: a pipe is read only once


def test_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    assert refusal(DataOptions(), check_files) == (
        "the dates: needs the package 'babel', which is not installed; pip install "
        "'anyscore[lab]', or give a file of pairs"
    )
    for name, options, package in (("p.tsv", {"unit": "bpe"}, "tokenizers"), ("p", {}, "pyarrow")):
        (tmp_path / name).write_bytes(TWELVE)
        given = DataOptions(tmp_path / name, format="parquet" if name == "p" else "auto", **options)  # type: ignore[arg-type]
        assert f"needs the package {package!r}" in refusal(given, check_files)


def test_memory_that_ends_before_it_was_thought_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(text: str) -> str:
        raise MemoryError

    path = tmp_path / "p.tsv"
    path.write_bytes(TWELVE)
    monkeypatch.setattr("anyscore.lab.data.pairs.normalise", no_memory)
    result = call("compare", path)
    assert result.exit_code == 1
    assert plain(result.output) == (
        "anyscore: there is not enough memory; give less data with --limit, or fewer --jobs"
    )


@given(
    st.binary(max_size=200) | st.text(alphabet='[]{}":,\\ua1\t\n\r', max_size=60).map(str.encode),
    st.sampled_from(["p.tsv", "p.csv", "p.jsonl", "p.tsv.gz", "p"]),
)
def test_no_bytes_make_a_traceback(content: bytes, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        with contextlib.suppress(InputError):
            check_files(DataOptions(path))
        with contextlib.suppress(InputError):
            examples = group(Reader(path, None, DataOptions(path)))
            assert all(e.source and all(e.references) for e in examples)
