"""Run Python scripts in their own process: forks, limits, possible crashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from helpers.hang import HANG


def run_script(script: str, timeout: float = HANG) -> str:
    """Return the output of a script in its own process; a failure shows its stderr."""
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join([tests, *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
