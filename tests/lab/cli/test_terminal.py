"""The command line on terminals, pipes and full disks, and when it is stopped."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from anyscore.lab import compare
from anyscore.lab.cli.output import print_json
from anyscore.lab.comparison import Comparison
from anyscore.lab.console import PlainConsole
from anyscore.lab.engine import Event
from anyscore.lab.phrases import visible
from anyscore.lab.rounds import Plan
from anyscore.lab.terminal import TerminalWatcher, show_outcome
from anyscore.lab.trials import Trial
from anyscore.score import SCORES
from helpers.hang import HANG
from lab.command_line import SMALL, call, check_quiet_when_its_reader_leaves, plain, start
from lab.sample_comparison import sample_comparison


def test_output_that_is_no_terminal_has_no_control_characters_and_fits(
    pairs: Path, tmp_path: Path
) -> None:
    result = call("compare", pairs, "--scores", "all", "--out", tmp_path / "run", *SMALL)
    assert result.exit_code == 0, result.output
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", result.output)
    start = result.output.index("┏")
    table = result.output[start : result.output.index("└")]
    assert max(map(len, table.splitlines())) <= 80
    assert all(score in table for score in SCORES)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
@pytest.mark.parametrize("command", ["info", "compare"])
def test_output_that_cannot_be_written_is_one_clear_line(
    command: str, pairs: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    arguments = [pairs, "--out", run, *SMALL] if command == "compare" else ["--quiet"]
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "anyscore", command, *map(str, arguments)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert result.returncode == 1
    assert re.fullmatch(r"anyscore: the output cannot be written \(.*\)\n", result.stderr)
    if command == "compare":  # no finished trial is lost
        assert (run / "report.html").stat().st_size > 1000
        assert len(list((run / "trials").iterdir())) == 10


def test_a_reader_that_leaves_is_no_reason_to_complain(pairs: Path, tmp_path: Path) -> None:
    process = start("compare", pairs, "--out", tmp_path / "run", *SMALL[2:], "--epochs", "100")
    check_quiet_when_its_reader_leaves(process, HANG)


@pytest.mark.parametrize("width", [80, 60])
def test_the_outcome_fits(width: int) -> None:
    record = sample_comparison()
    console = Console(width=width, file=io.StringIO())
    show_outcome(console, record, Path("run"))
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, said.splitlines())) <= width
    assert "…" not in said
    for one in record["verdict"]["standings"]:
        assert one["score"] in said
        assert f"{one['mean']:.1f}" in said
    assert record["verdict"]["sentences"][0] in plain(said)


@pytest.mark.parametrize(
    ("width", "left"), [(80, "0% 0:00:00 left -:--:--"), (40, "0% left -:--:--")]
)
def test_the_bar_fits(width: int, left: str) -> None:
    console = Console(width=width, file=io.StringIO(), force_terminal=True, _environ={})
    watcher = TerminalWatcher(console, Path("run"), [], 100)
    watcher.progress.update(watcher.task, total=5, description="scaled_dot")
    console.print(watcher.progress.get_renderable())
    said = plain(console.file.getvalue())  # type: ignore[attr-defined]
    assert len(said) <= width
    assert said.startswith("scaled_dot")
    assert said.endswith(left)


@pytest.mark.parametrize(("most", "left"), [(None, "about 3 minutes"), (1.7, "less than a minute")])
def test_a_log_says_every_half_minute_how_far_it_is(most: float | None, left: str) -> None:
    """A quarter after 60 seconds: 3 minutes are left, or 0.7 by the limit of 1.7."""
    now = 0.0
    console = PlainConsole(width=80, file=io.StringIO(), _environ={}, get_time=lambda: now)
    watcher = TerminalWatcher(console, Path("run"), [], 100)
    watcher.minutes = most
    watcher.progress.reset(watcher.task, total=400)
    lines = []
    for step in range(0, 101, 5):
        now = 0.6 * step
        watcher.event(Event("progress", Trial("dot", 0), {"step": step, "steps": 100}))
        lines.append(console.file.getvalue())  # type: ignore[attr-defined]
    assert lines[9] == ""
    assert lines[10] == lines[-2]  # at 30 seconds, and none before 60
    assert lines[-1].splitlines()[1:] == [f"25 % done, {left} left"]


STEERING = "\x1b]0;title\x07\x1b[31mred \x9b2J \u202eevil"
MARKUP = ["[/]", "[link=file:///etc/passwd]click[/link]", "[red]red", ":x:"]


def on_terminal(width: int = 200) -> PlainConsole:
    return PlainConsole(width=width, file=io.StringIO(), force_terminal=True, _environ={})


def written(console: PlainConsole) -> str:
    """Return the output without anyscore's colours; assert that only text is left."""
    said: str = console.file.getvalue()  # type: ignore[attr-defined]
    said = re.sub(r"\x1b\[[0-9;]*m|\x1b\]8;[^\x1b]*\x1b\\\\", "", said)
    assert visible(said) == said
    return said


