"""The forest plot and the learning curves as PNG, for papers and slides."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any

from anyscore.lab.phrases import visible
from anyscore.lab.report.axis import losses, numbers
from anyscore.lab.report.forest import WORDS, Row, forest
from anyscore.lab.report.scores import lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACCENT, _INK, _SOFT, _FAINT = "#0b5cab", "#1b1f24", "#5a626c", "#c6cbd1"
_MARKS = {"differs": "o", "equal": "s", "undecided": "D"}


def forest_picture(comparison: dict[str, Any]) -> bytes | None:
    """Draw each pair's difference with its interval; None where there is no pair."""
    from matplotlib.figure import Figure

    verdict = comparison["verdict"]
    plot = forest(verdict)
    if plot is None:
        return None
    figure = Figure(figsize=(7.5, 1.1 + 0.36 * len(plot.rows)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0, color=_SOFT, linewidth=1.2)
    for place, row in enumerate(plot.rows):
        _draw_row(axes, place, row)
    axes.set_yticks(
        range(len(plot.rows)), [f"{_plain(r.better)} over {_plain(r.worse)}" for r in plot.rows]
    )
    axes.set_xlim(plot.axis.low, plot.axis.high)
    axes.set_ylim(len(plot.rows) - 0.5, -0.5)
    measure = f"{_plain(verdict['unit'])} of {_plain(verdict['title'])}"
    axes.set_xlabel(f"{measure} by which the first is ahead")
    side = axes.secondary_yaxis("right")
    side.set_yticks(range(len(plot.rows)), [WORDS.get(r.verdict, r.verdict) for r in plot.rows])
    for part in (axes, side):
        part.tick_params(length=0)
        part.spines[:].set_visible(False)
    axes.grid(axis="x", color=_FAINT, linewidth=0.6, alpha=0.6)
    axes.set_axisbelow(True)
    return png(figure)


def _draw_row(axes: Axes, place: int, row: Row) -> None:
    """Draw a pair of scores."""
    decided = row.verdict == "differs"
    if row.low is not None and row.high is not None:
        style = ":" if row.verdict == "undecided" else "-"
        axes.hlines(place, row.low, row.high, color=_INK if decided else _SOFT, linestyle=style)
    if row.difference is not None:
        axes.plot(
            row.difference,
            place,
            marker=_MARKS.get(row.verdict, "D"),
            markersize=6,
            color=_ACCENT if decided else _INK,
            markerfacecolor=_ACCENT if decided else "white",
        )
    below = [place + 0.28] * len(row.seeds)
    axes.scatter(row.seeds, below, s=9, facecolors="none", edgecolors=_SOFT, linewidths=0.7)


def curves_picture(comparison: dict[str, Any]) -> bytes | None:
    """Draw a column for each score, its trials before all others; None if there are no epochs."""
    from matplotlib.figure import Figure

    trials = [trial for trial in comparison["trials"] if trial.get("epochs")]
    order = [line.name for line in lines(comparison)]
    order = [name for name in order if any(trial["score"] == name for trial in trials)]
    keys = [
        (key, title)
        for key, title in (("valid_exact_match", "validation, share right"), ("valid_loss", "loss"))
        if _values(trials, key)
    ]
    if not order or not keys:
        return None
    size = (1 + 2.1 * len(order), 0.6 + 1.9 * len(keys))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(keys), len(order), sharex=True, sharey="row", squeeze=False)
    for (key, title), row in zip(keys, grid, strict=True):
        for name, axes in zip(order, row, strict=True):
            for trial in sorted(trials, key=lambda t: t["score"] == name):
                in_front = trial["score"] == name
                _draw_curve(axes, trial, key, _ACCENT if in_front else _FAINT)
                if in_front and key == "valid_loss":
                    _draw_curve(axes, trial, "train_loss", _ACCENT, "--")
            axes.spines[["top", "right"]].set_visible(False)
            axes.xaxis.get_major_locator().set_params(integer=True)
        row[0].set_ylabel(title)
        if key == "valid_loss" and losses(_values(trials, "valid_loss", "train_loss")).log:
            row[0].set_yscale("log")
    for name, top, bottom in zip(order, grid[0], grid[-1], strict=True):
        top.set_title(_plain(name), fontsize="medium")
        bottom.set_xlabel("epoch")
    return png(figure)


def _values(trials: list[dict[str, Any]], *keys: str) -> list[float]:
    return numbers(epoch.get(key) for t in trials for epoch in t["epochs"] for key in keys)


def _draw_curve(axes: Axes, trial: dict[str, Any], key: str, colour: str, style: str = "-") -> None:
    points = [
        (epoch["epoch"], epoch[key])
        for epoch in trial["epochs"]
        if len(numbers((epoch.get("epoch"), epoch.get(key)))) == 2
    ]
    across, up = zip(*points, strict=True) if points else ((), ())
    marker = "." if len(points) == 1 else ""
    axes.plot(across, up, style, color=colour, linewidth=1.0, marker=marker)


def _plain(text: str) -> str:
    """Return a name as matplotlib prints it: no formulas, nothing unseen, and not too long."""
    text = " ".join(visible(text).encode("utf-8", errors="replace").decode().split())
    return (text if len(text) <= 40 else f"{text[:39]}…").replace("$", r"\$")


def png(figure: Figure) -> bytes:
    """Return a figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():  # a script that the font lacks is drawn as boxes
        warnings.filterwarnings("ignore", message="Glyph")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        figure.savefig(buffer, format="png", dpi=160)
    return buffer.getvalue()
