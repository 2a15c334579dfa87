"""Draw the pictures of pages.

    python docs/draw.py [NAME ...]      (all of them by default)

`tests/docs/test_pictures.py` draws each one again, and compares it with the picture beside this
file. A picture must be readable on a phone, 350 pixels wide, and without colours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle

import measurements
from anyscore import (
    ALiBi,
    Euclidean,
    Gaussian,
    Laplace,
    Lorentz,
    Relative,
    StudentT,
    attention,
    scores,
)
from anyscore.ops import load
from anyscore.score import LEAKY_RELU, Pair

WIDTH, DPI, FONT = 4.4, 200, 9  # inches, pixels an inch, points
BLUE, RED, GREEN, PURPLE, BLACK = "#0072B2", "#D55E00", "#007A5A", "#8E4585", "#222222"
"""Colours that people with any colour vision tell apart, dark enough for text."""
PALE_BLUE, PALE_RED = "#CFE3F1", "#F8D9C4"


def _figure(height: float) -> Figure:
    return Figure(figsize=(WIDTH, height), layout="constrained")


def _open(axes: Axes) -> None:
    """Remove the upper and the right line of the frame."""
    axes.spines[["top", "right"]].set_visible(False)


def fusion() -> Figure:
    """Draw the cube that the plain formula stores, and the tiles that the kernel passes."""
    figure = _figure(2.75)
    axes = figure.subplots()
    axes.set(xlim=(-0.35, 12.6), ylim=(-2.6, 6.3), aspect="equal")
    axes.axis("off")

    side, depth = 4.0, np.array([1.25, 0.95])
    front = np.array([[0, 0], [side, 0], [side, side], [0, side]])
    upper = np.array([[0, side], [side, side], *(np.array([[side, side], [0, side]]) + depth)])
    right = np.array([[side, 0], [side, side], *(np.array([[side, side], [side, 0]]) + depth)])
    for corners, shade in ((front, "#F3B98F"), (upper, PALE_RED), (right, "#E08B52")):
        axes.add_patch(Polygon(corners, facecolor=shade, edgecolor=RED, linewidth=1))
    corner = np.array([[0, side], [side, side], [side, 0]])
    for k in np.linspace(0, 1, 9)[1:-1]:  # slices: one for each feature
        axes.plot(*(corner + k * depth).T, color=RED, lw=0.4)
    axes.text(side / 2, -0.25, "keys", ha="center", va="top")
    axes.text(-0.2, side / 2, "queries", ha="right", va="center", rotation=90)
    axes.text(0.35, side + 0.5, "width", ha="center", va="bottom", rotation=37)
    axes.text(
        2.6,
        -1.15,
        "The plain formula\nstores 4 GiB",
        ha="center",
        va="top",
        color=RED,
        weight="bold",
    )

    left, cells = 7.9, 8
    size = side / cells
    axes.add_patch(Rectangle((left, 0), side, side, facecolor="white", edgecolor="#999999"))
    for k in range(1, cells):
        axes.plot([left + k * size] * 2, [0, side], color="#BBBBBB", lw=0.5)
        axes.plot([left, left + side], [k * size] * 2, color="#BBBBBB", lw=0.5)
    row = side - 3 * size
    axes.add_patch(Rectangle((left, row), 3 * size, size, facecolor=PALE_BLUE, edgecolor="none"))
    axes.add_patch(Rectangle((left + 3 * size, row), size, size, facecolor=BLUE, edgecolor=BLUE))
    axes.annotate(
        "",
        (left + side, row + size / 2),
        (left + 4 * size, row + size / 2),
        arrowprops={"arrowstyle": "->", "color": BLUE, "lw": 1.5},
    )
    axes.text(
        left + 3.5 * size,
        row + 1.3 * size,
        "one tile",
        ha="center",
        color=BLUE,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
    )
    axes.text(left + side / 2, -0.25, "keys", ha="center", va="top")
    axes.text(left - 0.2, side / 2, "queries", ha="right", va="center", rotation=90)
    axes.text(
        left + side / 2,
        -1.15,
        "anyscore holds one tile\nof scores: 16 KiB",
        ha="center",
        va="top",
        color=BLUE,
        weight="bold",
    )
    axes.text(6.1, 6.25, "4,096 queries and keys, width 64, float32", ha="center", va="top")
    return figure


def distances() -> Figure:
    """Draw the weight of a key at a distance, relative to that of a key at the query."""
    figure = _figure(2.9)
    axes = figure.subplots()
    steps = np.linspace(0, 10, 201)
    # Each number makes the weight ½ at the distance 1.
    half = np.log(2)
    lines = (
        (Lorentz(1.0, half / np.arcsinh(1.0)), "Lorentz", GREEN, "-", (10.15, 0.095)),
        (StudentT(1.0, 1.0), "StudentT", PURPLE, "--", (10.15, 0.0099)),
        (Euclidean(1 / half), "Euclidean,\nLaplace", BLUE, "-.", (10.15, 0.00098)),
        (Gaussian((0.5 / half) ** 0.5), "Gaussian", RED, "-", (4.1, 0.00002)),
    )
    for score, name, colour, style, at in lines:
        found = scores(np.zeros((1, 1)), steps[:, None], score=score)[0]
        axes.semilogy(steps, np.exp(found), style, color=colour, lw=1.8)
        axes.text(*at, name, color=colour, va="center")
    laplace = scores(np.zeros((1, 1)), steps[:, None], score=Laplace(1 / half))[0]
    euclidean = scores(np.zeros((1, 1)), steps[:, None], score=Euclidean(1 / half))[0]
    assert np.allclose(laplace, euclidean), "Laplace and Euclidean share a line"
    axes.plot([1], [0.5], "o", color=BLACK, ms=5, zorder=5)
    axes.annotate(
        "all ½ at distance 1",
        (1, 0.5),
        (2.2, 0.62),
        va="center",
        arrowprops={"arrowstyle": "-", "color": BLACK, "lw": 0.8},
    )
    axes.set(
        xlim=(0, 10),
        ylim=(1e-5, 1.15),
        xlabel="distance of the key",
        ylabel="weight ÷ weight at distance 0",
    )
    axes.set_xticks(range(0, 11, 2))
    _open(axes)
    return figure


def normalizers() -> Figure:
    """Draw the weight of one of two keys against its score."""
    figure = _figure(2.9)
    axes = figure.subplots()
    gaps = np.linspace(-4, 4, 161)  # how far the first of two keys scores above the second
    queries, keys = gaps[:, None] * [[1.0, 0.0]], np.eye(2)
    lines = (
        ("softmax", BLUE, "-", (-3.9, 0.075)),
        ("sigmoid", RED, "--", (2.55, 0.79)),
        ("entmax15", GREEN, "-.", (1.15, 1.09)),
        ("sparsemax", PURPLE, ":", (-1.1, 0.9)),
    )
    for name, colour, style, at in lines:
        of_two = attention(
            queries, keys, keys, normalizer=name, return_weights=True, score=lambda q, k: q @ k.T
        )
        axes.plot(gaps, of_two.weights[:, 0], style, color=colour, lw=2)
        axes.text(*at, name, color=colour)
    axes.annotate(
        "β = −log 2: ⅓\nat equal scores",
        (0, 1 / 3),
        (1.0, 0.2),
        color=RED,
        va="center",
        arrowprops={"arrowstyle": "->", "color": RED},
    )
    axes.annotate(
        "exactly 0",
        (-2, 0),
        (-3.3, 0.24),
        color=GREEN,
        arrowprops={"arrowstyle": "->", "color": GREEN},
    )
    axes.annotate("", (1.5, 0.965), (1.5, 1.085), arrowprops={"arrowstyle": "-", "color": GREEN})
    axes.annotate("", (-1, 0), (-2.5, 0.23), arrowprops={"arrowstyle": "->", "color": PURPLE})
    axes.set(
        xlabel="score of the key; the other key has 0", ylabel="weight of the key", xlim=(-4, 4)
    )
    axes.set_yticks([0, 0.5, 1])
    _open(axes)
    return figure


def biases() -> Figure:
    """Draw three biases: as matrices of queries and keys, and against the distance."""
    figure = _figure(3.5)
    upper, lower = figure.subplots(2, 3, sharey="row", height_ratios=(1.25, 1))
    n = 24
    tokens = np.zeros((n, 1))
    steps = -np.minimum(np.arange(16) % 8, 7) / 7.0  # a bucket further is 1/7 less
    chosen = (
        ("Relative\nclipped at 4", Relative(-np.abs(np.arange(-4.0, 5)) / 4), BLUE),
        ("Relative\nbuckets of T5", Relative(steps, "t5", max_distance=24), PURPLE),
        ("ALiBi\n ", ALiBi(np.array(1 / (n - 1))), GREEN),
    )
    for top, below, (title, bias, colour) in zip(upper, lower, chosen, strict=True):
        matrix = scores(tokens, tokens, bias=bias)
        image = top.imshow(matrix, cmap="Reds", vmin=-1, vmax=0)
        top.set_title(title)
        top.set(xticks=[], yticks=[], xlabel="keys")
        middle = n // 2
        row = scores(np.zeros((2 * middle + 1, 1)), np.zeros((2 * middle + 1, 1)), bias=bias)[
            middle
        ]
        below.step(np.arange(-middle, middle + 1), row, where="mid", color=colour, lw=1.5)
        below.set(xticks=[-8, 0, 8], xlabel="distance j − i", ylim=(-1.08, 0.1))
        _open(below)
    upper[0].set_ylabel("queries")
    lower[0].set(ylabel="bias", yticks=[-1, 0])
    figure.colorbar(image, ax=list(upper), shrink=0.9, ticks=[-1, 0]).set_label("bias", labelpad=-4)
    return figure


def sinks() -> Figure:
    """Draw the shares of each query's weight: its best key, other keys, and the sink."""
    figure = _figure(2.75)
    panels = figure.subplots(1, 3, sharey=True, sharex=True)
    figure.get_layout_engine().set(wspace=0.08)
    keys = 3 * np.linalg.qr(np.random.default_rng(1).normal(size=(8, 8)))[0][:6]
    queries = keys * np.linspace(0, 1.5, 6)[:, None]  # each of its key, ever longer
    at = np.arange(6)
    for axes, sink in zip(panels, (None, 0.0, 2.0), strict=True):
        weights = attention(queries, keys, keys, sink=sink, return_weights=True).weights
        best, total = weights[at, at], weights.sum(-1)
        axes.barh(at, best, color=BLUE, height=0.8)
        axes.barh(at, total - best, left=best, color="#9CC7E4", height=0.8)
        axes.barh(
            at, 1 - total, left=total, color="white", edgecolor=RED, hatch="////", height=0.8, lw=0
        )
        axes.set_title("no sink" if sink is None else f"σ = {sink:g}")
        axes.set(
            xticks=[0, 1],
            xlim=(0, 1.001),
            yticks=[0, 5],
            yticklabels=["query fits\nno key", "query fits\none key"],
        )
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    panels[0].invert_yaxis()
    panels[1].set_xlabel("share of the weight")
    handles = [
        Rectangle((0, 0), 1, 1, color=BLUE),
        Rectangle((0, 0), 1, 1, color="#9CC7E4"),
        Rectangle((0, 0), 1, 1, facecolor="white", edgecolor=RED, hatch="////", lw=0),
    ]
    figure.legend(
        handles,
        ["best key", "other keys", "the sink"],
        loc="outside lower center",
        ncols=3,
        frameon=False,
        columnspacing=1.2,
        handlelength=1.4,
    )
    return figure


