"""JavaScript of pages runs under node."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from anyscore.plot.page import joined_modules
from helpers.hang import HANG


def run_module(name: str, expression: str, given: Any, folder: Path) -> Any:
    """Return the value of a JavaScript expression, which may use `given` and the names of a module.

    Args:
        name: path of the module below `anyscore`.
        given: plain data.
        folder: for the program.
    """
    node = shutil.which("node")
    if node is None:
        pytest.fail(
            "the JavaScript of pages is tested under node, and none was found: "
            "install node 18 or later (Debian: apt-get install nodejs)"
        )
    program = folder / "program.mjs"
    read = 'import { readFileSync } from "node:fs";\nconst given = JSON.parse(readFileSync(0));\n'
    told = f"process.stdout.write(JSON.stringify({expression}));\n"
    program.write_text(read + joined_modules(name) + told, encoding="utf-8")
    done = subprocess.run(
        [node, program], input=json.dumps(given), capture_output=True, text=True, timeout=HANG
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
