"""Python scripts run in a process of their own: forks, limits and what may crash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from helpers.hang import HANG


def run_script(script: str, timeout: float = HANG) -> str:
    """What a Python of its own prints; a failure shows what it said."""
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
