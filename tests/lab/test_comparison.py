"""A comparison's folder holds whole trials; it is continued or refused, and damage is reported."""

from __future__ import annotations

import errno
import json
import multiprocessing as mp
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from anyscore.lab import comparison as store
from anyscore.lab.comparison import Comparison, check
from anyscore.lab.errors import InputError, RunFailure
from anyscore.lab.trials import Outcome, Trial
from lab.made_trials import made

pytestmark = pytest.mark.sample

SHARED = {"task": {"name": "made", "checksum": "ab12"}, "settings": {"epochs": 3}}
TRIAL = Trial("even", 3, 0.002)


@pytest.fixture
def kept(tmp_path: Path) -> Comparison:
    comparison = Comparison(tmp_path / "run")
    with comparison.opened(SHARED):
        comparison.keep(TRIAL, made(TRIAL))
    return comparison


def test_round_trip(kept: Comparison) -> None:
    (found,) = kept.finished()
    given = made(TRIAL)
    assert found.trial == TRIAL
    np.testing.assert_array_equal(found.measures["exact_match"], given.measures["exact_match"])
    np.testing.assert_array_equal(found.statistics["chrf"], given.statistics["chrf"])
    assert (found.outputs, found.epochs, found.facts) == (given.outputs, given.epochs, given.facts)
    assert kept.has(TRIAL)
    assert not kept.has(Trial("even", 3))
    assert kept.shared() == SHARED


@given(st.sampled_from(["a", "scaled_dot"]), st.integers(0, 2**31), st.none() | st.floats(1e-6, 9))
def test_names_tell_trials_apart(score: str, seed: int, rate: float | None) -> None:
    others = [Trial("b", seed, rate), Trial(score, seed + 1, rate), Trial(score, seed, 77.0)]
    assert Trial(score, seed, rate).name not in {x.name for x in others}


def test_the_same_settings_continue(kept: Comparison) -> None:
    with kept.opened(json.loads(json.dumps(SHARED))):
        kept.keep(Trial("even", 4), made(Trial("even", 4)))
    assert len(kept.finished()) == 2


def test_other_settings_are_refused_by_name(kept: Comparison) -> None:
    other = {"task": SHARED["task"], "settings": {"epochs": 4, "hidden": 8}}
    with pytest.raises(InputError) as refusal, kept.opened(other):
        pass
    assert "settings.epochs was 3, is 4" in str(refusal.value)
    assert "settings.hidden was not given, is 8" in str(refusal.value)
    assert "task" not in str(refusal.value)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("do not touch")
    with pytest.raises(InputError, match="expected a new or empty folder"):
        Comparison(tmp_path).opened(SHARED).__enter__()
    assert [x.name for x in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(InputError, match=r"found no settings\.json"):
        Comparison(tmp_path).shared()


def _hold(folder: Path, ready: Any, leave: Any) -> None:
    with Comparison(folder).opened(SHARED):
        ready.set()
        leave.wait(60)


@pytest.mark.slow
def test_a_folder_at_work_is_refused_and_free_again_when_its_process_dies(tmp_path: Path) -> None:
    context = mp.get_context("spawn")
    ready, leave = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(tmp_path / "run", ready, leave))
    process.start()
    assert ready.wait(60)
    comparison = Comparison(tmp_path / "run")
    with pytest.raises(InputError, match="another anyscore is at work"), comparison.opened(SHARED):
        pass
    process.kill()
    process.join()
    with comparison.opened(SHARED):
        pass


