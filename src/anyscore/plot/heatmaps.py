"""Pictures of attention weights: heatmaps, as in *Dive into Deep Learning*, and a page to explore.

Heatmaps take arrays of any framework. matplotlib is imported when a heatmap is drawn.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anyscore.plot.recording import Recording, to_numpy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontEntry
    from numpy.typing import NDArray

__all__ = ["explore", "show_heatmaps"]

_BOX = "□"  # drawn in place of a character that no installed font has


def explore(
    recording: Recording | Mapping[str, Any],
    queries: Any = None,
    keys: Any = None,
    path: str | PathLike[str] = "attention.html",
    title: str = "Attention weights",
) -> Path:
    """Write recorded attention weights as one page that shows any head of any layer.

    The page is one file without network requests. The page stores √w of each weight w in one byte,
    with an error of w of at most 0.004. An existing file is replaced whole.

    Args:
        recording: a `Recording` of `anyscore.record`. Or a mapping from names of layers to weights
            of any framework: (examples, heads, T_q, T_k), (heads, T_q, T_k) or (T_q, T_k).
        queries, keys: labels of the tokens: a list of texts, or one such list for each example; or
            a mapping from names of layers to either. By default keys have the labels of the
            queries, if there are as many keys as queries. Tokens without labels are numbered.
            Invisible characters are written as codes, and outer spaces as ␣.
        path: the path of the file. By default "attention.html".
        title: the title of the page.

    Returns:
        The path.

    Raises:
        TypeError, ValueError: Nothing was recorded. Labels are not one for each token, or name a
            layer that was not recorded. Weights are outside [0, 1], or too many for a page.
        OSError: The file cannot be written, is a folder, or its folder does not exist.

    >>> import tempfile
    >>> import numpy as np
    >>> from anyscore.plot import explore
    >>> weights, folder = np.full((1, 2, 3, 3), 1 / 3), tempfile.mkdtemp()
    >>> page = explore({"encoder": weights}, ["a", "b", "c"], path=f"{folder}/page.html")
    >>> "encoder" in page.read_text()
    True
    """
    from anyscore.plot.explorer import write_explorer
    from anyscore.plot.page import file_of

    path = file_of(path)
    write_explorer(recording, queries, keys, path, title)
    return path


def show_heatmaps(
    matrices: Any,
    xlabel: str,
    ylabel: str,
    titles: Sequence[str] | None = None,
    figsize: tuple[float, float] = (2.5, 2.5),
    cmap: str = "Reds",
    xticklabels: Sequence[str] | None = None,
    yticklabels: Sequence[str] | None = None,
) -> Figure:
    """Draw a grid of heatmaps with one colour scale.

    A notebook shows the returned figure; a script calls `figure.savefig(path)`. pyplot does not
    manage the figure, so no call has to close the figure.

    Args:
        matrices: (rows, columns, queries, keys), an array or tensor of any framework, on any
            device; (columns, queries, keys) is one row and (queries, keys) one panel. The colours
            start at 0, or at the smallest value if it is negative. Cells with NaN or infinity stay
            empty.
        xlabel: the name of the keys, under the lowest panels.
        ylabel: the name of the queries, beside the leftmost panels.
        titles: one for each column. By default None.
        figsize: width and height of the whole figure in inches. By default (2.5, 2.5).
        cmap: the name of a matplotlib colour map. By default "Reds".
        xticklabels: one for each key, tokens of any script; a space is shown as ␣. By default
            None, for numbers.
        yticklabels: one for each query. By default None, for numbers.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: matplotlib is not installed.
        TypeError: `matrices` does not hold real numbers.
        ValueError: The rank is wrong, an axis is empty, or numbers of titles or labels are wrong.

    >>> import numpy as np
    >>> from anyscore.plot import show_heatmaps
    >>> weights = np.eye(4).reshape(1, 1, 4, 4)
    >>> figure = show_heatmaps(weights, "Keys", "Queries", titles=["diagonal"])
    >>> figure.axes[0].get_title(), figure.axes[0].get_xlabel()
    ('diagonal', 'Keys')
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "show_heatmaps draws with matplotlib, which is not installed: "
            "pip install 'anyscore[plot]'"
        ) from error

    values = _grid(matrices)
    rows, columns, queries, keys = values.shape
    _check_count("titles", titles, columns, "column")
    _check_count("xticklabels", xticklabels, keys, "key")
    _check_count("yticklabels", yticklabels, queries, "query")

    # One scale for all panels, because they share the colour bar.
    finite = values[np.isfinite(values)]
    low = min(0.0, float(finite.min())) if finite.size else 0.0
    high = float(finite.max()) if finite.size else 1.0
    if high <= low:
        high = low + 1.0
    shown = np.ma.masked_invalid(values)

    figure = Figure(figsize=figsize, layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for i in range(rows):
        for j in range(columns):
            axes = panels[i, j]
            image = axes.imshow(shown[i, j], cmap=cmap, vmin=low, vmax=high)
            if i == rows - 1:
                axes.set_xlabel(**_writable(xlabel, "xlabel"))
            if j == 0:
                axes.set_ylabel(**_writable(ylabel, "ylabel"))
            if titles is not None:
                axes.set_title(**_writable(titles[j], "label"))
    # Panels share their axes: labels of the outer panels apply to all.
    _label_ticks(panels[-1], "x", xticklabels, figsize[0] / columns)
    _label_ticks(panels[:, 0], "y", yticklabels, figsize[1] / rows)
    figure.colorbar(image, ax=panels, shrink=0.6)
    # Without pyplot IPython has no PNG formatter for figures, so the figure brings its own.
    vars(figure)["_repr_png_"] = functools.partial(_png, figure)
    return figure


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _grid(matrices: Any) -> NDArray[np.float64]:
    """Return the matrices as float64, ``(rows, columns, queries, keys)``."""
    try:
        values = to_numpy(matrices, np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(
            "show_heatmaps needs a rectangular array of real numbers, "
            f"but this {type(matrices).__name__} cannot be turned into one: {error}"
        ) from error
    if not 2 <= values.ndim <= 4:
        raise ValueError(
            "show_heatmaps needs matrices of shape (rows, columns, queries, keys), "
            "(columns, queries, keys) or (queries, keys), "
            f"but got {values.ndim} axes: {values.shape}"
        )
    if not values.size:
        raise ValueError(f"show_heatmaps has nothing to draw: the shape {values.shape} is empty")
    return values.reshape((1,) * (4 - values.ndim) + values.shape)


def _check_count(name: str, labels: Sequence[str] | None, expected: int, of: str) -> None:
    if labels is not None and len(labels) != expected:
        raise ValueError(
            f"show_heatmaps needs one of {name} for each {of}: "
            f"expected {expected}, but got {len(labels)}"
        )


def _label_ticks(
    panels: Iterable[Axes], direction: str, tokens: Sequence[str] | None, inches: float
) -> None:
    """Label the ticks of an axis with ``tokens``, by default whole numbers, in fonts that fit."""
    import matplotlib as mpl
    from matplotlib.font_manager import FontProperties
    from matplotlib.ticker import MaxNLocator

    axes_of = [panel.xaxis if direction == "x" else panel.yaxis for panel in panels]
    if tokens is None:
        for axis in axes_of:
            axis.set_major_locator(MaxNLocator(integer=True))
        return
    labels = ["␣" if str(token).isspace() else str(token) for token in tokens]
    families, missing = _fonts("".join(labels))
    labels = [_boxed(label, missing) for label in labels]
    usual = mpl.rcParams["xtick.labelsize" if direction == "x" else "ytick.labelsize"]
    usual = FontProperties(size=usual).get_size_in_points()
    size = min(usual, max(4.0, 0.6 * 72 * inches / len(labels)))
    rotation = 90 if direction == "x" and max(map(len, labels)) > 2 else 0
    for axis in axes_of:
        axis.set_ticks(
            range(len(labels)),
            labels,
            fontfamily=families,
            fontsize=size,
            rotation=rotation,
            parse_math=False,  # a token "$" is a dollar
        )


def _writable(text: str, argument: str) -> dict[str, Any]:
    """Return keyword arguments: ``text`` under the name ``argument``, and font families for it."""
    families, missing = _fonts(text)
    return {argument: _boxed(text, missing), "fontfamily": families}


def _boxed(text: str, missing: frozenset[str]) -> str:
    return "".join(_BOX if character in missing else character for character in text)


def _fonts(text: str) -> tuple[list[str], frozenset[str]]:
    """Return font families for ``text``, the user's first, and the characters none can draw."""
    import matplotlib as mpl

    usual = tuple(mpl.rcParams["font.family"])
    # The fonts must also have the box.
    chosen, missing = _cover(frozenset(text + _BOX), usual)
    return [*usual, *chosen], missing


@functools.lru_cache(maxsize=256)
def _cover(
    characters: frozenset[str], usual: tuple[str, ...]
) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return families for characters that ``usual`` lacks, and the characters none can draw."""
    from matplotlib import font_manager

    missing = characters - {"\n"}
    for family in usual:
        missing -= _drawable(
            font_manager.findfont(font_manager.FontProperties(family=[family])), missing
        )
    regular: dict[str, FontEntry] = {}
    if missing:
        for entry in font_manager.fontManager.ttflist:
            # A "last resort" font draws a box for every character.
            if entry.style == "normal" and "lastresort" not in entry.name.lower().replace(" ", ""):
                best = regular.setdefault(entry.name, entry)
                if abs(_weight(entry) - 400) < abs(_weight(best) - 400):
                    regular[entry.name] = entry
    drawable = {name: _drawable(entry.fname, missing) for name, entry in regular.items()}
    chosen = []
    while missing and drawable:
        # Most characters first; among equals a plain "Sans", then the shorter name.
        counts = {name: len(drawable[name] & missing) for name in drawable}
        name = max(drawable, key=lambda n: (counts[n], "Sans" in n, -len(n), n))
        if not counts[name]:
            break
        chosen.append(name)
        missing -= drawable[name]
    return tuple(chosen), missing


def _weight(entry: FontEntry) -> int:
    from matplotlib.font_manager import weight_dict

    return entry.weight if isinstance(entry.weight, int) else weight_dict.get(entry.weight, 400)


def _drawable(path: str, characters: frozenset[str]) -> frozenset[str]:
    """Return the ``characters`` for which the font file has a glyph."""
    from matplotlib.ft2font import FT2Font

    try:
        font = FT2Font(path)
    except (OSError, RuntimeError):  # an unreadable file, or a font of bitmaps only
        return frozenset()
    return frozenset(c for c in characters if font.get_char_index(ord(c)))
