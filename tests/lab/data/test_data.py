"""Pairs from files: pairs are read, divided into parts, or refused with a clear message."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyscore.lab.data import opening
from anyscore.lab.data.encoding import encode
from anyscore.lab.data.options import DataOptions, Unit
from anyscore.lab.data.pairs import Reader, group
from anyscore.lab.data.summary import summary_lines
from anyscore.lab.data.task import MOST_HELD_OUT, Example, Split, choose_unit, load_task
from anyscore.lab.data.task import split as split_examples
from anyscore.lab.data.tokens import normalise
from anyscore.lab.errors import InputError

pytestmark = pytest.mark.sample

TWELVE = "".join(f"source {n}\ttarget {n}\n" for n in range(12)).encode()


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def read_pairs(path: Path, **columns: str | int) -> list[Example]:
    return group(Reader(path, None, DataOptions(path, **columns)))


@pytest.mark.parametrize("name", ["p.tsv", "p.txt", "p", "p.tsv.gz", "P.TSV.GZ"])
def test_tabs(tmp_path: Path, name: str) -> None:
    if name.endswith(".GZ"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(b'"Go,"\tVa !\tCC-BY\n'))
    else:
        path = write(tmp_path, name, b'"Go,"\tVa !\tCC-BY\n')
    assert read_pairs(path) == [Example('"Go,"', ("Va !",))]


@pytest.mark.parametrize("name", ["p.csv", "p.csv.gz", "p.CSV"])
def test_commas(tmp_path: Path, name: str) -> None:
    content = b'"Well, ""yes""",Oui\tnon,x\n\n"two\nlines",deux\n'
    path = write(tmp_path, name, content)
    assert read_pairs(path) == [
        Example('Well, "yes"', ("Oui non",)),
        Example("two lines", ("deux",)),
    ]


def test_byte_order_mark_line_ends_and_blank_lines(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbfa\tb\r\n\r\n \t \r\nc\td"
    path = write(tmp_path, "p.tsv", content)
    assert read_pairs(path) == [Example("a", ("b",)), Example("c", ("d",))]
    with pytest.raises(InputError, match="line 4"):  # blank lines count, too
        read_pairs(write(tmp_path, "p.tsv", content + b"\xff"))


def test_other_separators_do_not_end_a_line(tmp_path: Path) -> None:
    path = write(tmp_path, "p.tsv", "a\u2028b\x0bc\td\u0085e\n".encode())
    assert read_pairs(path) == [Example("a b c", ("d e",))]


def test_several_targets_become_references(tmp_path: Path) -> None:
    content = "Go.\tVa !\nRun.\tCours !\n Go. \tMarche.\nGo.\tVa\u00a0!\n".encode()
    assert read_pairs(write(tmp_path, "p.tsv", content)) == [
        Example("Go.", ("Va !", "Marche.")),
        Example("Run.", ("Cours !",)),
    ]


def test_spellings_of_one_source_are_one(tmp_path: Path) -> None:
    content = "caf\u00e9\t1\ncafe\u0301\t2\n".encode()
    assert read_pairs(write(tmp_path, "p.tsv", content)) == [Example("café", ("1", "2"))]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"source": 3, "target": 1}, ("attribution", "English")),
        ({"source": "3", "target": " 1"}, ("attribution", "English")),
        ({"target": 3}, ("English", "attribution")),
        ({"source": "French", "target": "English"}, ("Va !", "Go.")),
        ({"source": "French", "target": 1}, ("Va !", "Go.")),
        ({"target": "attribution"}, ("Go.", "CC")),
    ],
)
def test_columns(tmp_path: Path, columns: dict[str, str | int], expected: tuple[str, str]) -> None:
    content = b"\nEnglish\tFrench \tattribution\nGo.\tVa !\tCC\n"
    source, *targets = expected
    assert read_pairs(write(tmp_path, "p.tsv", content), **columns)[0] == Example(
        source, tuple(targets)
    )


def test_a_header_is_only_read_when_a_name_is_given(tmp_path: Path) -> None:
    path = write(tmp_path, "p.csv", b"en,fr\nGo.,Va !\n")
    assert [e.source for e in read_pairs(path)] == ["en", "Go."]
    assert [e.source for e in read_pairs(path, source="en", target="fr")] == ["Go."]


