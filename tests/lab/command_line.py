"""Call the command line as in a shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from typer.testing import CliRunner, Result

from anyscore.lab import cli

SMALL = ("--epochs", "1", "--hidden", "16", "--batch-size", "8", "--device", "cpu", "--seeds", "2")
SMALL += ("--no-rates",)


def call(*arguments: object, width: int = 80, given: str | None = None) -> Result:
    return CliRunner().invoke(
        cli.app,
        [str(a) for a in arguments],
        input=given,
        env={"COLUMNS": str(width), "TERM": "dumb"},
    )


def plain(text: str) -> str:
    """Return the text without colours and line breaks."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())


def check_refused(result: Result, message: str) -> None:
    assert result.exit_code == 2
    said = plain(result.output)
    assert message in said
    assert "Traceback" not in said
    assert "epoch" not in result.stdout.replace("--epochs", "")
    if said.startswith("anyscore: "):  # anyscore prints one line; typer draws a box
        assert len(result.stderr.strip().splitlines()) == 1


def check_help_does_not_wait_for_pytorch(command: str) -> None:
    program = (
        "import sys; from anyscore.lab.cli import app\n"
        f"try: app(['{command}', '--help'])\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


def check_quiet_when_its_reader_leaves(process: subprocess.Popen[str], seconds: float) -> None:
    """Assert that a process ends without a message after its reader closed the pipe."""
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=seconds) == 1
    assert process.stderr.read() == ""
    process.stderr.close()


def start(*arguments: object) -> subprocess.Popen[str]:
    # The shell of the tests may let its children ignore Ctrl-C.
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from anyscore.__main__ import main; main()"
    )
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "80"},
    )
