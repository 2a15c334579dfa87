"""One HTML file that shows the results of proofs; everything is inside it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyscore.lab.phrases import counted
from anyscore.lab.prove import text
from anyscore.lab.report.axis import Axis, linear
from anyscore.lab.report.rendering import templates
from anyscore.lab.run_folder import write_whole


def write_report(record: Mapping[str, Any], out: Path, path: Path) -> None:
    """Write the report of `record`; pictures are read from `out`.

    Raises:
        RunFailure: the file cannot be written.
    """
    write_whole(path, render(record, out).encode("utf-8", "replace"))


def render(record: Mapping[str, Any], out: Path) -> str:
    """Return the page's text."""
    environment, content = templates()
    return environment.get_template("proofs.html.j2").render(
        record=record,
        words=text,
        counted=counted,
        axes={result["name"]: _axes(result) for result in record["proofs"]},
        pictures={
            result["name"]: _inside(out / result["picture"]["file"])
            for result in record["proofs"]
            if result["picture"]
        },
        **content,
    )


def _axes(result: Mapping[str, Any]) -> dict[tuple[str, str], Axis]:
    """Make the axis of each measure of each part, from our least number to the largest."""
    axes = {}
    for part in result["parts"]:
        for measure in part["measures"]:
            values = [s[end] for s in measure["standings"] for end in ("mean", "low", "high")]
            axes[part["name"], measure["name"]] = linear(values, room=0.05, at_most=4)
    return axes


def _inside(path: Path) -> str:
    """Return a picture as a URL that holds it."""
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