BAD = [
    ("p.tsv", b"a\tb\nc\n", {}, "{p}, line 2: expected at least 2 columns divided by tabs, "
     "found 1: c; mend the line, choose other columns, or name the file .csv if commas divide "
     "them"),
    ("p.csv", b"a;b\n", {}, "{p}, line 1: expected at least 2 columns divided by commas, "
     "found 1: a;b; mend the line, choose other columns, or save the file with commas if "
     "semicolons divide them"),
    ("p.csv", b"a\tb\n", {}, "{p}, line 1: expected at least 2 columns divided by commas, "
     "found 1: a\tb; mend the line, choose other columns, or name the file .tsv if tabs divide "
     "them"),
    ("p.csv", b"en,fr\na,b\nc\n", {"source": "fr", "target": 1}, "{p}, line 3: expected at least "
     "2 columns divided by commas, found 1: c; mend the line, choose other columns, or name the "
     "file .tsv if tabs divide them"),
    ("p.tsv", b"a\tb\n", {"target": 3}, "{p}, line 1: expected at least 3 columns divided by tabs, "
     "found 2: a ⇥ b; mend the line, choose other columns, or name the file .csv if commas divide "
     "them"),
    ("p.tsv", b"x" * 70, {}, "{p}, line 1: expected at least 2 columns divided by tabs, found 1: "
     + "x" * 59 + "…; mend the line, choose other columns, or name the file .csv if commas divide "
     "them"),
    ("p.tsv", b"a\tb\n\tc\n", {}, "{p}, line 2: the source (column 1) is empty: fill it in or "
     "remove the line"),
    ("p.tsv", b"a\tb\n\nc\t \xc2\xa0\t\n", {}, "{p}, line 3: the target (column 2) is empty: fill "
     "it in or remove the line"),
    ("p.csv", b'"a\nb",c\nd,\n', {}, "{p}, line 3: the target (column 2) is empty: fill it in or "
     "remove the line"),
    ("p.tsv", b"a\tb\ncaf\xe9\td\n", {}, "{p}, line 2: expected UTF-8, found the byte 0xe9 at "
     'position 4; it would read "café d" in WINDOWS-1252, "cafй d" in WINDOWS-1251, "cafИ d" in '
     "KOI8-R; if one is right, save it as UTF-8, for example: iconv -f NAME -t UTF-8 {p} > "
     "utf8.tsv"),
    ("p.tsv.gz", b"a\tb\ncaf\xe9\td\n", {}, "{p}, line 2: expected UTF-8, found the byte 0xe9 at "
     'position 4; it would read "café d" in WINDOWS-1252, "cafй d" in WINDOWS-1251, "cafИ d" in '
     "KOI8-R; if one is right, unpack the file and save it as UTF-8 (iconv -f NAME -t UTF-8)"),
    ("p.tsv", "a\tb\n".encode("utf-16"), {}, "{p}, line 1: expected UTF-8, found UTF-16; save it "
     "as UTF-8, for example: iconv -f UTF-16 -t UTF-8 {p} > utf8.tsv"),
    ("p.tsv", b"a\tb\nc\0\td\n", {}, "{p}, line 2: expected text, found a NUL character at "
     "position 2; remove it, or save the file as UTF-8 text"),
    ("p.csv", b"a,b\nc\0,d\n", {}, "{p}, line 2: expected text, found a NUL character at "
     "position 2; remove it, or save the file as UTF-8 text"),
    ("p.csv", b'a,b\n"c,d\ne,f\n', {}, "{p}, line 2: cannot be read as CSV (unexpected end of "
     "data): mend the quotation marks, or name the file .tsv if tabs divide its columns"),
    ("p.tsv", b"", {}, "{p}: there are no pairs in this file; give one that has some"),
    ("p.tsv", b"", {"source": "en"}, "{p}: there are no pairs in this file; give one that has "
     "some"),
    ("p.tsv", b"en\tfr\n", {"source": "en"}, "{p}: there are no pairs in this file; give one that "
     "has some"),
    ("p.tsv", b"en\tfr\na\tb\n", {"source": "English"}, '{p}, line 1: there is no column "English" '
     'in the header; there is "en", "fr"'),
    ("p.tsv", TWELVE, {"source": 0}, "columns are counted from 1, got 0 for the source"),
    ("p.tsv", TWELVE, {"source": 2}, "the source and the target are both column 2: choose two "
     "different columns"),
    ("p.tsv", b"a\tb\nc\td\na\te\n", {}, "{p}: too few pairs to split into training, validation "
     "and test: found 2 distinct sources, at least 10 are needed"),
    ("p.tsv", b"a\tb\n", {}, "{p}: too few pairs to split into training, validation and test: "
     "found 1 distinct source, at least 10 are needed"),
    ("p.tsv", TWELVE, {"limit": 9}, "a limit of 9 leaves too few pairs to split: at least 10 "
     "distinct sources are needed"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "options", "message"), BAD)
