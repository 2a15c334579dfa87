"""Pictures that docs/draw.py draws are those of the pages, and can be read on a phone."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("matplotlib")
from matplotlib.image import imread
from matplotlib.text import Text

DOCS = Path(__file__).parents[2] / "docs"
NAMES = "benchmarks", "biases", "distances", "fusion", "normalizers", "own_pair", "sinks"
PHONE = 350  # pixels of a picture on a phone 390 pixels wide
SMALLEST = 9  # pixels of a letter there
BLOCK = 16  # pixels; averages of blocks do not show how a font is smoothed


@pytest.fixture(scope="module")
def draw() -> Iterator[ModuleType]:
    sys.path.insert(0, str(DOCS))
    yield importlib.import_module("draw")
    sys.path.remove(str(DOCS))


def blocks(path: Path) -> np.ndarray:
    """Return the averages of the blocks of a picture."""
    pixels = imread(path)[..., :3]
    rows, columns = (n // BLOCK for n in pixels.shape[:2])
    shape = rows, BLOCK, columns, BLOCK, 3
    return pixels[: rows * BLOCK, : columns * BLOCK].reshape(shape).mean((1, 3))


def are_alike(one: Path, other: Path) -> bool:
    x, y = blocks(one), blocks(other)
    return x.shape == y.shape and np.abs(x - y).max() < 0.1


def test_every_picture_is_tested(draw: ModuleType) -> None:
    assert sorted(draw.PICTURES) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_the_drawn_one(draw: ModuleType, name: str, tmp_path: Path) -> None:
    assert are_alike(draw.draw(name, tmp_path), DOCS / f"{name}.png"), "run docs/draw.py"
    assert any(f"]({name}.png)" in page.read_text() for page in DOCS.glob("*.md"))


@pytest.mark.parametrize("name", NAMES)
def test_texts_are_readable_on_a_phone(draw: ModuleType, name: str) -> None:
    with draw.style():
        figure = draw.PICTURES[name]()
    texts = [x for x in figure.findobj(Text) if x.get_text() and x.get_visible()]
    inch = PHONE / figure.get_figwidth()
    assert min(x.get_fontsize() for x in texts) * inch / 72 >= SMALLEST


def test_the_chart_has_the_figures_of_the_file(draw: ModuleType) -> None:
    figure = draw.benchmarks()
    bars = [bar for axes in figure.axes for bar in axes.patches]
    assert len(bars) == 2 * 4 * 3
    words = {x.get_text() for x in figure.findobj(Text)}
    assert {"encoder", "seq2seq", "decoder step", "long", "67×", "0.62×"} <= words


def test_a_changed_picture_is_noticed(
    draw: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draw, "BLUE", draw.GREEN)
    for name in NAMES:
        assert not are_alike(draw.draw(name, tmp_path), DOCS / f"{name}.png")
    assert not are_alike(DOCS / "sinks.png", DOCS / "own_pair.png")
