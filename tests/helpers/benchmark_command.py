"""`python -m benchmarks` called as in a shell; a contestant prepared."""

from __future__ import annotations

import re
from typing import Any

from typer.testing import CliRunner, Result

from anyscore.lab.bench.runner import Runner
from benchmarks.__main__ import app
from benchmarks.rivals import find
from benchmarks.work import Work


def call(*arguments: object, width: int = 80) -> Result:
    environment = {"COLUMNS": str(width), "TERM": "dumb"}
    return CliRunner().invoke(app, [str(a) for a in arguments], env=environment)


def plain(text: str) -> str:
    """Without colours and line breaks."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())


def check_refused(result: Result, message: str) -> None:
    assert result.exit_code == 2
    assert message in plain(result.output)
    assert len(result.stderr.strip().splitlines()) == 1


def prepared(name: str, work: Work) -> dict[str, Any]:
    """Prepare a rival by its name, and return the answer."""
    return Runner("cpu").prepare(find(name, work), work)
