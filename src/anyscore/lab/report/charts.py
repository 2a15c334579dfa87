"""Matplotlib draws every chart: for pages, in the colours of their theme, and as PNG for papers.

All rows or panels of a chart are drawn on the same axes. In a page each row or panel shows the axes
and its own layer.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from markupsafe import Markup

from anyscore.lab.phrases import minus, visible
from anyscore.lab.report.curves import Axis, Chart, Panel, linear
from anyscore.lab.report.forest import WORDS, Estimate, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _SOFT, _FAINT, _LINE, _PAGE = "#1b1f24", "#5a626c", "#c6cbd1", "#e3e5e8", "#ffffff"
_ACCENT = "#0b5cab"
_DETAIL = "#0b5cac"  # the accent of a panel's own layer: dots and dashes
_THEME = {
    _INK: "var(--ink)",
    _SOFT: "var(--soft)",
    _FAINT: "var(--faint)",
    _LINE: "var(--line)",
    _PAGE: "var(--page)",
    _ACCENT: "var(--accent)",
    _DETAIL: "var(--detail, var(--accent))",
}
_MARKS = {"differs": "o", "equal": "s", "undecided": "D"}
_ROW = 44  # pixels: the height of a row
_AROUND = 120  # pixels above and below a row, through which lines go on where it is higher
_PANEL = (172, 152)


@dataclass(frozen=True)
class Drawing:
    """A chart inside a page, as elements of SVG.

    Attributes:
        width, height: of a row or panel, in pixels.
        top: its place in the picture.
        grid, labels: the lines and the numbers of the axes.
        layers: the shapes of each row or panel.
    """

    width: int
    height: int
    top: int
    grid: Markup
    labels: Markup
    layers: list[Markup]


def draw_estimates(
    estimates: Sequence[Estimate], *, width: int, room: float = 0.0, zero: bool = False
) -> Drawing:
    """Draw a layer for each estimate, on the same axis.

    Args:
        room: of the axis, added at both ends.
        zero: whether a line marks zero, which is then on the axis.
    """
    with _style():
        figure, axes = _axes(width, _ROW + 2 * _AROUND, (0, _AROUND, width, _ROW))
        _set_axis(axes, "x", _over(estimates, room, zero), 1 + width // 60)
        axes.set(ylim=(1, 0), yticks=())
        low, high = axes.get_xlim()
        lines = [x for x in axes.get_xticks() if low <= x <= high]
        ends = -_AROUND / _ROW, 1 + _AROUND / _ROW
        axes.vlines(lines, *ends, color=_LINE, linewidth=1, clip_on=False, gid="grid")
        axes.vlines([0.0] * zero, *ends, color=_SOFT, linewidth=1.5, clip_on=False, gid="grid")
        for layer, estimate in enumerate(estimates):
            _draw_estimate(axes, 0.4, estimate, beside=0.36, gid=str(layer))
        return Drawing(width, _ROW, _AROUND, *_parts(figure, len(estimates)))


def draw_panels(chart: Chart) -> Drawing:
    """Draw a layer for each panel of a chart."""
    with _style():
        width, height = _PANEL
        figure, axes = _axes(width, height, (32, 6, width - 40, height - 26))
        _set_panel(axes, chart)
        for layer, panel in enumerate(chart.panels):
            _draw_panel(axes, panel, gid=str(layer))
        return Drawing(width, height, 0, *_parts(figure, len(chart.panels)))


def forest_picture(rows: Sequence[Row], verdict: dict[str, Any]) -> bytes | None:
    """Draw each pair's difference with its interval; None where there is no pair."""
    if not rows:
        return None
    from matplotlib.figure import Figure

    with _style():
        figure = Figure(figsize=(7.5, 1.1 + 0.36 * len(rows)), layout="constrained")
        axes = figure.subplots()
        axes.axvline(0, color=_SOFT, linewidth=1.2)
        for place, row in enumerate(rows):
            _draw_estimate(axes, place, row.estimate, beside=0.28)
        pairs = [f"{_plain(row.better)} over {_plain(row.worse)}" for row in rows]
        axes.set_yticks(range(len(rows)), pairs)
        _set_axis(axes, "x", _over([row.estimate for row in rows], 0.04, True), 6)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        measure = f"{_plain(verdict['unit'])} of {_plain(verdict['title'])}"
        axes.set_xlabel(f"{measure} by which the first is ahead")
        side = axes.secondary_yaxis("right")
        words = [WORDS.get(row.estimate.verdict, row.estimate.verdict) for row in rows]
        side.set_yticks(range(len(rows)), words)
        side.spines[:].set_visible(False)
        axes.grid(axis="x")
        return png(figure)


