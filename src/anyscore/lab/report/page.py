"""One HTML file shows a comparison: words, pictures, tables and alignments.

Everything is inside the file, so it can be mailed or archived and opens without a network. Its
content security policy forbids any request, and any script or style but the page's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anyscore import __version__
from anyscore.lab.phrases import counted, percent
from anyscore.lab.report import rates, scores
from anyscore.lab.report.alignments import examples
from anyscore.lab.report.charts import Drawing, draw_estimates, draw_panels
from anyscore.lab.report.curves import Chart, learning_curves
from anyscore.lab.report.forest import WORDS, Estimate, forest, standing_estimate
from anyscore.lab.report.rendering import render_page
from anyscore.lab.run_folder import write_whole


def report_page(comparison: dict[str, Any]) -> bytes:
    """Return the report of a comparison, the content of `comparison.json`, as one HTML file."""
    comparison = _complete(comparison)
    task, verdict = comparison["task"], comparison["verdict"]
    lines, rows = scores.lines(comparison), forest(verdict)
    order = [line.name for line in lines]
    return render_page(
        "report.html.j2",
        f"{task['description']} – attention scores compared",
        script="report.js",
        comparison=comparison,
        task=task,
        about_data=_about_data(task.get("summary") or {}),
        verdict=verdict,
        decimals=verdict.get("decimals", 1),
        percent=percent(verdict.get("level", 0.95)).replace(" ", "\u00a0"),
        seeds=comparison["seeds"],
        failed=[trial for trial in comparison["trials"] if "failure" in trial],
        said=_said(verdict),
        forest=rows,
        forest_drawing=draw_estimates(
            [row.estimate for row in rows], width=320, room=0.04, zero=True
        ),
        marks=draw_estimates([Estimate(0.0, None, None, (), word) for word in WORDS], width=16),
        words=WORDS,
        lines=lines,
        strip=draw_estimates(
            [standing_estimate(line.standing) for line in lines], width=128, room=0.12
        ),
        judged=scores.judged(verdict),
        measures=scores.measures(lines, verdict.get("measure", "")),
        best=scores.bests(lines),
        rates=rates.rates(comparison),
        rate_chart=_drawn(rates.rate_chart(comparison, order, scores.judged(verdict)[0])),
        searched=rates.searched(comparison),
        search_chart=_drawn(rates.search_chart(comparison, order)),
        learning_rate=rates.learning_rate,
        charts=[_drawn(chart) for chart in learning_curves(comparison, order)],
        trials=[trial for trial in comparison["trials"] if trial.get("epochs")],
        examples=examples(comparison, order),
    )


def write_weights(path: Path, record: dict[str, Any], score: str) -> None:
    """Write a page of the weights of one score.

    Args:
        record: with "examples" and "task", as a comparison has them.

    Raises:
        RunFailure: the file cannot be written.
    """
    title, shown = "Attention weights of a model", examples(record, [score])
    page = render_page("weights.html.j2", title, examples=shown, anyscore=__version__)
    write_whole(path, page)


def _complete(comparison: dict[str, Any]) -> dict[str, Any]:
    """Fill in the fields that a user's own training leaves out."""
    verdict = comparison["verdict"]
    task = {
        "name": "",
        "description": "",
        "unit": "",
        "train": None,
        "valid": None,
        "left_out": None,
    }
    task |= {"source_vocabulary": None, "target_vocabulary": None, "test": verdict.get("items")}
    empty = {"anyscore": "", "created": "", "command": "", "code": "", "interrupted": False}
    nothing: dict[str, Any] = {"machine": {}, "settings": {}, "formulas": {}, "examples": []}
    task |= comparison.get("task") or {}
    task["description"] = task["description"] or task["name"] or "Attention scores compared"
    return {**empty, **nothing, **comparison, "task": task}


def _about_data(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of the data, with a row for each file."""
    files = {
        f"{file['part']} file": f"{file['file']}, {counted(file['bytes'], 'byte')}, SHA-256 "
        f"{file['sha256'][:12]}…"
        for file in summary.get("files", [])
    }
    return files | {name: x for name, x in summary.items() if name != "files"}


def _said(verdict: dict[str, Any]) -> dict[str, Any]:
    """Return the verdict's sentences, warnings and recommendation, without repetitions."""
    sentences = list(dict.fromkeys(verdict.get("sentences", [])))
    recommended = (verdict.get("recommendation") or {}).get("sentence")
    warnings = [w for w in dict.fromkeys(verdict.get("warnings", [])) if w not in sentences]
    return {
        "sentences": [s for s in sentences if s != recommended],
        "warnings": warnings,
        "recommendation": recommended and _without_label(recommended),
    }


def _without_label(sentence: str) -> str:
    """Return a recommendation without the word that the page writes before it."""
    rest = sentence.removeprefix("Recommendation: ")
    return sentence if rest == sentence else rest[:1].upper() + rest[1:]


def _drawn(chart: Chart | None) -> tuple[Chart, Drawing] | None:
    """Return a chart and its drawing."""
    return None if chart is None else (chart, draw_panels(chart))
