"""One HTML file holds the models of a comparison, and the JavaScript that runs and draws them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anyscore.lab.play.export import play_data
from anyscore.lab.report.rendering import render_page
from anyscore.lab.run_folder import write_whole


def play_page(data: dict[str, Any]) -> bytes:
    """Return the page of the data that `play_data` returns."""
    return render_page(
        "play.html.j2",
        data["title"],
        folder="lab/play",
        styles=("play.css", "plane.css", "proofs.css"),
        script="play.js",
        data=data,
    )


def write_play(folder: Path, trials: Sequence[Path], path: Path) -> None:
    """Write the page of models of a comparison; see `play_data`.

    Raises:
        InputError: see `play_data`.
        RunFailure: the file cannot be written.
    """
    write_whole(path, play_page(play_data(folder, trials)))