def curves_picture(charts: Sequence[Chart]) -> bytes | None:
    """Draw a row for each chart, a column for each score; None where there are none."""
    if not charts:
        return None
    from matplotlib.figure import Figure

    with _style():
        scores = list(dict.fromkeys(panel.score for chart in charts for panel in chart.panels))
        size = (1 + 2.1 * len(scores), 0.6 + 1.9 * len(charts))
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(len(charts), len(scores), squeeze=False)
        for chart, row in zip(charts, grid, strict=True):
            row[0].set_ylabel(chart.title)
            for axes, score in zip(row, scores, strict=True):
                _set_panel(axes, chart)
                for panel in sorted(chart.panels, key=lambda panel: panel.score == score):
                    _draw_panel(axes, panel, in_front=panel.score == score)
        for score, top, bottom in zip(scores, grid[0], grid[-1], strict=True):
            top.set_title(_plain(score), fontsize="medium")
            bottom.set_xlabel("epoch")
        return png(figure)


def png(figure: Figure) -> bytes:
    """Return a figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():  # a script that the font lacks is drawn as boxes
        warnings.filterwarnings("ignore", message="Glyph")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        figure.savefig(buffer, format="png", dpi=160)
    return buffer.getvalue()


def _over(estimates: Sequence[Estimate], room: float, zero: bool) -> Axis:
    """Return an axis over all drawn numbers of estimates, and over zero if `zero`."""
    values = [v for e in estimates for v in (e.low, e.high, e.value, *e.seeds)]
    return linear([*values, *[0.0] * zero], room=room)


def _draw_estimate(
    axes: Axes, y: float, estimate: Estimate, *, beside: float, **options: Any
) -> None:
    """Draw a mark within its interval at the height y; its seeds `beside` below."""
    decided = estimate.verdict == "differs"
    options |= {"clip_on": False}
    if estimate.low is not None and estimate.high is not None:
        style: Any = (0, (0.4, 2)) if estimate.verdict not in ("differs", "equal") else "-"
        ends, colour = (estimate.low, estimate.high), _INK if decided else _SOFT
        axes.plot(ends, (y, y), color=colour, linestyle=style, linewidth=2.4, **options)
    if estimate.seeds:
        rings = [y + beside] * len(estimate.seeds)
        axes.plot(estimate.seeds, rings, "o", markersize=5, markerfacecolor="none",
                  markeredgecolor=_SOFT, **options)  # fmt: skip
    if estimate.value is not None:
        mark = _MARKS.get(estimate.verdict, _MARKS["undecided"])
        face, edge = (_ACCENT, _ACCENT) if decided else (_PAGE, _INK)
        axes.plot(estimate.value, y, mark, markersize=8, markerfacecolor=face,
                  markeredgecolor=edge, markeredgewidth=1.6, **options)  # fmt: skip


def _draw_panel(axes: Axes, panel: Panel, *, in_front: bool = True, **options: Any) -> None:
    """Draw the lines of a panel; behind others, without dots and dashes."""
    options |= {"clip_on": False}
    for line in panel.lines:
        if in_front and line.dashed:
            axes.plot(*zip(*line.points, strict=True), color=_DETAIL, linestyle=(0, (3, 3)),
                      linewidth=1.0, **options)  # fmt: skip
        elif not line.dashed:
            colour = _ACCENT if in_front else _FAINT
            axes.plot(*zip(*line.points, strict=True), color=colour, linewidth=1.1, **options)
        if in_front and line.tested:
            axes.plot(*line.tested, "o", markersize=5, color=_DETAIL, **options)


def _set_panel(axes: Axes, chart: Chart) -> None:
    """Give a panel the axes of its chart."""
    _set_axis(axes, "x", chart.x, 3)
    _set_axis(axes, "y", chart.y, 4)
    axes.grid(axis="y", gid="grid")


def _set_axis(axes: Axes, direction: str, axis: Axis, at_most: int) -> None:
    """Set the ends of an axis, and about so many numbers along it."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    drawn = axes.xaxis if direction == "x" else axes.yaxis
    if axis.log:
        axes.set(**{f"{direction}scale": "log"})
        ratio = axis.high / axis.low
        subs = (1.0,) if ratio > 400 else (1.0, 3.0) if ratio > 20 else (1.0, 2.0, 5.0)
        drawn.set_major_locator(LogLocator(subs=subs))
        drawn.set_minor_locator(NullLocator())
    else:
        drawn.set_major_locator(
            MaxNLocator(at_most, steps=[1, 2, 2.5, 5, 10], integer=axis.whole, min_n_ticks=1)
        )
    drawn.set_major_formatter(FuncFormatter(lambda value, _: minus(f"{value:.6g}")))
    axes.set(**{f"{direction}lim": (axis.low, axis.high)})


