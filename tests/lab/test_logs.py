"""Logs for TensorBoard are read back without the package's code."""

from __future__ import annotations

import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from anyscore.lab import compare as compare_own
from anyscore.lab import extras
from anyscore.lab.engine import Event
from anyscore.lab.errors import InputError, TrialFailure
from anyscore.lab.logs import with_log
from anyscore.lab.session import Watcher
from anyscore.lab.trials import Outcome, Report, Trial
from lab.command_line import SMALL, call, plain
from lab.made_trials import made


def train(score: str, seed: int, report: Report) -> Outcome:
    for epoch in (1, 2):
        report({"step": epoch, "steps": 2})
        report({"epoch": epoch, "train_loss": 1 / epoch, "valid_loss": seed + 0.5, "note": "none"})
    return made(Trial(score, seed), items=50)


def compare(train: Any, scores: list[str], **how: Any) -> None:
    compare_own(train, scores, measure="exact_match", **how)


def scalars(folder: Path) -> tuple[dict[str, list[tuple[int, float]]], dict[str, Any]]:
    """Return an event file's numbers by tag, and hyperparameters, by TensorBoard's formats."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    found: dict[str, list[tuple[int, float]]] = {}
    settings: dict[str, Any] = {}
    (path,) = folder.glob("events.out.tfevents.*")
    data = path.read_bytes()
    while data:  # length, its checksum, content, its checksum
        (length,) = struct.unpack("<Q", data[:8])
        event, data = Event.FromString(data[12 : 12 + length]), data[16 + length :]
        for value in event.summary.value:
            if value.HasField("simple_value"):
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
            elif value.tag.endswith("session_start_info"):
                content = HParamsPluginData.FromString(value.metadata.plugin_data.content)
                for name, x in content.session_start_info.hparams.items():
                    settings[name] = getattr(x, x.WhichOneof("kind"))
    return found, settings


def test_tensorboard_finds_curves_results_and_settings(tmp_path: Path) -> None:
    out = tmp_path / "run"
    compare(train, ["even", "better"], seeds=2, out=out, settings={"width": 3}, log="tensorboard")
    folder = out / "tensorboard"
    assert {str(x.parent.relative_to(folder)) for x in folder.rglob("events*")} == {
        "even/seed0", "even/seed1", "better/seed0", "better/seed1",
    }  # fmt: skip
    found, settings = scalars(folder / "even" / "seed1")
    assert found["train_loss"] == [(1, 1.0), (2, 0.5)]
    assert found["valid_loss"] == [(1, 1.5), (2, 1.5)]
    right = sum(made(Trial("even", 1), items=50).measures["exact_match"]) / 50
    assert found["test_exact_match"] == [(0, pytest.approx(right))]
    assert set(found) == {"train_loss", "valid_loss", "test_exact_match"}
    assert settings == {"score": "even", "seed": 1, "width": 3}


def test_trials_from_before_the_log_are_in_it_too(tmp_path: Path) -> None:
    out = tmp_path / "run"
    compare(train, ["even"], seeds=1, out=out)
    compare(train, ["even"], seeds=2, out=out, log="tensorboard")
    found, _ = scalars(out / "tensorboard" / "even" / "seed0")
    assert found["train_loss"] == [(1, 1.0)]  # the losses that the trial kept
    before = {x: x.read_bytes() for x in (out / "tensorboard").rglob("events*")}
    compare(train, ["even"], seeds=2, out=out, log="tensorboard")
    assert {x: x.read_bytes() for x in (out / "tensorboard").rglob("events*")} == before


def test_nan_in_a_curve_is_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def train(score: str, seed: int, report: Any) -> list[float]:
        report({"epoch": 1, "valid_loss": float("nan")})
        return [1.0, 0.0]

    compare(train, ["a", "b"], seeds=2, out=tmp_path, log="tensorboard")
    assert not caplog.records


def test_an_attempt_that_failed_is_replaced(tmp_path: Path) -> None:
    out, failing = tmp_path / "run", [True]

    def fails(score: str, seed: int, report: Report) -> Outcome:
        report({"epoch": 1, "train_loss": 9.0})
        if failing:
            raise ValueError("no luck")
        return train(score, seed, report)

    with pytest.raises(TrialFailure, match="no luck"):
        compare(fails, ["even"], seeds=1, out=out, log="tensorboard")
    assert scalars(out / "tensorboard" / "even" / "seed0")[0] == {"train_loss": [(1, 9.0)]}
    failing.clear()
    compare(train, ["even"], seeds=1, out=out, log="tensorboard")
    found, _ = scalars(out / "tensorboard" / "even" / "seed0")
    assert found["train_loss"] == [(1, 1.0), (2, 0.5)]


@pytest.mark.parametrize("name", ["/{elsewhere}", "../../elsewhere", "..", "a/b", ".hidden"])
def test_curves_stay_in_the_folder_whatever_a_score_is_called(tmp_path: Path, name: str) -> None:
    """An unfinished attempt loses its files; a name that is a path removes no other files."""
    precious = tmp_path / "elsewhere" / "seed0" / "weights.bin"
    precious.parent.mkdir(parents=True)
    precious.write_text("precious")
    score = name.replace("/{elsewhere}", str(tmp_path / "elsewhere"))
    for seeds in (1, 2):
        compare(train, [score], seeds=seeds, out=tmp_path / "run", log="tensorboard")
    assert precious.read_text() == "precious"
    assert {x.name for x in tmp_path.iterdir()} == {"elsewhere", "run"}
    files = list(tmp_path.rglob("events.out.tfevents.*"))
    assert len(files) == 2
    assert {x.parent.parent.parent for x in files} == {tmp_path / "run" / "tensorboard"}


@pytest.mark.parametrize("place", ["tensorboard", "tensorboard/even", "tensorboard/even/seed0"])
def test_curves_stay_in_the_folder_whatever_links_are_in_it(tmp_path: Path, place: str) -> None:
    precious = tmp_path / "elsewhere" / "seed0" / "weights.bin"
    precious.parent.mkdir(parents=True)
    precious.write_text("precious")
    out = tmp_path / "run"
    compare(train, ["other"], seeds=1, out=out)
    (out / place).parent.mkdir(parents=True, exist_ok=True)
    (out / place).symlink_to(precious.parent if place.endswith("seed0") else tmp_path / "elsewhere")
    with pytest.raises(InputError, match="found a link"):
        compare(train, ["even"], seeds=1, out=out, log="tensorboard")
    assert [*tmp_path.rglob("elsewhere/**/*")] == [precious.parent, precious]


def test_a_log_hides_nothing_from_the_watcher() -> None:
    told: list[str] = []

    class Listener(Watcher):
        def __getattribute__(self, name: str) -> Any:
            return lambda *_: told.append(name)

    logged = with_log(Listener(), "tensorboard")
    logged.searches(["dot"], 3)
    logged.searched(Event("began", Trial("dot", 0), {}))
    logged.chosen({})
    logged.verdict({})
    logged.event(Event("progress", Trial("dot", 0), {"step": 1}))
    logged.interrupted()
    assert told == ["searches", "searched", "chosen", "verdict", "event", "interrupted"]


def test_the_command_line_logs(pairs: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = call(
        "compare", pairs, "--scores", "dot", *SMALL, "--out", out, "--log", "tensorboard", "--rates"
    )
    assert result.exit_code == 0, result.output
    found, settings = scalars(out / "tensorboard" / "dot" / "seed0-rate0.002")
    assert {"train_loss", "valid_loss", "valid_exact_match", "test_exact_match"} <= set(found)
    assert (settings["score"], settings["learning_rate"], settings["hidden"]) == ("dot", 0.002, 16)


@pytest.mark.parametrize(
    ("options", "package", "extra"),
    [
        (("--log", "tensorboard"), "tensorboardX", "tensorboard"),
        (("--engine", "ray"), "ray", "ray"),
    ],
)
def test_what_is_missing_is_told_in_a_line(
    pairs: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], package: str, extra: str
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == package else object())
    result = call("compare", pairs, *options)
    assert result.exit_code == 2
    assert f"{' '.join(options)}: needs the package '{package}'" in plain(result.stderr)
    assert f"pip install 'anyscore[{extra}]'" in plain(result.stderr)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--log", "wandb"), "--log: expected one of tensorboard, got 'wandb'"),
        (
            ("--log", "trackio"),
            "--log: expected one of tensorboard, got 'trackio'",
        ),  # a former choice
        (("--log", "a:x:b"), "got 'a:x:b'"),  # rich would draw a picture
        (("--engine", "slurm"), "--engine: expected one of processes, ray, got 'slurm'"),
        (("--address", "auto"), "--address: names a Ray cluster; give --engine ray too"),
    ],
)
def test_what_there_is_not_is_refused(pairs: Path, options: tuple[str, ...], said: str) -> None:
    result = call("compare", pairs, *options)
    assert result.exit_code == 2
    assert said in plain(result.stderr)


def test_the_packages_are_asked_for_by_their_names() -> None:
    assert find_spec("tensorboardX") is not None
    with pytest.raises(InputError, match="needs the package 'no_such'"):
        extras.check_installed("no_such", "--x", extra="y")


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    """The help and a comparison without options import none of the packages."""
    program = (
        "import sys, anyscore.lab.cli; assert 'scipy' not in sys.modules;"
        "import anyscore.lab.your_model;"
        "print(sorted({'ray', 'tensorboardX', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