def test_bad_input(
    tmp_path: Path, name: str, content: bytes, options: dict[str, str | int], message: str
) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises(InputError) as caught:
        load_task(DataOptions(path, **options))  # type: ignore[arg-type]
    assert str(caught.value) == message.replace("{p}", str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda packed: packed[:-12], "this gzip file is cut short; download or pack it again"),
        (
            lambda _: TWELVE,
            "this is not a whole gzip file; pack it again, or take .gz off its name if it is not "
            "packed",
        ),
        (
            lambda packed: packed[:12] + b"\xff" * 8 + packed[20:],
            "this is not a whole gzip file; pack it again, or take .gz off its name if it is not "
            "packed",
        ),
    ],
)
def test_damaged_gzip(tmp_path: Path, damage: object, message: str) -> None:
    path = tmp_path / "p.tsv.gz"
    path.write_bytes(damage(gzip.compress(TWELVE)))  # type: ignore[operator]
    with pytest.raises(InputError) as caught:
        read_pairs(path)
    assert str(caught.value) == f"{path}: {message}"


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_pairs(tmp_path / "none.tsv")
    assert str(caught.value) == f"{tmp_path / 'none.tsv'}: there is no such file; check the name"
    with pytest.raises(InputError) as caught:
        read_pairs(tmp_path)
    assert str(caught.value) == f"{tmp_path}: this is a directory; give a file of pairs"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError(13, "x"), "no permission to read this file; change it, or give a copy"),
        (OSError(5, "Input/output error"), "cannot be read (Input/output error)"),
    ],
)
def test_unreadable(monkeypatch: pytest.MonkeyPatch, error: OSError, message: str) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(opening.os, "stat", refuse)
    with pytest.raises(InputError) as caught:
        read_pairs("p.tsv")
    assert str(caught.value) == f"p.tsv: {message}"


def test_columns_of_the_dates() -> None:
    with pytest.raises(InputError, match="columns can be chosen only in a file of pairs"):
        load_task(DataOptions(source=2))


def test_rows_come_before_the_file_is_read_to_its_end(tmp_path: Path) -> None:
    rows = iter(Reader(write(tmp_path, "p.tsv", b"a\tb\r\n" + b"\xff\n"), None, DataOptions()))
    assert next(rows) == ("a", "b")
    with pytest.raises(InputError, match="line 2"):
        next(rows)


def split(examples: list[Example], seed: int) -> Split:
    grouped = group((e.source, reference) for e in examples for reference in e.references)
    return split_examples(grouped, {}, seed)


SOURCES = st.text(alphabet="ab e\u0301é\u00a0", max_size=6)
EXAMPLES = st.lists(
    st.builds(Example, SOURCES, st.lists(SOURCES, min_size=1, max_size=3).map(tuple)), max_size=60
)