def _axes(width: int, height: int, place: tuple[int, int, int, int]) -> tuple[Figure, Axes]:
    """Make a figure of so many pixels with axes at (left, top, width, height) in it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 72, height / 72))  # a point of the figure is a pixel
    left, top, across, down = place
    axes = figure.add_axes((left / width, 1 - (top + down) / height, across / width, down / height))
    axes.tick_params(labelsize=12)  # as in the style sheet, whose font a page has
    return figure, axes


@contextmanager
def _style() -> Iterator[None]:
    """Draw in the report's style instead of the user's matplotlib settings."""
    from matplotlib import style

    ours = {
        "font.size": 9,
        **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), _SOFT),
        **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 0),
        **dict.fromkeys([f"axes.spines.{x}" for x in ("left", "right", "top", "bottom")], False),
        "axes.axisbelow": True,
        "grid.color": _LINE,
        "lines.solid_capstyle": "round",
        "lines.dash_capstyle": "round",
        "svg.fonttype": "none",
    }
    with style.context(["default", ours]):
        yield


def _parts(figure: Figure, layers: int) -> tuple[Markup, Markup, list[Markup]]:
    """Return (grid, labels, layers) as SVG without styles, which the policy of pages forbids."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg")
    root = ElementTree.fromstring(
        re.sub(rb' xmlns(:xlink)?="[^"]*"|xlink:', b"", buffer.getvalue())
    )
    marks = {f"#{x.get('id')}": x.get("d", "") for x in root.iter("path") if x.get("id")}

    def written(parents: Iterable[ElementTree.Element], *tags: str) -> Markup:
        shapes = (x for y in parents for x in y.iter() if x.tag in tags and not x.get("id"))
        return Markup("".join(_element(x, marks) for x in shapes))

    groups: dict[str, list[ElementTree.Element]] = {}
    for group in root.iter("g"):
        groups.setdefault(group.get("id", ""), []).append(group)
    names = ("grid", *map(str, range(layers)))
    grid, *drawn_layers = (written(groups.get(name, ()), "path", "use") for name in names)
    return grid, written([root], "text"), drawn_layers


def _element(drawn: ElementTree.Element, marks: dict[str, str]) -> str:
    """Return an element with attributes in place of its style, and colours of the theme."""
    styles = re.findall(r"([\w-]+): ([^;]+)", drawn.get("style", ""))
    attributes = {name: _THEME.get(x, x) for name, x in styles if not name.startswith("font")}
    attributes |= {name: drawn.get(name, "") for name in ("d", "x", "y") if name in drawn.attrib}
    tag = drawn.tag
    if tag == "use":  # a mark, which is written out: no names that a page could have twice
        tag, attributes["d"] = "path", marks[drawn.get("href", "")]
        attributes["transform"] = f"translate({attributes.pop('x')} {attributes.pop('y')})"
    element = ElementTree.Element(tag, {name: _short(x) for name, x in attributes.items()})
    element.text = drawn.text
    return ElementTree.tostring(element, encoding="unicode", short_empty_elements=False)


def _short(value: str) -> str:
    """Return the numbers in an attribute with one decimal, which is a tenth of a pixel."""
    value = " ".join(value.split())
    return re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), value)


def _plain(text: str) -> str:
    """Return a name as matplotlib prints it: no formulas, nothing unseen, and not too long."""
    text = " ".join(visible(text).encode("utf-8", errors="replace").decode().split())
    return (text if len(text) <= 40 else f"{text[:39]}…").replace("$", r"\$")
