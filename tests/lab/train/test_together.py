"""Several processes train a model to the numbers of one process, within rounding."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from anyscore.lab.data.numbers import NumberedPairs
from anyscore.lab.train.batches import Pairs
from anyscore.lab.train.together import ALONE, Group, joined
from helpers.hang import HANG
from lab import trained_together
from lab.command_line import SMALL, call, plain

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
ENVIRONMENT = dict(os.environ) | {"OMP_NUM_THREADS": "1", "COLUMNS": "80"}


def test_without_torchrun_a_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with joined("cpu") as group:
        assert group == ALONE


def test_shards_make_the_batch_and_weigh_what_their_tokens_do() -> None:
    pairs = Pairs(
        NumberedPairs([(5,) * n for n in range(1, 6)], [(6,) * n for n in range(1, 6)]),
        torch.device("cpu"),
    )
    rows = torch.tensor([0, 1, 2, 4])
    parts = [Group(rank, 2).shard(pairs, rows) for rank in range(2)]
    assert [batch.tokens for batch, _ in parts] == [1 + 3, 2 + 5]
    assert [weight for _, weight in parts] == [4 / 11, 7 / 11]
    batch, weight = Group(1, 2).shard(pairs, rows[:1])  # no row is left for rank 1
    assert (batch.tokens, weight) == (1, 0.0)
    assert ALONE.shard(pairs, rows)[1] == 1.0


def two(*arguments: str) -> list[subprocess.Popen[str]]:
    """Start Python twice with these arguments and torchrun's environment variables."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    told |= {"WORLD_SIZE": "2"}
    return [
        subprocess.Popen(
            [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=ENVIRONMENT | told | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]  # fmt: skip


def test_two_processes_train_what_one_trains(tmp_path: Path) -> None:
    """Every model and score agrees; parts of a batch differ in tokens, and one has no pair."""
    file = str(tmp_path / "found")
    processes = two(str(trained_together.__file__), file)
    one = trained_together.trained(ALONE)
    for process in processes:
        _, error = process.communicate()
        assert process.returncode == 0, error
    size, found = torch.load(file, weights_only=True)
    assert size == 2
    assert list(found) == trained_together.trials()
    for name, (losses, parameters) in one.items():
        torch.testing.assert_close(found[name][0], losses, rtol=0, atol=2e-6, msg=str(name))
        # Adam divides by the gradient's size: a gradient of rounding alone gives steps of any size.
        torch.testing.assert_close(found[name][1], parameters, rtol=0, atol=3e-4, msg=str(name))


@pytest.fixture
def arguments(pairs: Path, tmp_path: Path) -> list[str]:
    given = ("compare", pairs, "--scores", "dot,additive", *SMALL, "--dropout", "0")
    return [str(x) for x in (*given, "--out", tmp_path / "run")]


def test_compare_under_torchrun(arguments: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [*TORCHRUN, "-m", "anyscore", *arguments], env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("dot, seed 1: done") == 1  # the other process is silent
    trials = tmp_path / "run" / "trials"
    found = {x.name: json.loads((x / "trial.json").read_text()) for x in trials.iterdir()}
    assert {name: x["facts"]["processes"] for name, x in found.items()} == dict.fromkeys(
        ("dot-seed0", "dot-seed1", "additive-seed0", "additive-seed1"), 2
    )
    other = [*arguments[:-1], str(tmp_path / "one")]
    assert call(*other).exit_code == 0
    for name, x in found.items():
        alone = json.loads((tmp_path / "one" / "trials" / name / "trial.json").read_text())
        assert "processes" not in alone["facts"]
        for mine, theirs in zip(x["epochs"], alone["epochs"], strict=True):
            assert mine["valid_loss"] == pytest.approx(theirs["valid_loss"], abs=2e-6)
            assert mine["train_loss"] == pytest.approx(theirs["train_loss"], abs=2e-6)


def wait_until_it_trains(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    while "Ctrl-C" not in process.stdout.readline():
        assert process.poll() is None
    time.sleep(1)


@pytest.mark.weekly
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the processes")
def test_ctrl_c_ends_all_processes_with_a_report(arguments: list[str], tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*TORCHRUN, "-m", "anyscore", *arguments, "--epochs", "60000"],
        env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_until_it_trains(process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=HANG)
    assert "Interrupted: the results cover the finished trials" in plain(out)
    assert (tmp_path / "run" / "report.html").exists()
    assert not any(Path(f"/proc/{child}").exists() for child in children)


@pytest.mark.weekly
def test_a_process_that_is_lost_ends_the_other(arguments: list[str]) -> None:
    first, second = two("-m", "anyscore", *arguments, "--epochs", "60000")
    wait_until_it_trains(first)
    second.kill()
    second.communicate()
    try:
        _, error = first.communicate(timeout=HANG)
    finally:
        first.kill()
        first.communicate()
    assert first.returncode == 1
    assert "anyscore: process 1 of 2 cannot go on" in plain(error)
    assert "Traceback" not in error


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"--engine": "ray"}, "under torchrun all processes train one model at a time"),
    ({"--jobs": "2"}, "under torchrun all processes train one model at a time"),
    ({"--out": "-"}, "under torchrun there is no standard input; give a file"),
]


@pytest.mark.parametrize(("options", "said"), REFUSED)
def test_what_torchrun_does_not_go_with(
    options: dict[str, str], said: str, pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    source = "-" if "--out" in options else pairs
    more = [x for pair in options.items() for x in pair if "--out" not in options]
    result = call("compare", source, *more)
    assert result.exit_code == 2
    assert said in plain(result.stderr)