def test_a_locked_folder_without_settings_is_at_work(
    tmp_path: Path,
) -> None:
    """Another process may write any file between its lock and its settings."""
    with FileLock(tmp_path / "lock"):
        (tmp_path / ".settings.json.12").write_text("{")
        for _ in range(2):
            with (
                pytest.raises(InputError, match="another anyscore is at work"),
                Comparison(tmp_path).opened(SHARED),
            ):
                pass
            (tmp_path / "trials").mkdir(exist_ok=True)
    (tmp_path / "trials").rmdir()
    with Comparison(tmp_path).opened(SHARED):  # the process was killed: nothing is in the way
        assert json.loads((tmp_path / "settings.json").read_text())["shared"] == SHARED


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, 524])
def test_a_file_system_without_locks_is_named(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    message = r"its file system cannot lock files .*another one with --out"
    with pytest.raises(RunFailure, match=message), Comparison(tmp_path / "run").opened({}):
        pass


def test_other_files_beside_a_lock_are_other_files(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    (tmp_path / "thesis.txt").write_text("do not touch")
    with pytest.raises(InputError, match="found other files"), Comparison(tmp_path).opened(SHARED):
        pass
    assert {x.name for x in tmp_path.iterdir()} == {"lock", "thesis.txt"}


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("where", ["model", "items", "rename"])
def test_a_full_disk_leaves_no_half_of_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    comparison, trial = Comparison(tmp_path / "run"), Trial("even", 0)
    outcome = made(trial)
    with comparison.opened(SHARED):
        with monkeypatch.context() as patch:
            if where == "model":
                outcome.save = _full
            patch.setattr(store.os, "rename" if where == "rename" else "replace", _full)
            with pytest.raises(RunFailure, match="disk is full"):
                comparison.keep(trial, outcome)
        assert not comparison.names()
        assert list((comparison.folder / "trials").iterdir()) == []
        comparison.keep(trial, made(trial))
    assert len(comparison.finished()) == 1


def test_what_a_killed_process_left_is_removed(kept: Comparison) -> None:
    rest = kept.folder / "trials" / ".even-seed9.123"
    rest.mkdir()
    (rest / "items.json").write_text("{")
    assert kept.names() == {TRIAL.name}
    with kept.opened(SHARED):
        assert not rest.exists()


def test_a_trial_is_written_once(kept: Comparison) -> None:
    """A second outcome of the same trial does not replace the first."""
    other = made(TRIAL)
    other.facts = {"second": True}
    kept.keep(TRIAL, other)
    assert kept.finished()[0].facts == made(TRIAL).facts


def test_failures_are_kept_until_the_trial_succeeds(kept: Comparison) -> None:
    trial = Trial("even", 8)
    kept.fail(trial, "ValueError: no", "Traceback …")
    assert kept.failure(trial) == "ValueError: no"
    assert not kept.has(trial)
    kept.keep(trial, made(trial))
    assert kept.failure(trial) is None


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"format": 99}', '{"format": "x"}', '{"score": 1}', "\udcff"],
)
@pytest.mark.parametrize("file", ["trial.json", "items.json", "settings.json"])
def test_damage_is_one_line(kept: Comparison, content: str, file: str) -> None:
    place = kept.folder if file == "settings.json" else kept.folder_of(TRIAL)
    (place / file).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError) as damage:
        kept.shared() if file == "settings.json" else kept.finished()
    assert "\n" not in str(damage.value)
    assert str(place) in str(damage.value)


def _outcome(**changed: Any) -> Outcome:
    return Outcome(**({"measures": {"exact_match": [1.0, 0.0]}} | changed))


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (None, "expected an Outcome, got NoneType"),
        (_outcome(measures={}), "at least one measure"),
        (_outcome(measures={"x": []}), "one number per test item"),
        (_outcome(measures={"x": [[1.0]]}), r"got shape \(1, 1\)"),
        (_outcome(measures={"x": [1.0, float("nan")]}), "got nan for item 1"),
        (_outcome(measures={"x": [1.0], "y": [1.0, 2.0]}), r"same number of test items.*\[1, 2\]"),
        (_outcome(statistics={"chrf": [[1.0]]}), r"same number of test items.*\[1, 2\]"),
        (_outcome(statistics={"chrf": [1.0, 2.0]}), "rows of finite numbers"),
    ],
)
def test_outcomes_are_checked(outcome: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check(outcome)