@pytest.mark.slow
@given(EXAMPLES, st.integers(0, 5))
def test_split(examples: list[Example], seed: int) -> None:
    pairs = {(normalise(e.source), normalise(r)) for e in examples for r in e.references}
    sources = {source for source, _ in pairs}
    if len(sources) < 10:
        with pytest.raises(InputError, match="too few pairs to split"):
            split(examples, seed)
        return
    parts = split(examples, seed)
    assert split(examples, seed) == parts
    found = [e.source for part in parts for e in part]
    assert sorted(found) == sorted(sources)  # each source is in one part
    assert {(e.source, r) for part in parts for e in part for r in e.references} == pairs
    assert len(parts[1]) == len(parts[2]) == max(1, len(sources) // 10)


def test_split_depends_on_the_seed_and_bounds_what_is_held_out() -> None:
    examples = [Example(str(n), ("x",)) for n in range(12_000)]
    train, valid, test = split(examples, 0)
    assert (len(train), len(valid), len(test)) == (10_000, MOST_HELD_OUT, MOST_HELD_OUT)
    assert split(examples, 1)[2] != test


def test_task_of_a_file(tmp_path: Path) -> None:
    task = load_task(DataOptions(write(tmp_path, "eng-fra.tsv", TWELVE), split_seed=1))
    assert task.name == "eng-fra"
    assert task.description == "eng-fra.tsv: column 1 → column 2"
    assert [len(task.train), len(task.valid), len(task.test)] == [10, 1, 1]
    assert load_task(DataOptions(tmp_path / "eng-fra.tsv", split_seed=1)) == task
    assert load_task(DataOptions(tmp_path / "eng-fra.tsv", unit="word")).unit == "word"


def test_limit(tmp_path: Path) -> None:
    path = write(tmp_path, "p.tsv", b"".join(b"s%d\tt%d\n" % (n, n) for n in range(100)))
    chosen = []
    for seed in (0, 0, 1):
        task = load_task(DataOptions(path, split_seed=seed, limit=20))
        chosen.append({e.source for part in (task.train, task.valid, task.test) for e in part})
        assert len(chosen[-1]) == 20
    assert chosen[0] == chosen[1] != chosen[2]
    assert len(load_task(DataOptions(path, limit=1000)).train) == 80


def test_units_do_not_depend_on_the_split(tmp_path: Path) -> None:
    """Three quarters of all words recur; among those of a training part, a few more or less."""
    path = tmp_path / "pairs.tsv"
    lines = [f"it is a{n} b{n}" if n % 2 else f"it is {n % 7} {n % 9}" for n in range(100)]
    path.write_text("".join(f"{line}\t{line}\n" for line in lines), encoding="utf-8")
    assert {load_task(DataOptions(path, split_seed=seed)).unit for seed in range(8)} == {"word"}


def test_a_close_choice_of_units_is_said(tmp_path: Path) -> None:
    once = [f"it is {n} here\tit is {n} here" for n in range(100)]  # 75 % of the words recur
    for lines, close in (
        (once, True),
        ([f"it is {n % 9} {n % 7}\tit is here" for n in range(63)], False),
    ):
        path = tmp_path / "pairs.tsv"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        task = load_task(DataOptions(path))
        assert task.unit == ("word" if close else task.unit)
        said = any("75.0 % of words recur" in line for line in summary_lines(task.summary))
        assert said is close
        chosen = load_task(DataOptions(path, unit="word")).summary
        assert "recurring" not in chosen


@pytest.mark.parametrize("unit", ["word", "character", "bpe"])
def test_items_out_of_reach_are_counted(unit: Unit, tmp_path: Path) -> None:
    train, test = tmp_path / "train.tsv", tmp_path / "test.tsv"
    train.write_text("".join(f"a{n}\tone two{n % 5}\n" for n in range(20)), encoding="utf-8")
    rows = ["b\tone two1", "c\ttwo1 one two2", "d\tone2", "e\tonetwo", "f\tone é"]
    test.write_text("\n".join(rows) + "\n", encoding="utf-8")
    task = load_task(DataOptions(train, test=test, unit=unit))
    data = encode(task)
    assert data.out_of_reach == {"word": 3, "character": 1, "bpe": 3}[unit]
    lines = "\n".join(summary_lines(task.summary, data.too_long, data.out_of_reach))
    assert f"{data.out_of_reach} of 5 test items cannot be answered" in lines
    assert ("--unit bpe" in lines) == (unit == "word")
    assert "cannot be answered" not in "\n".join(summary_lines(task.summary, data.too_long))


SENTENCES = [f"{a} {b} {c}" for a in ("I", "you") for b in ("see", "hear") for c in ("it", "her")]


@pytest.mark.parametrize(
    ("pairs", "unit"),
    [
        ([(s, s) for s in SENTENCES], "word"),
        ([(s, "one") for s in SENTENCES], "character"),  # single words on one side
        ([(f"{n} mars 1987", f"1987 3 {n}") for n in range(28)], "character"),  # 3 of 9 + words
        ([(f"{n}", f"{n}") for n in range(20)], "character"),
        ([("今日は雨です", "Regen"), ("明日は雪です", "Schnee")], "character"),
        ([("one two", "un deux"), ("three four", "trois quatre")], "character"),  # nothing recurs
    ],
)
def test_unit(pairs: list[tuple[str, str]], unit: str) -> None:
    assert choose_unit([Example(source, (target,)) for source, target in pairs]) == unit
