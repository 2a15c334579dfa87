"""The command line as a user meets it."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

import anyscore
from anyscore.lab.plans import plans
from anyscore.score import SCORES
from lab.command_line import SMALL, call, check_help_does_not_wait_for_pytorch, check_refused, plain

pytestmark = pytest.mark.sample


def record(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "comparison.json").read_text(encoding="utf-8"))
    return found


def test_compare_ends_with_a_table_words_and_the_report(pairs: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = call("compare", pairs, "--scores", "additive,scaled_dot", "--out", out, *SMALL)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    found = record(out)
    assert found["scores"] == ["additive", "scaled_dot"]
    assert found["seeds"] == [0, 1]
    assert found["settings"]["epochs"] == 1
    assert len(found["trials"]) == 4
    said = plain(result.output)
    assert "additive, seed 1: done" in said
    assert "scaled_dot" in said
    assert found["verdict"]["sentences"][0] in said
    assert f"Report: {out / 'report.html'}" in said
    assert (out / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.slow
def test_the_same_command_goes_on_and_more_add_to_it(pairs: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = call("compare", pairs, "--scores", "dot", "--out", out, *SMALL)
    assert first.exit_code == 0, first.output
    before = {x: x.read_bytes() for x in (out / "trials").rglob("*") if x.is_file()}
    more = ("--scores", "dot,additive", "--out", out, *SMALL, "--seeds", "3")
    second = call("compare", pairs, *more)
    assert second.exit_code == 0, second.output
    assert "2 of 6 trials have finished already" in plain(second.output)
    assert {x: x.read_bytes() for x in before} == before
    assert len(record(out)["trials"]) == 6
    again = call("compare", pairs, *more)
    assert "6 of 6 trials have finished already" in plain(again.output)
    other = call("compare", pairs, *more, "--hidden", "8", width=300)
    check_refused(other, "begun with other settings (settings.hidden was 16, is 8)")


@pytest.mark.slow
def test_options_reach_the_run(pairs: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ("--source", "2", "--target", "1", "--unit", "character", "--split-seed", "5")
    options += ("--seed", "7", "--learning-rate", "0.001", "--dropout", "0", "--rates")
    result = call(
        "compare", pairs, "--scores", "dot", "--limit", "20", "--out", out, *SMALL, *options
    )
    assert result.exit_code == 0, result.output
    found = record(out)
    task = found["task"]
    assert (task["unit"], task["source_unit"]) == ("character", "character")
    assert task["train"] + task["valid"] + task["test"] == 20
    assert found["seeds"] == [7, 8]
    assert found["settings"]["split_seed"] == 5
    assert (found["settings"]["learning_rate"], found["settings"]["dropout"]) == (0.001, 0)
    assert [x["learning_rate"] for x in found["trials"]].count(None) == 2
    assert {x["learning_rate"] for x in found["trials"]} == {None, 0.0005, 0.002}
    assert "".join(found["examples"][0]["source"]).isupper()


@pytest.mark.slow
def test_dates_need_no_file_and_the_folder_is_named_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # the same command, the same folder
        result = call("compare", "--scores", "dot", "--limit", "40", *SMALL)
        assert result.exit_code == 0, result.output
        (folder,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"dates-[0-9a-f]{8}", folder.name)
    assert (folder / "report.html").exists()


@pytest.mark.slow
def test_json_quiet_and_report(pairs: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = call("compare", pairs, "--scores", "dot", "--out", out, *SMALL, "--json")
    assert json.loads(result.stdout) == record(out)
    (out / "report.html").unlink()
    rebuilt = call("report", out, "--export", tmp_path / "tables")
    assert rebuilt.exit_code == 0, rebuilt.output
    assert rebuilt.stdout.endswith(f"\nTables and pictures: {tmp_path / 'tables'}\n")
    assert (out / "report.html").exists()
    assert {x.suffix for x in (tmp_path / "tables").iterdir()} >= {".csv", ".tex", ".json"}
    quiet = call("report", out, "--quiet")
    assert "┃" not in quiet.stdout
    assert record(out)["verdict"]["sentences"][0] in plain(quiet.stdout)
    check_refused(call("report", tmp_path / "none"), "expected the folder of a comparison")


BAD_INPUT: list[tuple[list[str], str]] = [
    (["--scores", "aditive"], "got 'aditive'; did you mean 'additive'?"),
    (["--scores", "dot,GATv2"], "got 'GATv2'; did you mean 'gatv2'?"),
    (["--scores", "qqq"], "--scores: expected one of dot, scaled_dot"),
    (["--scores", ","], "--scores: expected names, got none"),
    (["--scores", "dot,dot"], "dot given twice; give each score once"),
    (["--epochs", "0"], "--epochs: expected 1 to 65,536, got 0"),
    (["--batch-size", "-3"], "--batch-size: expected 1 to 65,536, got -3"),
    (["--hidden", "0"], "--hidden: expected 1 to 65,536, got 0"),
    (["--epochs", "many"], "Invalid value for '--epochs'"),
    (["--seed", "-1"], "--seed: expected 0 to 2147483646, got -1"),
    (["--seed", "2147483647"], "--seed: expected 0 to 2147483646, got 2147483647"),
    (["--unit", "letter"], "the unit: expected one of auto, character, word, token, bpe, label"),
    (["--scores", "bahdanau"], "got 'bahdanau'; did you mean 'additive'?"),
    (["--threads", "3000000000"], "--threads: expected 1 to 1,024, got 3000000000"),
    (["--hidden", str(10**30)], "--hidden: expected 1 to 65,536, got 1000000"),
    (["--seeds", "-1"], "--seeds: expected 1 to 10,000, got -1"),
    (["--minutes", "0"], "--minutes: expected more than 0, got 0"),
    (["--model", "resnet"], "resnet"),
    (["--source", "-1"], "columns are counted from 1, got -1"),
    (["--source", "1" * 5000], "got one of 5,000 digits"),
    (["--label", "3", "--target", "2"], "--label takes the place of --target"),
    (["--limit", "3"], "a limit of 3 leaves too few pairs to split"),
    (["--learning-rate", "nan"], "--learning-rate: expected more than 0, got nan"),
    (["--device", "gpu"], "--device: expected auto, cpu, cuda, cuda:N or mps, got 'gpu'"),
    (["--device", "cpu:2"], "--device: there is one cpu device, got 'cpu:2'; use cpu"),
    (["--device", "cuda:x"], "--device: expected auto, cpu, cuda, cuda:N or mps, got 'cuda:x'"),
    (["--target", "9"], "expected at least 9 columns"),
    (["--target", "fr"], 'there is no column "fr" in the header'),
    (["--colour", "red"], "No such option: --colour"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), BAD_INPUT, ids=lambda value: str(value)[:30])
def test_bad_input_is_one_clear_line(
    options: list[str], message: str, pairs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    result = call("compare", pairs, "--out", out, *options, width=300)
    check_refused(result, message)
    assert not out.exists()


BAD_FILES: list[tuple[bytes | None, str]] = [
    (None, "there is no such file"),
    (b"", "there are no pairs in this file"),
    (b"one\n" * 20, "line 1: expected at least 2 columns"),
    (b"a\tb\nc\t\n", "line 2: the target (column 2) is empty"),
    (b"a\tb\n\xff\xfec\td\n", "line 2: expected UTF-8, found the byte 0xff"),
    (b"\x1b[31ma\n", "found 1: \ufffd[31ma"),
    (b"a\0\tb\n", "line 1: expected text, found a NUL character at position 2"),
    (b"a\tb\nc\td\n", "too few pairs to split"),
    (b"".join(b"%d%s\tb\n" % (i, b"x" * 200) for i in range(40)), "more than 100 characters"),
]


@pytest.mark.parametrize(("content", "message"), BAD_FILES, ids=lambda value: str(value)[:30])
def test_a_bad_file_is_one_clear_line(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file.tsv"
    if content is not None:
        path.write_bytes(content)
    out = tmp_path / "run"
    check_refused(call("compare", path, "--out", out), message)
    assert not out.exists()


def test_an_output_folder_that_will_not_do_is_refused_before_training(
    pairs: Path, tmp_path: Path
) -> None:
    check_refused(call("compare", pairs, "--out", tmp_path), "expected a new or empty folder")
    check_refused(call("compare", pairs, "--out", ""), "--out: expected the name of a folder")
    for out in (pairs, "/proc/x"):
        result = call("compare", pairs, "--out", out, *SMALL)
        assert result.exit_code == 1
        assert f"anyscore: {out}: cannot be written" in plain(result.stderr)
        assert len(result.stderr.strip().splitlines()) == 1


def test_cuda_that_is_not_there_is_one_clear_line(
    pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    result = call("compare", pairs, "--device", "cuda")
    check_refused(result, "PyTorch finds no CUDA GPU here; use --device cpu")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    check_refused(call("compare", pairs, "--device", "cuda:2"), "expected cuda:0 to cuda:1, got")


def test_a_full_disk_is_one_clear_line(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    result = call("compare", pairs, "--scores", "dot", "--out", tmp_path / "run", *SMALL)
    assert result.exit_code == 1
    assert "the disk is full; free some space" in plain(result.stderr)
    assert len(result.stderr.strip().splitlines()) == 1


WILD = ("--learning-rate", "1e38", "--epochs", "9")


@pytest.mark.slow
def test_a_score_that_fails_makes_the_exit_status_1(pairs: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = call("compare", pairs, "--scores", "dot", "--out", out, *SMALL, *WILD, width=300)
    assert result.exit_code == 1
    assert "dot, seed 0: FAILED: the loss became nan" in plain(result.output)
    assert "dot with seed 0 failed: the loss became nan" in plain(result.output)
    assert (out / "report.html").exists()


def test_help_teaches() -> None:
    result = call("--help")
    assert result.exit_code == 0
    assert "compare" in result.output
    assert "info" in result.output
    result = call("compare", "--help", width=80)
    assert result.exit_code == 0
    for example in ("anyscore compare\n", "anyscore compare pairs.tsv --scores all --minutes 20"):
        assert any(
            line.rstrip().endswith(example.strip()) for line in result.output.splitlines()
        ), example
    for option in ("--scores", "--seed", "--epochs", "--batch-size", "--hidden", "--device",
                   "--out", "--source", "--target", "--unit", "--limit", "--minutes"):  # fmt: skip
        assert option in result.output
    assert max(map(len, result.output.splitlines())) <= 80


def test_no_arguments_is_help() -> None:
    assert "Usage" in call().output


def test_version() -> None:
    result = call("--version")
    assert result.exit_code == 0
    assert result.output == f"anyscore {anyscore.__version__}\n"


@pytest.mark.slow
def test_info_says_what_runs_where_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {}

    def noted(names: list[str]) -> dict[str, Any]:
        found.update(plans(names))
        return found

    monkeypatch.setattr("anyscore.lab.plans.plans", noted)
    result = call("info")
    assert result.exit_code == 0, result.output
    said = plain(result.output)
    assert "PyTorch" in said
    assert all(score in said for score in SCORES)
    assert "w·[q; k; q⊙k]" in said  # not taken for markup
    assert set(found) == {"numpy", "torch cpu", "jax cpu", "tensorflow"}
    for place, by_score in found.items():
        assert place in said
        for plan in by_score.values():
            assert plan.route in said
    assert max(map(len, result.output.splitlines())) <= 80


@pytest.mark.slow
def test_a_framework_that_is_broken_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("raise ImportError('it is broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = plans(["jax", "numpy"])
    assert found["jax"] == "ImportError: it is broken"
    assert found["numpy"]["additive"].route == "cpu"


@pytest.mark.slow
def test_help_does_not_wait_for_pytorch() -> None:
    check_help_does_not_wait_for_pytorch("compare")