def own_pair() -> Figure:
    """Draw two pairs from formulas beside a built-in one, and the times of the page's table."""
    figure = _figure(2.5)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    xp, x = load("numpy"), np.linspace(-4, 4, 161)
    formulas = (
        ("leaky_relu", "leaky_relu, built in", BLUE, "--"),
        ("swish", "(a + b)*sigmoid(a + b)", GREEN, "-"),
        ("softplus", "log(1 + exp(a + b))", RED, "-"),
    )
    rows = measurements.read("zen5-options")["rows"]
    times = {x["variant"].strip("`"): x["median"] for x in rows if x["quantity"] == "forward: ms"}
    for at, (name, text, colour, style) in enumerate(formulas):
        pair = LEAKY_RELU if name == LEAKY_RELU.name else Pair.from_formula(name, text)
        left.plot(x, pair.value(xp, x, 0 * x), style, color=colour, lw=1.8)
        time = times[text]
        right.barh(at, time, color=colour, height=0.35)
        right.text(1, at - 0.28, text, color=colour)
        right.text(time + 1, at, f"{time:.0f} ms", color=colour, va="center")
    left.set(xlabel="a + b", title="pair(a, b)", xlim=(-4, 4), xticks=[-4, 0, 4], yticks=[0, 4])
    right.set(title="time of a forward", ylim=(2.4, -0.7), xlim=(0, 85), xticks=[], yticks=[])
    right.spines[["bottom", "top", "right"]].set_visible(False)
    _open(left)
    return figure


