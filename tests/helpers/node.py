"""JavaScript of pages runs under node."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from anyscore.plot.page import joined_modules
from helpers import machine
from helpers.hang import HANG


def syntax_error(script: str, folder: Path) -> str:
    """Return what node says against a module of JavaScript, without running it."""
    program = folder / "program.mjs"
    program.write_text(script, encoding="utf-8")
    done = subprocess.run(
        [machine.program("node"), "--check", program], capture_output=True, text=True, timeout=HANG
    )
    return done.stderr


def run_module(name: str, expression: str, given: Any, folder: Path) -> Any:
    """Return the value of a JavaScript expression, which may use `given` and the names of a module.

    Args:
        name: path of the module below `anyscore`.
        given: plain data.
        folder: for the program.
    """
    program = folder / "program.mjs"
    read = 'import { readFileSync } from "node:fs";\nconst given = JSON.parse(readFileSync(0));\n'
    told = f"process.stdout.write(JSON.stringify({expression}));\n"
    program.write_text(read + joined_modules(name) + told, encoding="utf-8")
    done = subprocess.run(
        [machine.program("node"), program],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
