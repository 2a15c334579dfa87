"""One HTML file that shows a comparison: words, pictures, tables and alignments.

Everything is inside the file, so it can be mailed or archived and opens without a network. Its
content security policy forbids any request, and any script or style but the page's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from anyscore import __version__
from anyscore.lab.forms import numbers
from anyscore.lab.phrases import counted, minus, visible
from anyscore.lab.report import rates, scores
from anyscore.lab.report.alignments import examples
from anyscore.lab.report.charts import Drawing, draw_estimates, draw_marks, draw_panels
from anyscore.lab.report.curves import Chart, learning_curves
from anyscore.lab.report.forest import WORDS, forest, standing_estimate
from anyscore.lab.report.rendering import templates
from anyscore.lab.run_folder import write_whole


def write_report(comparison: dict[str, Any], path: Path) -> None:
    """Write the report of ``comparison`` (the content of ``comparison.json``) to ``path``.

    An existing file is replaced whole or, if anything goes wrong, left as it was.

    Raises:
        RunFailure: the file cannot be written.
    """
    write_whole(path, report_page(comparison))


def report_page(comparison: dict[str, Any]) -> bytes:
    """Return the file that `write_report` writes."""
    return _render(comparison).encode("utf-8", errors="replace")


def write_page(name: str, path: Path, record: dict[str, Any], order: list[str]) -> None:
    """Write a page of attention weights.

    Args:
        name: of the template.
        record: with "examples" and "task", as a comparison has them.
        order: of the scores.

    Raises:
        RunFailure: the file cannot be written.
    """
    environment, content = _environment()
    page = environment.get_template(name).render(
        examples=examples(record, order), anyscore=__version__, **content
    )
    write_whole(path, page.encode("utf-8", errors="replace"))


def _complete(comparison: dict[str, Any]) -> dict[str, Any]:
    """Fill in what is not known of a user's own training."""
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


def _environment() -> tuple[Environment, dict[str, Any]]:
    """Make the environment that renders pages with a script, and what each page is given."""
    environment, content = templates(script="report.js")
    environment.filters |= {
        "number": number,
        "p": _p,
        "formula": _formula,
        "counted": counted,
        "plain": _plain,
    }
    return environment, content


def _render(comparison: dict[str, Any]) -> str:
    """Return the HTML of a comparison's report."""
    comparison = _complete(comparison)
    environment, content = _environment()
    verdict = comparison["verdict"]
    environment.filters["named"] = lambda sentence: _named(sentence, comparison["scores"])
    lines, rows = scores.lines(comparison), forest(verdict)
    order = [line.name for line in lines]
    return environment.get_template("report.html.j2").render(
        comparison=comparison,
        task=comparison["task"],
        verdict=verdict,
        percent=f"{100 * verdict.get('level', 0.95):g}\u00a0%",
        seeds=comparison["seeds"],
        failed=[trial for trial in comparison["trials"] if "failure" in trial],
        said=_said(verdict),
        forest=rows,
        forest_drawing=draw_estimates(
            [row.estimate for row in rows], width=320, room=0.04, zero=True, at_most=6
        ),
        marks=draw_marks(),
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
        **content,
    )


def _said(verdict: dict[str, Any]) -> dict[str, Any]:
    """Return the verdict's sentences, its warnings and its recommendation, none of them twice."""
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
    return chart and (chart, draw_panels(chart))


def number(value: object, digits: int = 0) -> str:
    """Return a number with thousands set off; a dash for anything else."""
    finite = numbers([value])
    return minus(f"{finite[0]:,.{digits}f}") if finite else "—"


def _p(value: object) -> str:
    """Return a probability, never rounded to nothing."""
    finite = numbers([value])
    if not finite:
        return "—"
    return "< 0.001" if finite[0] < 0.001 else f"{finite[0]:.3f}"


def _plain(value: object) -> str:
    """Return a setting or fact of any kind in words."""
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return minus(f"{value:,}")
    if isinstance(value, float):
        return minus(f"{value:g}")
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(part)}" for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_plain, value))
    return str(value)


def _named(sentence: str, names: list[str]) -> Markup:
    """Set off the names of scores and options in a sentence, and keep numbers with their units."""
    sentence = visible(sentence)
    sentence = re.sub(r"(?<=\d) (?=%|ms|points|epoch|times|seeds?|s\b)", "\u00a0", sentence)
    longest_first = sorted(filter(None, map(visible, names)), key=len, reverse=True)
    pattern = "|".join([r"--\w[\w-]*", *map(re.escape, longest_first)])
    parts = re.split(rf"(?<![\w-])({pattern})(?![\w-])", sentence)
    option, name = '<span class="option">{}</span>', "<b><bdi>{}</bdi></b>"
    for i, part in enumerate(parts):
        kind = (option if part.startswith("--") else name) if i % 2 else "{}"
        parts[i] = Markup(kind).format(part)  # splitting leaves what was found at odd places
    return Markup("").join(parts)


def _formula(text: str) -> Markup:
    """Set the subscripts of a formula's letters low, as in W_q."""
    parts = re.split(r"(?<=\b[^\W\d_])_(\w)\b", visible(text))
    return Markup("").join(
        Markup("<sub>{}</sub>" if i % 2 else "{}").format(part) for i, part in enumerate(parts)
    )
