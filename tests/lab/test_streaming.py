"""What memory does not hold is kept on disk, and gives the same data, numbers and folder."""

from __future__ import annotations

import gzip
import json
import os
import random
import threading
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import SMALL, call, check_refused, plain
from hypothesis import given
from hypothesis import strategies as st

from anyscore.lab.built_in import _fingerprint, _fingerprint_of_all, _shared
from anyscore.lab.data import counts, numbers, summary, tokenisers
from anyscore.lab.data.encoding import Encoded, encode
from anyscore.lab.data.examples import StoredExamples
from anyscore.lab.data.memory import Budget
from anyscore.lab.data.numbers import NumberedPairs, Pair
from anyscore.lab.data.options import DataOptions
from anyscore.lab.data.pairs import Example, group
from anyscore.lab.data.summary import summary_lines
from anyscore.lab.data.task import Task, load_task, read_pairs, split
from anyscore.lab.train.batches import Pairs, shuffled
from anyscore.lab.train.models import build_model
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.training import train

LEAST = 2_000  # bytes: a few texts
SETTINGS = Settings(hidden=8, epochs=2, batch_size=16)


def spill(monkeypatch: pytest.MonkeyPatch, memory: int = LEAST) -> None:
    """From here on, memory has this many bytes for texts, and all else is short too."""
    monkeypatch.setattr("anyscore.lab.data.pairs.Budget", lambda: Budget(memory))
    monkeypatch.setattr(counts, "_MOST", 500)
    monkeypatch.setattr(counts, "_TOGETHER", 7)
    monkeypatch.setattr(numbers, "_TOGETHER", 11)


def rows(count: int = 300, sources: int = 90) -> list[tuple[str, str]]:
    """Pairs whose sources come again far apart, in other spellings, with other targets."""
    luck = random.Random(1)
    found = []
    for _ in range(count):
        n = luck.randrange(sources)
        source = luck.choice(["café {} a", "cafe\u0301  {} a", " café\u00a0{} a"]).format(n)
        found.append((source, " ".join(f"mot{luck.randrange(12)}" for _ in range(n % 4 + 1))))
    return found


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{s}\t{t}\n" for s, t in rows()), encoding="utf-8")
    return path


def same(one: Task, other: Task) -> None:
    assert isinstance(other.train, StoredExamples)
    assert not isinstance(one.train, StoredExamples)
    assert list(other.train) == one.train
    for name, value in vars(one).items():
        assert name == "train" or getattr(other, name) == value