@pytest.mark.parametrize("text", [STEERING, *MARKUP])
def test_names_are_text_wherever_they_stand(text: str, tmp_path: Path) -> None:
    """Names of scores and measures are printed as text, in a run from elsewhere too."""
    out, other = tmp_path / "run", f"{text} too"
    with pytest.warns(UserWarning, match="1 trial failed"):
        compare(lambda score, *_: [1.0, 1 / (score == text), 0.0], [text, other], seeds=1, out=out,
                measure=text)  # fmt: skip
    record = json.loads((out / "comparison.json").read_text())
    for quiet in (False, True):
        console = on_terminal()
        show_outcome(console, record, out, quiet=quiet)
        said = written(console)
        assert f"{visible(other)} with seed 0 failed" in said
        assert ("┏" in said) is not quiet
        assert said.count(visible(text)) >= (3 if quiet else 5)
    done = call("report", out, width=200)
    assert done.exit_code == 0, done.output
    assert visible(done.output) == done.output
    assert visible(text) in done.output


@pytest.mark.parametrize("text", [STEERING, *MARKUP])
def test_names_are_text_while_trials_run(text: str) -> None:
    console = on_terminal()
    watcher = TerminalWatcher(console, Path("run"), [text], 100)
    trial = Trial(text, 0)
    watcher.begins(Comparison(Path("run")), Plan((text,), 1), {})
    watcher.event(Event("began", trial, {}))
    watcher.event(Event("progress", trial, {"step": 1, "steps": 2}))
    console.print(watcher.progress.get_renderable())
    watcher.event(Event("failed", trial, {"failure": text}))
    watcher.stop()
    assert written_with_bar(console).count(visible(text)) >= 4


def written_with_bar(console: PlainConsole) -> str:
    """Return the output without the cursor's moves of a progress bar."""
    said: str = console.file.getvalue()  # type: ignore[attr-defined]
    console.file = io.StringIO(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", said))
    return written(console)


def test_json_holds_nothing_that_steers_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    record = {"a\x1b": [STEERING, "é\n\u2028\x85\x7f", "می\u200cخواهم", "\U000e0001"]}
    for indent in (1, None):
        print_json(record, indent=indent)
        said = capsys.readouterr().out
        assert visible(said) == said
        assert json.loads(said) == record
        assert "é" in said
        assert "می\u200cخواهم" in said


WEEKLY = pytest.mark.weekly


@pytest.mark.parametrize(
    "name", ["SIGINT", pytest.param("SIGTERM", marks=WEEKLY), pytest.param("SIGHUP", marks=WEEKLY)]
)
def test_a_signal_keeps_what_is_finished_and_reports_it(
    name: str, pairs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    options = ("--epochs", "4", "--hidden", "16", "--device", "cpu", "--seeds", "500")
    process = start("compare", pairs, "--scores", "dot", "--out", out, *options)
    assert process.stdout is not None
    said = ""
    while "dot, seed 1: done" not in said:
        line = process.stdout.readline()
        assert line, process.communicate()
        said += line
    process.send_signal(getattr(signal, name))
    rest, errors = process.communicate(timeout=HANG)
    assert process.returncode == 130, errors
    assert errors == ""
    assert "Stopped. Writing the report" in rest
    assert f"Report: {out / 'report.html'}" in plain(rest)
    found = json.loads((out / "comparison.json").read_text(encoding="utf-8"))
    assert found["interrupted"] is True
    assert 1 <= len(found["trials"]) < 500
    assert (out / "report.html").stat().st_size > 1000


def test_ctrl_c_before_training_is_one_line(tmp_path: Path) -> None:
    fifo = tmp_path / "pairs.tsv"
    os.mkfifo(fifo)
    process = start("compare", fifo, "--device", "cpu", "--out", tmp_path / "run")
    with open(fifo, "w") as stream:  # returns once the command reads
        stream.write("a\tb\n")
        stream.flush()
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=HANG)
    assert process.returncode == 130
    assert errors == "anyscore: stopped; finished trials are kept\n"


def test_a_terminal_without_the_characters_is_no_reason_to_fail() -> None:
    result = subprocess.run(  # formulas have "·", "−" and "√"
        [sys.executable, "-m", "anyscore", "info", "--quiet"],
        env=os.environ | {"PYTHONIOENCODING": "ascii", "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "q.k / ?d" in result.stdout
    assert result.stderr == ""
