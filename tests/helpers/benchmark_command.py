"""Helpers call `python -m benchmarks` as in a shell and prepare a contestant."""

from __future__ import annotations

import re
from typing import Any

from typer.testing import CliRunner, Result

from anyscore.lab.bench.runner import Runner
from anyscore.lab.bench.work import Shape
from benchmarks.__main__ import app
from benchmarks.rivals import find
from benchmarks.work import Work


def call(*arguments: object, width: int = 80) -> Result:
    environment = {"COLUMNS": str(width), "TERM": "dumb"}
    return CliRunner().invoke(app, [str(a) for a in arguments], env=environment)


def plain(text: str) -> str:
    """Return the text without colours and line breaks."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())


def check_refused(result: Result, message: str) -> None:
    assert result.exit_code == 2
    assert message in plain(result.output)
    assert len(result.stderr.strip().splitlines()) == 1


def prepared(name: str, work: Work) -> dict[str, Any]:
    """Prepare a rival by its name, and return the answer."""
    return Runner("cpu").prepare(find(name, work), work)


def check_right(name: str, framework: str, call: str, passes: str, projected: bool) -> None:
    """Assert that each way of a framework's contestant is right."""
    shape = Shape(2, 5, 7, 11, 3)
    work = Work(shape, passes=passes, framework=framework, call=call, lengths=True)
    answer = prepared(name, work.to(projected=projected))
    if name == "keras" and not projected:
        assert answer["problem"] == "its layer projects nothing"
        return
    assert answer["problem"] is None
    assert None not in answer["ways"].values()
    assert answer["error"] < 1e-5