def same_numbers(one: Encoded, other: Encoded) -> None:
    assert other.on_disk
    assert not one.on_disk
    for name, value in vars(one).items():
        found = getattr(other, name)
        assert list(found) == list(value) if isinstance(value, NumberedPairs) else found == value


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"unit": "word", "split_seed": 3},
        {"unit": "bpe", "subwords": 60},
        {"target_unit": "label"},
        {"limit": 40},
        {"limit": 10**30},
        {"max_tokens": 11, "unit": "character"},
        {"own": True},
    ],
    ids=str,
)
def test_disk_gives_what_memory_gives(
    table: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    options = dict(options)
    if options.pop("own", False):
        own = table.with_name("test.tsv")
        own.write_text("café 3 a\tmot1\nnew one\tmot2\nnew one\tmot2\n", encoding="utf-8")
        options |= {"valid": own, "test": own}
    given = DataOptions(table, **options)
    task = load_task(given)
    data = encode(task)
    spill(monkeypatch)
    stored = load_task(given)
    same(task, stored)
    found = encode(stored)
    same_numbers(data, found)
    assert data.too_long == found.too_long
    told = [_shared(x, y, SETTINGS, 0) for x, y in ((task, data), (stored, found))]
    assert told[0] == told[1]
    assert told[0]["task"]["pairs_checksum"] == _fingerprint(
        [vars(x) for x in (*data.train, *data.valid, *data.test)]
    )


@given(
    pairs=st.lists(st.tuples(st.sampled_from("abcdeé"), st.sampled_from("xyz")), max_size=40),
    limit=st.none() | st.integers(1, 7),
    memory=st.integers(0, 12_000),
    seed=st.integers(0, 3),
)
def test_pairs_are_grouped_alike(
    pairs: list[tuple[str, str]], limit: int | None, memory: int, seed: int
) -> None:
    """Wherever in the file memory ends, with a limit or without."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for free in (2**40, memory):
            patch.setattr("anyscore.lab.data.pairs.Budget", lambda free=free: Budget(free))
            counts: Counter[str] = Counter()
            examples = group(pairs, limit=limit, seed=seed, counts=counts)
            found.append((list(examples), counts["repeated"]))
    assert found[0] == found[1]


def test_ties_of_checksums_are_broken_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyscore.lab.data.pairs._checksum", lambda source, seed: b"\xff" * 8)
    pairs = [(f"s{n % 17}", f"t{n}") for n in range(60)]
    held = group(pairs, limit=5)
    monkeypatch.setattr("anyscore.lab.data.pairs.Budget", lambda: Budget(3000))
    stored = group(pairs, limit=5)
    assert isinstance(stored, StoredExamples)
    assert list(stored) == held


def test_every_kind_of_input_streams(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load_task(DataOptions(table)).train
    spill(monkeypatch)
    packed = table.with_name("p.tsv.gz")
    packed.write_bytes(gzip.compress(table.read_bytes()))
    sides = [table.with_name(name) for name in ("sources.txt", "targets.txt")]
    for path, side in zip(sides, zip(*rows(), strict=True), strict=True):
        path.write_text("\n".join(side), encoding="utf-8")
    lines = table.with_name("p.jsonl")
    lines.write_text("\n".join(json.dumps({"s": s, "t": t}) for s, t in rows()))
    pipe = table.with_name("pipe")
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(table.read_bytes()))
    writer.start()
    for path in (packed, sides[0], lines, pipe):
        found = load_task(DataOptions(path, sides[1] if path == sides[0] else None)).train
        assert isinstance(found, StoredExamples)
        assert list(found) == expected
    writer.join()


def test_stored_examples_are_a_sequence(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = read_pairs(table)
    spill(monkeypatch)
    stored = read_pairs(table)
    count = len(held)
    assert len(stored) == count == len(set(stored))
    assert [stored[0], stored[-1], *stored[3:9][-2:]] == [held[0], held[-1], *held[3:9][-2:]]
    for part in (slice(3, 9), slice(None, 4), slice(-5, None), slice(9, 3), slice(None, None, -7)):
        assert list(stored[part]) == list(held[part])
    with pytest.raises(IndexError):
        stored[count]
    assert split(stored, 1)[1:] == split(held, 1)[1:]
    assert held[5] in stored
    assert Example("never", ("seen",)) not in stored


def test_training_is_the_same_to_the_bit(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def losses() -> list[tuple[float, float]]:
        data = encode(load_task(DataOptions(table)))
        model = build_model("additive", data, SETTINGS, 0)
        return [(e["train_loss"], e["valid_loss"]) for e in train(model, data, SETTINGS, seed=0)]

    held = losses()
    spill(monkeypatch)
    assert losses() == held


def test_batches_are_the_same(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    held = encode(load_task(DataOptions(table))).train
    spill(monkeypatch)
    stored = encode(load_task(DataOptions(table))).train
    every = [Pairs(x, device) for x in (held, stored, list(held))]
    for rows in shuffled(every[0].sources.lengths, 8, 5):
        batches = [asdict(pairs.batch(rows)) for pairs in every]
        for name, expected in batches[0].items():
            for batch in batches[1:]:
                assert torch.equal(torch.as_tensor(batch[name]), torch.as_tensor(expected))
        assert batches[0]["source"].dtype == torch.int64


def without_times(x: Any) -> Any:
    """A record without what differs from run to run."""
    if isinstance(x, dict):
        left_out = ("seconds", "step_ms", "created", "command", "machine", "peak_memory_mib")
        left_out += ("sentences",)  # of the time of a step, too
        return {k: without_times(v) for k, v in x.items() if k not in left_out}
    return [without_times(v) for v in x] if isinstance(x, list) else x


def test_the_whole_comparison_is_the_same(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With trials in two processes; so what was begun in memory can go on with data on disk."""
    outs = table.with_name("held"), table.with_name("stored")

    def compare(out: Path) -> Any:
        options = ("--scores", "dot,additive", *SMALL, "--seeds", "1", "--jobs", "2")
        result = call("compare", table, *options, "--out", out)
        assert result.exit_code == 0, result.output
        return result

    compare(outs[0])
    spill(monkeypatch)
    place = table.with_name("temporary")
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    told = plain(compare(outs[1]).output)
    assert f"kept on disk: what is trained on, in {place}; memory does not hold it" in told
    for path in sorted(outs[0].rglob("*.*")):
        other = outs[1] / path.relative_to(outs[0])
        if path.suffix == ".json":
            one, two = (without_times(json.loads(x.read_text())) for x in (path, other))
            assert one == two, path
        elif path.suffix == ".safetensors":
            assert path.read_bytes() == other.read_bytes()


def test_ray_is_refused(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    spill(monkeypatch)
    options = ("--engine", "ray", "--scores", "dot", *SMALL, "--out", table.with_name("run"))
    check_refused(call("compare", table, *options), "--engine ray: the training data do not fit")
    assert not table.with_name("run").exists()


def test_subwords_are_made_of_so_many_characters(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = DataOptions(table, unit="bpe", subwords=80)
    read: list[str] = []
    marked = tokenisers.marked
    monkeypatch.setattr(tokenisers, "marked", lambda text: read.append(text) or marked(text))
    load_task(replace(options, source_unit="word"))
    every = len(read)
    for module in (tokenisers, summary):
        monkeypatch.setattr(module, "LEARNT_FROM", 100)
    read.clear()
    task = load_task(replace(options, source_unit="word"))
    assert len(read) < every
    assert "subwords are made of the first 100 characters of a side" in "; ".join(
        summary_lines(task.summary)
    )


@pytest.mark.parametrize("count", [0, 1, 1000, 2001])
def test_the_checksum_is_that_of_all_at_once(count: int) -> None:
    pairs = [Pair((4, n), (n, 2)) for n in range(count)]
    assert _fingerprint_of_all(iter(pairs)) == _fingerprint([vars(x) for x in pairs])
