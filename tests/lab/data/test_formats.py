"""Every format gives back the pairs that were written, packed or not, from a file or a pipe."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyscore.lab.data.options import DataOptions
from anyscore.lab.data.pairs import Example, Reader
from anyscore.lab.data.task import load_task
from anyscore.lab.errors import InputError
from helpers import machine

Pairs = list[tuple[str, str]]

PAIRS = [(f"source {n}", f"targét {n}") for n in range(12)]
ROWS = [{"en": source, "fr": target, "n": n} for n, (source, target) in enumerate(PAIRS)]


def as_tsv(pairs: Pairs) -> bytes:
    return "".join(f"{source}\t{target}\n" for source, target in pairs).encode()


def as_csv(pairs: Pairs) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(pairs)
    return text.getvalue().encode()


def as_objects(pairs: Pairs) -> bytes:
    return "".join(json.dumps({"a": s, "b": t}) + "\n" for s, t in pairs).encode()


def as_lists(pairs: Pairs) -> bytes:
    lines = (json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs)
    return "".join(lines).encode()


WRITERS = {
    "p.tsv": as_tsv,
    "p.csv": as_csv,
    "p.jsonl": as_objects,
    "p.ndjson": as_lists,
}


def read(path: Path | str, other: Path | None = None, **options: Any) -> Pairs:
    return list(Reader(path, other, DataOptions(path, other, **options)))


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Any text of a file, without the characters that divide cells of the plainest format.
CELL = st.text(
    st.characters(exclude_characters="\0\t\r\n", exclude_categories=["Cs"]), min_size=1, max_size=8
).filter(lambda text: bool(text.strip()))


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("packed", [False, True])
@given(pairs=st.lists(st.tuples(CELL, CELL), min_size=1, max_size=8))
def test_what_is_written_is_read(name: str, packed: bool, pairs: Pairs) -> None:
    content = WRITERS[name](pairs)
    for number, line in enumerate(content.split(b"\n")):
        if line.startswith("\ufeff".encode()):  # the mark of a file in the middle
            pairs[number] = (pairs[number][0][1:], pairs[number][1])
            if not pairs[number][0].strip():
                return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / (name + ".gz" * packed)
        path.write_bytes(gzip.compress(content) if packed else content)
        assert read(path) == pairs


@pytest.mark.parametrize("name", ["p.tsv", "p.csv", "p.ndjson"])
def test_files_that_were_joined_are_read_as_one(tmp_path: Path, name: str) -> None:
    """Each file may begin with a byte order mark; a source of both files is one source."""
    path = tmp_path / name
    one = "\ufeff".encode() + WRITERS[name](PAIRS)
    path.write_bytes(one + one)
    assert read(path) == PAIRS * 2


@pytest.mark.parametrize(
    "line", ["sep=,\n", "sep=,\r\n", "sep=;\n", "sep=\t\n", "sep=|\r\n", "\ufeffsep=,\n"]
)
def test_excel_says_what_divides_its_columns(tmp_path: Path, line: str) -> None:
    divider = line.strip("\ufeff\r\n")[4:]
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=divider).writerows(PAIRS)
    path = tmp_path / "p.csv"
    path.write_bytes((line + text.getvalue()).encode())
    assert read(path) == PAIRS
    path.write_bytes((line + text.getvalue() + f"a{divider}\n").encode())
    assert f"line {2 + len(PAIRS)}: the target (column 2) is empty" in refusal(lambda: read(path))


@given(st.lists(st.tuples(CELL, CELL), min_size=1, max_size=8))
def test_parallel_files_are_read_side_by_side(pairs: Pairs) -> None:
    pairs = [(s.replace("\ufeff", "x"), t.replace("\ufeff", "x")) for s, t in pairs]
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / "a.en", Path(folder) / "a.fr"]
        for side, path in enumerate(paths):
            path.write_text("".join(pair[side] + "\n" for pair in pairs), "utf-8", newline="")
        assert read(*paths) == pairs


@given(pairs=st.lists(st.tuples(CELL, CELL), min_size=1, max_size=8))
def test_parquet(pairs: Pairs) -> None:
    pa = machine.package("pyarrow")
    parquet = machine.package("pyarrow.parquet")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.parquet"
        table = pa.table({"s": [s for s, _ in pairs], "t": [t for _, t in pairs]})
        parquet.write_table(table, path, row_group_size=3)
        assert read(path) == pairs
        assert read(path, source="t", target="s") == [(t, s) for s, t in pairs]


@pytest.mark.parametrize(
    ("columns", "first"),
    [
        ({"source": "n", "target": "l"}, ("0", "a 1.50")),  # numbers as they are written
        ({"source": "t.en"}, ("hello", "Welt 0")),
        ({"source": "hé"}, ("x", "Welt 0")),
        ({"source": 3, "target": "b"}, ("0", "true")),
        ({"source": "spaced", "target": 3}, ("y", "0")),
    ],
)
def test_values_of_json_lines(
    tmp_path: Path, columns: dict[str, Any], first: tuple[str, str]
) -> None:
    path = tmp_path / "p.jsonl"
    line = (
        '{"hé": "x", "fr": "Welt %d", "n": %d, "l": ["a", 1.50], "t": {"en": "hello"}, '
        '"b": true, " spaced ": "y"}\n'
    )
    path.write_text("".join(line % (n, n) for n in range(12)), "utf-8")
    assert read(path, **columns)[0] == first


def test_values_that_were_made_texts_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("".join(f'[{n}, ["a", "b"]]\n' for n in range(12)))
    summary = load_task(DataOptions(path)).summary
    assert (summary["numbers"], summary["lists"]) == (12, 12)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"en": "a", "fr" "b"}\n', "line 57: cannot be read as JSON (Expecting ':' delimiter at "
         "position 18): expected one whole object or list on each line; mend the line, or write a "
         "longer document so: jq -c '.[]'"),
        (b'{"en": "a", "fr": "b", "en": "c"}\n', 'line 57: the key "en" stands twice; keep one'),
        (b'{"en": null, "fr": "b"}\n', 'line 57: the source (column "en") is empty: fill it in or '
         "remove the line"),
        (b'{"fr": "b"}\n', 'line 57: the source (column "en") is empty: fill it in or remove the '
         "line"),
        (b'{"en": {"a": 1}, "fr": "b"}\n', 'line 57: the source (column "en"): expected text, '
         'found an object; choose a part of it, as in "en.a"'),
        (b'{"en": ["a b"], "fr": "b"}\n', 'line 57: the source (column "en"): expected text, found '
         "a list of other things than tokens; choose another column, or make it text"),
        (b'["a", "b"]\n', "line 57: expected an object as before, found a list; mend the line"),
        (b"{}\n", 'line 57: the source (column "en") is empty: fill it in or remove the line'),
        (b"3\n", "line 57: expected an object or a list, found 3; mend the line"),
        (b'{"en": "\\ud800", "fr": "b"}\n', 'line 57: the source (column "en") holds half a '
         "character (a lone surrogate); remove it"),
        (b'{"en": "a\\u0000", "fr": "b"}\n', 'line 57: the source (column "en") holds a NUL '
         "character; remove it"),
        (b"[" * 100_000 + b"\n", "line 57: cannot be read as JSON (nested too deeply): expected "
         "one whole object or list on each line; mend the line, or write a longer document so: jq "
         "-c '.[]'"),
    ],
)  # fmt: skip
def test_json_lines_that_cannot_be_used(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "p.jsonl"
    good = b"".join(b'{"en": "s%d", "fr": "t"}\n' % n for n in range(56))
    path.write_bytes(good + content)
    assert refusal(lambda: load_task(DataOptions(path))) == f"{path}, {message}"


def test_a_json_document_is_not_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(ROWS))
    assert "expected one object a line, found a list of them" in refusal(lambda: read(path))
    path.write_text(json.dumps(ROWS, indent=1))
    assert "line 1: cannot be read as JSON" in refusal(lambda: read(path))


def test_close_column_names_are_offered(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("English,French\nGo.,Va !\n")
    message = refusal(lambda: read(path, source="english", target="French"))
    assert message == (
        f'{path}, line 1: there is no column "english" in the header; '
        'did you mean \'English\'? there is "English", "French"'
    )
    path.write_text("en,en\na,b\n")
    assert 'two columns "en"' in refusal(lambda: read(path, source="en", target=2))


def test_parquet_that_cannot_be_used(tmp_path: Path) -> None:
    pa = machine.package("pyarrow")
    parquet = machine.package("pyarrow.parquet")
    path = tmp_path / "p.parquet"
    columns = {"null": [None], "object": [{"a": "x"}], "bytes": [b"x"], "n": [1.5], "s": ["s"]}
    parquet.write_table(pa.table(columns), path)
    assert read(path, source="object.a", target="n") == [("x", "1.5")]
    for column, message in {
        "null": 'row 1: the source (column "null") is empty: fill it in or remove the row',
        "object": 'row 1: the source (column "object"): expected text, found an object; choose a '
        'part of it, as in "object.a"',
        "bytes": 'row 1: the source (column "bytes"): expected text, found a value of type bytes; '
        "choose another column, or make it text",
    }.items():
        assert refusal(lambda: read(path, source=column, target="s")) == f"{path}, {message}"  # noqa: B023
    path.write_bytes(path.read_bytes()[:-20])
    assert "cannot be read as Parquet" in refusal(lambda: read(path))


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyscore.lab.extras.find_spec", lambda _: None)
    path = tmp_path / "p.parquet"
    path.write_bytes(b"PAR1")
    message = refusal(lambda: read(path))
    assert message.startswith(f"{path}: Parquet: needs the package 'pyarrow'")
    path = path.rename(tmp_path / "p.tsv")
    assert "found a Parquet file" in refusal(lambda: read(path))


def test_parallel_files_must_belong_together(tmp_path: Path) -> None:
    one, other = tmp_path / "a.en", tmp_path / "a.fr"
    one.write_text("a\nb\nc\n")
    other.write_text("x\ny\n")
    assert refusal(lambda: read(one, other)) == (
        f"{other}: expected as many lines as in {one}, found only 2; give two files whose lines "
        "belong together"
    )
    other.write_text("x\n\nz\n")
    assert f"{other}, line 2: this line is empty" in refusal(lambda: read(one, other))
    assert read(one, other, skip_empty=True) == [("a", "x"), ("c", "z")]


@pytest.mark.parametrize("write", [as_tsv, as_csv, as_objects, as_lists])
@pytest.mark.parametrize("packed", [False, True])
def test_the_format_of_standard_input_is_found(
    write: Callable[[Pairs], bytes], packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = write(PAIRS)
    stream = io.TextIOWrapper(io.BytesIO(gzip.compress(content) if packed else content))
    monkeypatch.setattr(sys, "stdin", stream)
    task = load_task(DataOptions("-"))
    assert task.name == "stdin"
    kept = {Example(source, (target,)) for source, target in PAIRS}
    assert {*task.train, *task.valid, *task.test} == kept


def test_a_named_pipe_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(as_tsv(PAIRS)))
    writer.start()
    assert read(pipe) == PAIRS
    writer.join()


def test_a_format_can_be_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "pairs.txt"
    path.write_bytes(as_csv(PAIRS))
    assert read(path, format="csv") == PAIRS
    assert read(path.rename(tmp_path / "pairs")) == PAIRS


def test_one_column_of_objects_names_its_parts(tmp_path: Path) -> None:
    """As datasets of translations have it, in JSON lines and in Parquet."""
    path = tmp_path / "p.jsonl"
    path.write_text('{"translation": {"en": "one", "de": "eins"}}\n' * 20, encoding="utf-8")
    advice = '--source "translation.en" --target "translation.de"'
    with pytest.raises(InputError, match=f"choose other columns, as in {advice}"):
        load_task(DataOptions(path))
