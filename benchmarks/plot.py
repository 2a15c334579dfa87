"""A picture of a benchmark: ratios of time, and time and memory as T grows."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from anyscore.lab.bench.report import described, shape_of
from anyscore.lab.bench.work import FORWARD, TRAINING
from benchmarks.tables import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which colour-blind readers can tell apart, and a mark of its own each.
_MARKS = {
    "anyscore": ("#D55E00", "o"),
    "eager": ("#000000", "s"),
    "blocks": ("#999999", "P"),
    "compile": ("#0072B2", "^"),
    "flex": ("#F0E442", "X"),
    "cdist": ("#E69F00", "v"),
    "keops": ("#882255", "p"),
    "formula": ("#000000", "s"),
    "jax": ("#009E73", "D"),
    "keras": ("#56B4E9", "*"),
    "dot": ("#CC79A7", "d"),
}
_SPEEDS = "speed", "framework", "forward", "training", "step", "small"


def draw(record: dict[str, Any]) -> bytes:
    """The picture as a PNG."""
    from matplotlib.figure import Figure

    results = record["results"]
    speed = [r for r in results if r["part"] in _SPEEDS and _ratios(r)]
    growth = [r for r in results if r["part"] == "growth" and r["entrants"]]
    tops = ["speed"] * 2 if speed else []
    panels: list[Any] = [tops] if tops else []
    if growth:
        panels += [["time 0", "time 1"], ["memory 0", "memory 1"]]
    figure = Figure(figsize=(10, 1 + 0.45 * len(speed) + 6.5 * bool(growth)), layout="constrained")
    if panels:
        heights = [0.45 * len(speed) + 0.9] if speed else []
        heights += [3.2, 3.2] if growth else []
        axes = figure.subplot_mosaic(panels, gridspec_kw={"height_ratios": heights})
        if speed:
            _draw_speed(axes["speed"], speed)
        for column, passes in enumerate((FORWARD, TRAINING)) if growth else ():
            some = [r for r in growth if r["passes"] == passes]
            _draw_growth(axes[f"time {column}"], some, "ms", f"time, {passes}", "ms")
            _draw_growth(axes[f"memory {column}"], some, "mib", f"peak memory, {passes}", "MiB")
    figure.suptitle(f"anyscore {record['anyscore']} on {described(record)}", fontsize="medium")
    drawn: dict[str, Any] = {}
    for panel in figure.axes:
        handles, names = panel.get_legend_handles_labels()
        drawn |= dict(zip(names, handles, strict=True))
    if drawn:
        figure.legend(list(drawn.values()), list(drawn), loc="outside right upper", frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


def _draw_speed(axes: Axes, results: Sequence[Result]) -> None:
    """A line for each work; right of 1 is slower than anyscore."""
    for height, result in enumerate(results):
        for name, ratio in _ratios(result).items():
            colour, marker = _MARKS.get(name, ("#000000", "."))
            axes.errorbar(
                ratio["median"],
                height,
                xerr=[[ratio["median"] - ratio["low"]], [ratio["high"] - ratio["median"]]],
                color=colour,
                marker=marker,
                markersize=8,
                markeredgecolor="black",
                markeredgewidth=0.5,
                linestyle="none",
                label=name,
            )
    axes.axvline(1, color=_MARKS["anyscore"][0])
    axes.set_xscale("log")
    axes.set_yticks(range(len(results)), [f"({shape_of(r)})\n{_line(r)}" for r in results])
    axes.tick_params(axis="y", labelsize="small")
    axes.set_ylim(len(results) - 0.5, -0.5)
    axes.set_xlabel(f"{results[0]['score']}: time ÷ time of anyscore (right of the line is slower)")
    axes.xaxis.set_major_formatter(_plain())
    axes.grid(axis="x", which="both", alpha=0.3)


def _draw_growth(axes: Axes, results: Sequence[Result], key: str, title: str, unit: str) -> None:
    lines: dict[str, list[tuple[int, float]]] = {}
    for result in results:
        for e in result["entrants"]:
            if e.get(key):
                lines.setdefault(e["name"], []).append((result["shape"][1], e[key]))
    for name, points in lines.items():
        colour, marker = _MARKS.get(name, ("#000000", "."))
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            color=colour,
            marker=marker,
            markeredgecolor="black",
            markeredgewidth=0.5,
            label=name,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    lengths = sorted({r["shape"][1] for r in results})
    axes.set_xticks(lengths, [f"{x // 1024}k" if x % 1024 == 0 else str(x) for x in lengths])
    axes.yaxis.set_major_formatter(_plain())
    axes.set(title=title, xlabel="T", ylabel=unit)
    axes.grid(alpha=0.3)


def _line(result: Result) -> str:
    """Describe the work at a shape."""
    return ", ".join(filter(None, (result["passes"], result["title"])))


def _ratios(result: Result) -> dict[str, dict[str, float]]:
    """By name, of all but anyscore."""
    return {e["name"]: e["ratio"] for e in result["entrants"][1:] if e["ratio"]}


def _plain() -> Any:
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: f"{value:g}")
