"""Where a model looked, as a picture and as a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from anyscore.lab.errors import InputError
from anyscore.lab.report.alignments import label
from anyscore.lab.report.page import write_page
from anyscore.lab.run_folder import write_whole
from anyscore.lab.translate.translations import Told

MOST = 100
"""Sources on a page."""
_SIDE = 200  # tokens of a side that a picture has room for


def check_place(option: str, path: Path | None) -> None:
    """Raises InputError, before any work, if `path` cannot be a file's."""
    if path is not None and path.is_dir():
        raise InputError(f"{option}: expected the name of a file, got the directory {path}")
    if path is not None and not path.parent.is_dir():
        raise InputError(f"{option}: there is no directory {path.parent}; make it, or give another")


def few(option: str, sources: Iterable[str], most: int) -> list[str]:
    """All sources, of which at least one and at most `most` have a text; InputError if not."""
    found, texts = [], 0
    for source in sources:
        found.append(source)
        texts += bool(source.strip())
        if texts > most:
            break
    if not 1 <= texts <= most:
        wanted = "one source" if most == 1 else f"1 to {most} sources"
        got = "more; give fewer, or --json" if texts else "none; give some"
        raise InputError(f"{option}: expected {wanted} with a text, got {got}")
    return found


def write_picture(told: Told, units: tuple[str, str], path: Path) -> None:
    """A heatmap as PNG, a row for each token of the output.

    Raises:
        InputError: a side is too long.
        RunFailure: the file cannot be written.
    """
    from anyscore.lab.report.pictures import png
    from anyscore.plot import show_heatmaps

    across = [label(token, units[0]).text for token in told.tokens]
    down = [label(token, units[1]).text for token in told.output]
    if max(len(across), len(down)) > _SIDE:
        raise InputError(
            f"--png: expected at most {_SIDE} tokens on a side, got {len(across)} of the source "
            f"and {len(down)} of the output; give --html or --json"
        )
    figure = show_heatmaps(
        told.rows,
        xlabel="source",
        ylabel="output",
        figsize=(2.2 + 0.25 * len(across), 1.4 + 0.25 * len(down)),
        xticklabels=across,
        yticklabels=down,
    )
    write_whole(path, png(figure))


def write_html(all_told: Sequence[Told], score: str, units: tuple[str, str], path: Path) -> None:
    """A page with a heatmap of each source, as in a report.

    Raises:
        RunFailure: the file cannot be written.
    """
    shown = [
        {
            "source": list(told.tokens),
            "answers": {score: {"output": told.output, "weights": told.rows}},
        }
        for told in all_told
    ]
    task = {"source_unit": units[0], "target_unit": units[1]}
    write_page("said.html.j2", path, {"examples": shown, "task": task}, [score])