CHARTED = "xeon", "speed: time ÷ anyscore"
"""The file and the quantity of the chart of benchmarks."""


def benchmarks() -> Figure:
    """Draw the time of others, where anyscore takes 1, of workloads without and with gradients."""
    file, quantity = CHARTED
    rivals = {"eager": "#56B4E9", "compile": BLUE, "dot": "#E69F00"}  # colours of Okabe and Ito
    measured = measurements.read(file)
    medians = {
        (row["workload"], row["variant"]): row["median"]
        for row in measured["rows"]
        if row["quantity"] == quantity and row["variant"] in rivals
    }
    names = list(dict.fromkeys(workload.partition(", ")[0] for workload, _ in medians))
    figure = _figure(5.2)
    panels = figure.subplots(2, 1, sharex=True)
    for axes, gradients in zip(panels, (False, True), strict=True):
        for (workload, variant), median in medians.items():
            if workload.endswith(", with gradients") != gradients:
                continue
            y = names.index(workload.partition(", ")[0]) + 0.26 * ([*rivals].index(variant) - 1)
            axes.barh(y, median - 1, left=1, height=0.25, color=rivals[variant])
            text = f"{median:.0f}×" if median >= 10 else f"{median:.2f}×"
            shift, side = (3, "left") if median >= 1 else (-3, "right")
            axes.annotate(
                text, (median, y), (shift, -0.5), textcoords="offset points", ha=side, va="center"
            )
        axes.axvline(1, color=BLACK, lw=1.2)
        axes.set(xscale="log", xlim=(0.12, 220), ylim=(len(names) - 0.5, -0.5), xticks=[])
        axes.set_title("with gradients" if gradients else "forward", loc="left")
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(length=0)
        axes.minorticks_off()
        axes.spines[:].set_visible(False)
    panels[1].text(0.9, len(names) - 0.35, "← faster", ha="right", va="top")
    panels[1].text(1.1, len(names) - 0.35, "slower than anyscore →", va="top")
    titles = [measurements.heading(name).replace("`", "") for name in rivals]
    handles = [Rectangle((0, 0), 1, 1, color=colour) for colour in rivals.values()]
    machine, when = measured["machine"], measured["date"]
    processor = machine["processor"].partition(" (")[0]
    figure.suptitle(
        "Additive attention: time of others ÷ anyscore's\n"
        f"{processor}, {machine['threads']} threads, float32, {when}; log scale",
        fontsize=FONT,
    )
    figure.legend(handles, titles, loc="outside lower center", frameon=False, labelspacing=0.3)
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    f.__name__: f for f in (benchmarks, biases, distances, fusion, normalizers, own_pair, sinks)
}


def style() -> AbstractContextManager[None]:
    """Return a context in which texts have one size."""
    sizes = dict.fromkeys(("font.size", "axes.labelsize", "axes.titlesize"), FONT)
    return mpl.rc_context({**sizes, "hatch.linewidth": 0.8})


def draw(name: str, folder: Path) -> Path:
    """Write a picture into a folder, and return its path."""
    path = folder / f"{name}.png"
    with style():
        PICTURES[name]().savefig(path, dpi=DPI, metadata={"Software": None})
    return path


if __name__ == "__main__":
    for chosen in sys.argv[1:] or PICTURES:
        print(draw(chosen, Path(__file__).parent))
