"""Heatmaps draw arrays of any framework and tokens of any script."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from anyscore.plot.heatmaps import show_heatmaps

pytestmark = pytest.mark.sample


def panels(figure: Any) -> list[Any]:
    """Return the heatmaps of a figure, without the colour bar."""
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]


def drawn(figure: Any) -> list[np.ndarray]:
    return [axes.images[0].get_array() for axes in panels(figure)]


@pytest.mark.parametrize(("shape", "count"), [((2, 3, 5, 7), 6), ((3, 5, 7), 3), ((5, 7), 1)])
def test_every_matrix_has_its_panel(shape: tuple[int, ...], count: int) -> None:
    matrices = np.random.default_rng(0).random(shape)
    figure = show_heatmaps(matrices, "Keys", "Queries")
    assert len(panels(figure)) == count
    assert len(figure.axes) == count + 1  # one colour bar
    np.testing.assert_array_equal(np.stack(drawn(figure)), matrices.reshape(count, 5, 7))


def test_axis_labels_stand_on_the_outer_panels() -> None:
    figure = show_heatmaps(np.ones((2, 2, 5, 7)), "Keys", "Queries", titles=["one", "two"])
    got = [(a.get_xlabel(), a.get_ylabel(), a.get_title()) for a in panels(figure)]
    assert got == [
        ("", "Queries", "one"),
        ("", "", "two"),
        ("Keys", "Queries", "one"),
        ("Keys", "", "two"),
    ]


def test_one_scale_for_all_panels() -> None:
    figure = show_heatmaps([[[0.1, 0.2]], [[0.3, 0.9]]], "Keys", "Queries")
    assert {axes.images[0].get_clim() for axes in panels(figure)} == {(0.0, 0.9)}
    figure = show_heatmaps([[-1.0, 2.0]], "Keys", "Queries", cmap="Blues")
    assert panels(figure)[0].images[0].get_clim() == (-1.0, 2.0)
    assert panels(figure)[0].images[0].get_cmap().name == "Blues"


@pytest.mark.parametrize(
    "matrices",
    [
        torch.full((2, 3), 0.5, requires_grad=True),
        torch.full((2, 3), 0.5, dtype=torch.bfloat16),
        [[torch.tensor(0.5, requires_grad=True)] * 3] * 2,
        [[0.5] * 3] * 2,
        np.full((2, 3), 0.5, dtype=np.float16),
    ],
    ids=["grad", "bfloat16", "tensors in lists", "lists", "float16"],
)
def test_anything_array_like(matrices: Any) -> None:
    np.testing.assert_array_equal(drawn(show_heatmaps(matrices, "", ""))[0], np.full((2, 3), 0.5))


def test_what_is_not_finite_stays_empty() -> None:
    figure = show_heatmaps([[np.nan, 0.5, np.inf]], "Keys", "Queries")
    figure.draw_without_rendering()
    assert drawn(figure)[0].mask.tolist() == [[True, False, True]]
    assert panels(figure)[0].images[0].get_clim() == (0.0, 0.5)
    show_heatmaps([[np.nan, np.nan]], "Keys", "Queries").draw_without_rendering()


def labels(figure: Any, axis: str) -> list[str]:
    ticks = getattr(panels(figure)[-1], f"get_{axis}ticklabels")()
    return [tick.get_text() for tick in ticks]


def test_tokens_of_any_script() -> None:
    keys = ["३", "月", "م", "ខ", "\u200f", " ", "$x$", "\U0010fffd"]
    figure = show_heatmaps(
        np.ones((1, 1, 2, 8)),
        "鍵",
        "\U0010fffd",
        ["سؤال"],
        xticklabels=keys,
        yticklabels=["a", "b"],
    )
    figure.draw_without_rendering()  # warnings are errors: no glyph is missing
    shown = labels(figure, "x")
    assert shown[5:] == ["␣", "$x$", "□"]
    assert shown[4] in ("\u200f", "□")
    assert labels(figure, "y") == ["a", "b"]
    assert panels(figure)[0].get_ylabel() == "□"


def test_a_font_is_found_by_its_glyphs(monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib as mpl
    from matplotlib import font_manager

    # The font cmr10 of matplotlib has no Cyrillic; another font of matplotlib has.
    monkeypatch.setitem(mpl.rcParams, "font.family", ["cmr10"])
    monkeypatch.setitem(mpl.rcParams, "axes.unicode_minus", False)
    monkeypatch.setitem(mpl.rcParams, "axes.formatter.use_mathtext", True)
    own = [e for e in font_manager.fontManager.ttflist if "mpl-data" in e.fname]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    figure = show_heatmaps(np.ones((1, 2)), "", "", xticklabels=["я", "ж"])
    figure.draw_without_rendering()
    assert labels(figure, "x") == ["я", "ж"]
    family = panels(figure)[0].get_xticklabels()[0].get_fontfamily()
    assert family[0] == "cmr10"
    assert len(family) > 1


def test_long_labels_shrink_and_stand_upright() -> None:
    tick = panels(show_heatmaps(np.ones((2, 40)), "", "", xticklabels=["word"] * 40))[0]
    assert tick.get_xticklabels()[0].get_rotation() == 90
    assert tick.get_xticklabels()[0].get_fontsize() < 6


@pytest.mark.parametrize(
    ("matrices", "options", "error", "message"),
    [
        (np.ones(3), {}, ValueError, r"\(rows, columns, queries, keys\).*but got 1 axes: \(3,\)"),
        (np.ones((1,) * 5), {}, ValueError, "but got 5 axes"),
        (np.ones((0, 3)), {}, ValueError, r"the shape \(0, 3\) is empty"),
        ([[1.0], [1.0, 2.0]], {}, TypeError, "needs a rectangular array of real numbers"),
        ("abc", {}, TypeError, "this str cannot be turned into one"),
        (np.ones((2, 2), complex), {}, TypeError, "complex128"),
        (np.ones((2, 3)), {"xticklabels": "ab"}, ValueError, "for each key: expected 3.* got 2"),
        (np.ones((2, 3)), {"yticklabels": "abc"}, ValueError, "each query: expected 2.* got 3"),
        (np.ones((2, 3)), {"titles": ["a", "b"]}, ValueError, "each column: expected 1.* got 2"),
    ],
)
def test_errors(matrices: Any, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        show_heatmaps(matrices, "Keys", "Queries", **options)
    assert "\n" not in str(caught.value)


def test_the_figure_is_the_callers_alone() -> None:
    from matplotlib import pyplot

    figure = show_heatmaps(np.ones((2, 3)), "Keys", "Queries", figsize=(3, 4))
    assert pyplot.get_fignums() == []
    assert tuple(figure.get_size_inches()) == (3, 4)
    assert figure._repr_png_().startswith(b"\x89PNG")  # a notebook shows this picture
    assert len(panels(pickle.loads(pickle.dumps(figure)))) == 1


def test_matplotlib_is_imported_only_to_draw() -> None:
    code = (
        "import sys, anyscore.plot as plot\n"
        "assert not {'matplotlib', 'torch'} & sys.modules.keys()\n"
        "sys.modules['matplotlib'] = sys.modules['matplotlib.figure'] = None\n"
        "try: plot.show_heatmaps([[1.0]], '', '')\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert "pip install 'anyscore[plot]'" in done.stdout
