"""The command line as a user meets it."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import SMALL, call, check_help_does_not_wait_for_pytorch, plain
from typer.testing import Result

import anyscore
from anyscore.lab.places import plans
from anyscore.layers import SCORES


def test_compare_ends_with_a_table_words_and_the_report(pairs: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = call("compare", pairs, "--scores", "additive,scaled_dot", "--out", out, *SMALL)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    metrics = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    assert [record["name"] for record in metrics["scores"]] == ["additive", "scaled_dot"]
    assert metrics["settings"]["epochs"] == 1
    assert "additive    epoch 1/1" in result.output
    assert "scaled_dot  tested: exact" in result.output
    assert "parameters" in result.output
    assert "Recommendation" in result.output
    assert f"Report: {out / 'report.html'}" in plain(result.output)


def test_columns_unit_seed_and_limit_reach_the_run(pairs: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ("--source", "2", "--target", "1", "--unit", "character", "--seed", "5")
    result = call(
        "compare", pairs, "--scores", "dot", "--limit", "20", *options, "--out", out, *SMALL
    )
    assert result.exit_code == 0, result.output
    metrics = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    task = metrics["task"]
    assert task["unit"] == "character"
    assert task["train"] + task["valid"] + task["test"] == 20
    assert metrics["settings"]["seed"] == 5
    assert "".join(metrics["scores"][0]["examples"][0]["source"]).isupper()


def test_dates_need_no_file_and_the_folder_is_named_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("compare", "--scores", "dot", "--limit", "40", *SMALL)
    assert result.exit_code == 0, result.output
    (folder,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"dates-\d{8}-\d{6}", folder.name)
    assert (folder / "report.html").exists()


BAD_INPUT: list[tuple[list[str], str]] = [
    (["--scores", "aditive"], "there is no score 'aditive'; did you mean additive? there are dot,"),
    (["--scores", "dot,GATv2"], "there is no score 'GATv2'; did you mean gatv2?"),
    (["--scores", "qqq"], "there is no score 'qqq'; there are dot, scaled_dot"),
    (["--scores", ","], "--scores: expected names, got none"),
    (["--scores", "dot,dot"], "dot given twice; give each score once"),
    (["--epochs", "0"], "--epochs: expected 1 or more, got 0"),
    (["--batch-size", "-3"], "--batch-size: expected 1 or more, got -3"),
    (["--hidden", "0"], "--hidden: expected 1 or more, got 0"),
    (["--epochs", "many"], "Invalid value for '--epochs'"),
    (["--seed", "-1"], "--seed: expected 0 to 2147483647, got -1"),
    (["--unit", "letter"], "--unit: expected auto, character or word, got 'letter'"),
    (["--limit", "3"], "a limit of 3 leaves too few pairs to split"),
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


def check_refused(result: Result, message: str) -> None:
    assert result.exit_code == 2
    said = plain(result.output)
    assert message in said
    assert "Traceback" not in said
    assert "epoch" not in result.stdout.replace("--epochs", "")
    if said.startswith("anyscore: "):  # our own lines; typer draws a box around its own
        assert len(result.stderr.strip().splitlines()) == 1


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
    check_refused(call("compare", pairs, "--out", tmp_path), "exists and is not empty")
    check_refused(call("compare", pairs, "--out", pairs), "expected a folder for the run, found a")
    check_refused(call("compare", pairs, "--out", "/proc/x"), "/proc/x: cannot be written to")


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

    monkeypatch.setattr("anyscore.lab.files.os.fsync", full)
    result = call("compare", pairs, "--scores", "dot", "--out", tmp_path / "run", *SMALL)
    assert result.exit_code == 1
    assert "the disk is full; free some space" in plain(result.stderr)
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_score_that_fails_makes_the_exit_status_1(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anyscore.lab.training.batch_loss", lambda model, batch: next(
        model.parameters()).sum() * float("nan"))  # fmt: skip
    out = tmp_path / "run"
    result = call("compare", pairs, "--scores", "dot", "--out", out, *SMALL)
    assert result.exit_code == 1
    assert "FAILED: the loss became nan in step 1" in result.output
    assert (out / "report.html").exists()


def test_help_teaches() -> None:
    result = call("--help")
    assert result.exit_code == 0
    assert "compare" in result.output
    assert "info" in result.output
    result = call("compare", "--help", width=80)
    assert result.exit_code == 0
    for example in ("anyscore compare\n", "anyscore compare pairs.tsv --scores all --epochs 20"):
        assert any(
            line.rstrip().endswith(example.strip()) for line in result.output.splitlines()
        ), example
    for option in ("--scores", "--seed", "--epochs", "--batch-size", "--hidden", "--device",
                   "--out", "--source", "--target", "--unit", "--limit"):  # fmt: skip
        assert option in result.output
    assert max(map(len, result.output.splitlines())) <= 80


def test_no_arguments_is_help() -> None:
    assert "Usage" in call().output


def test_version() -> None:
    result = call("--version")
    assert result.exit_code == 0
    assert result.output == f"anyscore {anyscore.__version__}\n"


def test_info_says_what_runs_where_and_why() -> None:
    result = call("info")
    assert result.exit_code == 0, result.output
    said = plain(result.output)
    assert "PyTorch" in said
    assert all(score in said for score in SCORES)
    assert "w·[q; k; q⊙k]" in said  # not taken for markup
    found = plans(["numpy", "torch", "jax", "tensorflow"])
    assert len(found) == 4
    for place, by_score in found.items():
        assert place in said
        for plan in by_score.values():
            assert plan.route in said
    assert max(map(len, result.output.splitlines())) <= 80


def test_a_framework_that_is_broken_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("raise ImportError('it is broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = plans(["jax", "numpy"])
    assert found["jax"] == "ImportError: it is broken"
    assert found["numpy"]["additive"].route == "cpu"


def test_help_does_not_wait_for_pytorch() -> None:
    check_help_does_not_wait_for_pytorch("compare")
