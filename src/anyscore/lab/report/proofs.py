"""Proofs are shown as one HTML file and in Markdown: the paper's words beside measured numbers."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyscore.lab.errors import RunFailure
from anyscore.lab.phrases import counted, listed, minus, number
from anyscore.lab.report.charts import Drawing, draw_estimates
from anyscore.lab.report.forest import standing_estimate
from anyscore.lab.report.rendering import render_page, render_text
from anyscore.lab.run_folder import write_whole

SIGNS = {"holds": "✓", "fails": "✗", "open": "?"}
_OUTCOMES = "confirmed", "undecided", "contradicted"


def write_proofs(record: Mapping[str, Any], out: Path, path: Path) -> None:
    """Write the page of `record`; pictures are read from `out`.

    Raises:
        RunFailure: the file cannot be written.
    """
    page = render_page(
        "proofs.html.j2",
        "Published findings, repeated on this machine",
        **_content(record),
        drawings={result["name"]: _drawings(result) for result in record["proofs"]},
        pictures={
            result["name"]: _inside(out / result["picture"]["file"])
            for result in record["proofs"]
            if result["picture"]
        },
    )
    write_whole(path, page)


def write_markdown(record: Mapping[str, Any], out: Path, path: Path) -> None:
    """Write the page in Markdown, and beside it copies of the pictures in `out`.

    Raises:
        RunFailure: a file cannot be written.
    """
    write_whole(path, markdown(record, path.stem))
    for result in record["proofs"]:
        if result["picture"]:
            source = out / result["picture"]["file"]
            try:
                shutil.copyfile(source, path.parent / f"{path.stem}_{source.name}")
            except OSError as error:
                raise RunFailure(
                    f"{path.parent}: cannot be written ({error.strerror or error})"
                ) from None


def markdown(record: Mapping[str, Any], stem: str = "proof") -> bytes:
    """Return the page in Markdown, in a file of this name, after which its pictures are named."""
    return render_text(
        "proofs.md.j2", **_content(record), stem=stem, anchor=_anchor, basename=os.path.basename
    )


def bound(check: Mapping[str, Any]) -> str:
    """Return a bound in words, as in "at least 99" or "from −1 to 1"."""
    least, most = check["at_least"], check["at_most"]
    if least is not None and most is not None:
        return minus(f"from {least:g} to {most:g}")
    return minus(f"at least {least:g}" if most is None else f"at most {most:g}")


def interval(record: Mapping[str, Any]) -> str:
    """Return an interval, as in "0.9 to 2.6"; a dash for none."""
    if record["low"] is None:
        return "—"
    return f"{number(record['low'], 1)} to {number(record['high'], 1)}"


def summary(result: Mapping[str, Any]) -> str:
    """Return a result in words, as in "confirmed: 6 of 6 checks hold"."""
    states = [check["state"] for check in result["checks"]]
    sentence = f"{result['verdict']}: {states.count('holds')} of {len(states)} checks hold"
    if "fails" in states:
        sentence += f", {states.count('fails')} fail{'s' if states.count('fails') == 1 else ''}"
    if "open" in states:
        sentence += f", {states.count('open')} open"
    return sentence


def outcome(record: Mapping[str, Any]) -> str:
    """Return in words how many findings were confirmed, undecided and contradicted."""
    verdicts = [result["verdict"] for result in record["proofs"]]
    counts = listed([f"{verdicts.count(word)} {word}" for word in _OUTCOMES])
    return f"Of {counted(len(verdicts), 'finding')}: {counts}"


def _content(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template's variables: the record, the machine in a line, functions for words."""
    facts = record["machine"]
    machine = (
        f"{facts['processor']}, PyTorch {facts['torch']}, Python {facts['python']}, "
        f"{counted(facts['jobs'], 'trial')} side by side on one thread each"
    )
    words = {
        "bound": bound,
        "interval": interval,
        "summary": summary,
        "outcome": outcome,
        "rows": _rows,
    }
    return {"record": record, "machine": machine, "signs": SIGNS, **words}


def _rows(part: Mapping[str, Any]) -> list[tuple[str, str | None, list[dict[str, Any] | None]]]:
    """Return a row for each score: its name, the published number, its standing by each measure."""
    by_measure = [
        {standing["score"]: standing for standing in measure["standings"]}
        for measure in part["measures"]
    ]
    return [
        (score, published, [standings.get(score) for standings in by_measure])
        for score, published in zip(part["scores"], part["published"], strict=True)
    ]


def _drawings(result: Mapping[str, Any]) -> dict[str, list[Drawing]]:
    """Draw by part the numbers of each measure, in the order of the scores."""
    return {
        part["name"]: [
            draw_estimates([standing_estimate(x) for x in standings], width=240, room=0.05)
            for standings in zip(*(standings for _, _, standings in _rows(part)), strict=True)
        ]
        for part in result["parts"]
    }


def _inside(path: Path) -> str:
    """Return a picture as a URL that holds it."""
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def _anchor(title: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c == "-")
