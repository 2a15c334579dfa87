"""Trials in processes give the files of this process, after any failure and any kill."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from anyscore.lab.comparison import Comparison
from anyscore.lab.engine import Event, run_here, run_processes
from anyscore.lab.errors import RunFailure
from anyscore.lab.trials import Trial
from helpers.hang import HANG
from lab.made_trials import Trainer

TRIALS = [Trial(score, seed) for seed in range(2) for score in ("worse", "even", "better")]


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file of every trial, by path."""
    found = (folder / "trials").rglob("*")
    return {str(x.relative_to(folder)): x.read_bytes() for x in found if x.is_file()}


def kinds(events: list[Event]) -> list[tuple[str, str]]:
    return [(x.trial.name, x.kind) for x in events if x.kind != "progress"]


@pytest.fixture
def here(tmp_path: Path) -> dict[str, bytes]:
    list(run_here(TRIALS, Trainer(), tmp_path / "here"))
    return contents(tmp_path / "here")


@pytest.mark.parametrize("jobs", [1, 3])
def test_processes_give_what_this_one_gives(
    tmp_path: Path, here: dict[str, bytes], jobs: int
) -> None:
    events = list(run_processes(TRIALS, Trainer(), tmp_path, jobs))
    assert contents(tmp_path) == here
    assert len(here) == 2 * len(TRIALS)
    for trial in TRIALS:
        mine = [x for x in events if x.trial == trial]
        assert [x.kind for x in mine] == ["began", *["progress"] * 3, "finished"]
        assert mine[1].details == {"step": 1, "steps": 3}


FAULTS = {
    "raises": "KeyError: 'no such\\nthing'",
    "killed": "perhaps for lack of memory",
    "exits": "its process ended with status 3",
    "nan": "got nan for item 0",
    "shape": "one number per test item",
    "nothing": "expected an Outcome, got NoneType",
    "memory": "there is not enough memory",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_trial_that_fails_leaves_the_others_alone(tmp_path: Path, fault: str) -> None:
    trials = [Trial(score, 0) for score in ("worse", "bad", "better")]
    events = list(run_processes(trials, Trainer(faults=(("bad", fault),)), tmp_path, 2))
    assert {x.trial.score: x.kind for x in events if x.kind in ("failed", "finished")} == {
        "worse": "finished", "bad": "failed", "better": "finished",
    }  # fmt: skip
    comparison = Comparison(tmp_path)
    assert comparison.names() == {"worse-seed0", "better-seed0"}
    reason = comparison.failure(trials[1])
    assert reason is not None
    assert FAULTS[fault] in reason
    if fault == "raises":
        text = (tmp_path / "failures" / "bad-seed0.txt").read_text()
        assert "Traceback" in text
        assert "made_trials.py" in text
    list(run_processes(trials[1:2], Trainer(), tmp_path, 1))  # the failed trial runs again
    assert comparison.failure(trials[1]) is None


def test_a_disk_that_is_full_ends_it(tmp_path: Path) -> None:
    (tmp_path / "trials").write_text("where a folder should be")
    with pytest.raises(RunFailure, match="cannot be written"):
        list(run_processes(TRIALS, Trainer(), tmp_path, 2))


def test_closing_ends_those_at_work(tmp_path: Path) -> None:
    events = run_processes(TRIALS, Trainer(seconds=2 * HANG), tmp_path, 2)
    assert next(events).kind == "began"
    begun = time.monotonic()
    events.close()  # type: ignore[attr-defined]
    assert time.monotonic() - begun < HANG
    assert Comparison(tmp_path).names() == set()


TESTS = str(Path(__file__).parents[1])
SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from lab.made_trials import Trainer
from anyscore.lab.comparison import Comparison
from anyscore.lab.engine import run_processes
from lab.test_engine import TRIALS
if __name__ == "__main__":
    comparison = Comparison(Path({folder!r}))
    with comparison.opened({{}}):
        missing = [x for x in TRIALS if not comparison.has(x)]
        for event in run_processes(missing, Trainer(seconds=0.05), comparison.folder, 2):
            print(event.kind, flush=True)
"""


@pytest.mark.weekly
def test_kills_at_any_moment_lose_nothing_that_is_finished(
    tmp_path: Path, here: dict[str, bytes]
) -> None:
    """Each run continues the last; in the end the files equal the files of an undisturbed run."""
    folder = tmp_path / "run"
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(tests=TESTS, folder=str(folder)))
    rng, before = random.Random(0), set[str]()
    for _ in range(40):
        process = subprocess.Popen(
            [sys.executable, str(script)], stdout=subprocess.PIPE, start_new_session=True
        )
        assert process.stdout is not None
        if process.stdout.readline():  # the run has begun
            time.sleep(rng.uniform(0, 0.3))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        names = Comparison(folder).names()
        assert before <= names
        for name in names:
            Comparison(folder).load(name)
        before = names
        if len(names) == len(TRIALS):
            break
    subprocess.run([sys.executable, str(script)], check=True, stdout=subprocess.PIPE)
    assert contents(folder) == here
