"""Attention weights of translations become a picture or a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from anyscore.lab.errors import InputError
from anyscore.lab.report.alignments import label
from anyscore.lab.report.page import write_weights
from anyscore.lab.run_folder import write_whole
from anyscore.lab.translate.translations import Translation

MOST = 100
"""The most sources on a page."""
_SIDE = 200  # tokens of a side that a picture has room for


def check_place(option: str, path: Path | None) -> None:
    """Raise InputError, before any work, if `path` cannot be a file's."""
    if path is not None and path.is_dir():
        raise InputError(f"{option}: expected the name of a file, got the directory {path}")
    if path is not None and not path.parent.is_dir():
        raise InputError(f"{option}: there is no directory {path.parent}; make it, or give another")


def few(option: str, sources: Iterable[str], most: int) -> list[str]:
    """Take all sources, of which at least one and at most `most` have a text.

    Raises:
        InputError: there are fewer, or more.
    """
    taken, texts = [], 0
    for source in sources:
        taken.append(source)
        texts += bool(source.strip())
        if texts > most:
            break
    if not 1 <= texts <= most:
        wanted = "one source" if most == 1 else f"1 to {most} sources"
        got = "more; give fewer, or --json" if texts else "none; give some"
        raise InputError(f"{option}: expected {wanted} with a text, got {got}")
    return taken


def write_picture(translation: Translation, units: tuple[str, str], path: Path) -> None:
    """Write a heatmap as PNG, a row for each token of the output.

    Raises:
        InputError: a side is too long.
        RunFailure: the file cannot be written.
    """
    from anyscore.lab.report.charts import png
    from anyscore.plot.heatmaps import show_heatmaps

    across = [label(token, units[0]).text for token in translation.tokens]
    down = [label(token, units[1]).text for token in translation.output]
    if max(len(across), len(down)) > _SIDE:
        raise InputError(
            f"--png: expected at most {_SIDE} tokens on a side, got {len(across)} of the source "
            f"and {len(down)} of the output; give --html or --json"
        )
    figure = show_heatmaps(
        translation.rows,
        xlabel="source",
        ylabel="output",
        figsize=(2.2 + 0.25 * len(across), 1.4 + 0.25 * len(down)),
        xticklabels=across,
        yticklabels=down,
    )
    write_whole(path, png(figure))


def write_html(
    translations: Sequence[Translation], score: str, units: tuple[str, str], path: Path
) -> None:
    """Write a page with a heatmap of each source, as in a report.

    Raises:
        RunFailure: the file cannot be written.
    """
    shown = [
        {
            "source": list(translation.tokens),
            "answers": {score: {"output": translation.output, "weights": translation.rows}},
        }
        for translation in translations
    ]
    task = {"source_unit": units[0], "target_unit": units[1]}
    write_weights(path, {"examples": shown, "task": task}, score)
