"""Published parts are used unchanged, samples are fair, and the summary is complete."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

from anyscore.lab.data.encoding import encode
from anyscore.lab.data.options import DataOptions
from anyscore.lab.data.pairs import Example, group
from anyscore.lab.data.summary import summary_lines
from anyscore.lab.data.task import load_task
from anyscore.lab.errors import InputError

pytestmark = pytest.mark.sample


@pytest.fixture
def train(tmp_path: Path) -> Path:
    path = tmp_path / "train.tsv"
    path.write_text("".join(f"s{n}\tt{n}\n" for n in range(40)))
    return path


@pytest.fixture
def test_file(tmp_path: Path) -> Path:
    path = tmp_path / "test.tsv"
    path.write_text("s1\tleak\nnew  one\ta\nnew one\tb\nnew one\tb\n")
    return path


AS_PUBLISHED = [
    Example("s1", ("leak",)),
    Example("new one", ("a",)),
    Example("new one", ("b",)),
    Example("new one", ("b",)),
]


def test_a_published_test_is_used_row_by_row(train: Path, test_file: Path) -> None:
    task = load_task(DataOptions(train, test=test_file))
    assert task.test == AS_PUBLISHED
    assert (len(task.train), len(task.valid)) == (36, 4)
    assert not {e.source for e in task.train} & {e.source for e in task.valid}
    assert task.summary["cut"] == ["valid"]


def test_both_parts_published(train: Path, test_file: Path) -> None:
    for seed in (0, 1):
        task = load_task(DataOptions(train, valid=test_file, test=test_file, split_seed=seed))
        assert (task.valid, task.test) == (AS_PUBLISHED, AS_PUBLISHED)
        assert [e.source for e in task.train] == [f"s{n}" for n in range(40)]
        assert task.summary["leaked"] == {"valid": 1, "test": 1}
    assert summary_lines(task.summary)[3] == (
        "1 of 4 validation sources and 1 of 4 test sources are in the training data too: they are "
        "kept, as published"
    )
    assert task.summary["repeats"] == {"valid": 2, "test": 2}
    assert summary_lines(task.summary)[5] == (
        "2 of 4 test sources repeat an earlier one: they are items of their own, as published, and "
        "intervals are too narrow"
    )
    task = load_task(DataOptions(train, valid=test_file, test=test_file, limit=3))
    assert len(task.train) == 3  # a limit is for the training data
    assert len(task.test) == 4


def test_published_parts_in_parallel_files(tmp_path: Path) -> None:
    paths = {}
    for name, lines in {"a.en": 20, "a.fr": 20, "t.en": 3, "t.fr": 3}.items():
        paths[name] = tmp_path / name
        paths[name].write_text("".join(f"{name} {n}\n" for n in range(lines)))
    task = load_task(
        DataOptions(
            paths["a.en"],
            paths["a.fr"],
            test=paths["t.en"],
            test_target=paths["t.fr"],
        )
    )
    assert task.description == "a.en → a.fr"
    assert task.test == [Example(f"t.en {n}", (f"t.fr {n}",)) for n in range(3)]
    assert [file["part"] for file in task.summary["files"]] == ["train", "train", "test", "test"]


def test_an_empty_test_file_is_refused(train: Path, tmp_path: Path) -> None:
    (tmp_path / "none.tsv").write_text("\n\n")
    with pytest.raises(InputError, match=r"none\.tsv: there are no pairs in this file"):
        load_task(DataOptions(train, test=tmp_path / "none.tsv"))


def test_a_sample_is_of_the_seed_and_not_of_the_order() -> None:
    pairs = [(f"s{n % 100}", f"t{n}") for n in range(300)]
    kept = group(pairs, limit=20, seed=3)
    assert len(kept) == 20
    assert group(pairs, limit=20, seed=3) == kept
    backwards = group(reversed(pairs), limit=20, seed=3)
    assert {e.source for e in backwards} == {e.source for e in kept}
    assert {e.source for e in group(pairs, limit=20, seed=4)} != {e.source for e in kept}
    assert all(len(e.references) == 3 for e in kept)  # none of a kept source's targets is lost
    assert group(pairs, limit=500) == group(pairs)


def test_every_source_is_as_likely_in_a_sample() -> None:
    pairs = [(f"s{n}", "t") for n in range(20)]
    counts = Counter(e.source for seed in range(1000) for e in group(pairs, limit=5, seed=seed))
    assert set(counts) == {source for source, _ in pairs}
    # Each source is expected 250 times, with a standard deviation of 13.7.
    assert all(180 < count < 320 for count in counts.values())


def test_summary(tmp_path: Path) -> None:
    path = tmp_path / "p.tsv"
    content = "".join(f"source {n}\tyes\n" for n in range(30)) + "source 1\tno\nsource 1\tno\n"
    path.write_text(content + "empty\t \n")
    task = load_task(DataOptions(path, skip_empty=True))
    summary = task.summary
    assert json.loads(json.dumps(summary)) == summary
    assert summary["files"] == [
        {
            "part": "train",
            "file": str(path),
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
    ]
    assert (summary["rows"], summary["pairs"], summary["sources"]) == (32, 31, 30)
    assert (summary["targets"], summary["several_targets"]) == (2, 1)
    assert summary["commonest_target"] == pytest.approx(30 / 31)
    assert (summary["repeated"], summary["empty"], summary["over_limit"]) == (1, 1, 0)
    assert summary["parts"] == {"train": 24, "valid": 3, "test": 3}
    assert summary["lengths"]["target"] == {
        "unit": "character", "median": 3, "p90": 3, "p99": 3, "longest": 3,
    }  # fmt: skip
    assert summary_lines(summary) == [
        "31 pairs of 30 different sources and 2 different targets; 97 % have the most frequent "
        "target",
        "24 sources for training, 3 for validation, 3 for testing; split by seed 0",
        "lengths: sources have a median of 9 characters, 99 % have at most 9, the longest 9; "
        "targets have a median of 3 characters, 99 % have at most 3, the longest 3",
        "left out: 1 repeated, 1 with an empty side",
        f"{path}: {path.stat().st_size} bytes, SHA-256 {summary['files'][0]['sha256'][:12]}…",
    ]


def test_the_checksum_is_that_of_the_file_as_it_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "p.csv.gz"
    path.write_bytes(gzip.compress("".join(f"s{n},t\n" for n in range(9999)).encode()))
    (facts,) = load_task(DataOptions(path, limit=50)).summary["files"]
    assert facts["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert facts["bytes"] == path.stat().st_size


def test_what_a_limit_leaves_out_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "p.tsv"
    path.write_text("".join(f"s{n % 50}\tt{n % 100}\n" for n in range(150)))
    summary = load_task(DataOptions(path, limit=20)).summary
    assert (summary["rows"], summary["sources"], summary["pairs"]) == (150, 20, 40)
    assert summary["repeated"] + summary["over_limit"] + summary["pairs"] == 150
    assert summary["repeated"] == 20


def test_what_is_too_long_is_left_out_and_said(train: Path, tmp_path: Path) -> None:
    test = tmp_path / "long.tsv"
    test.write_text("x\ty\nxxxx\ty\n")
    task = load_task(DataOptions(train, test=test, max_tokens=3))
    data = encode(task)
    assert (data.left_out, data.too_long) == (1, {"train": 0, "valid": 0, "test": 1})
    line = summary_lines(task.summary, data.too_long)[3]
    assert line == "left out: 1 with a side of more than 3 tokens, 1 of them for testing"


def test_one_target_for_all_is_said(tmp_path: Path) -> None:
    path = tmp_path / "p.tsv"
    path.write_text("".join(f"s{n}\tt\n" for n in range(50)))
    lines = summary_lines(load_task(DataOptions(path)).summary)
    assert lines[0].endswith("every target is the same, so there is nothing to learn")


def test_the_summary_of_the_dates() -> None:
    task = load_task(DataOptions(limit=100))
    assert task.summary["files"] == []
    assert (task.summary["rows"], task.summary["sources"]) == (100, 100)
    assert len(summary_lines(task.summary)) == 3
