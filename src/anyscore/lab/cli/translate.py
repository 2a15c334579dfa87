"""`anyscore translate`: runs a trained model on new sources."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from anyscore.lab.cli.output import close_stdout, print_json, remark
from anyscore.lab.errors import InputError
from anyscore.lab.phrases import listed, visible

_MOST_BEAMS = 256
_OF_FILES = (".txt", ".tsv", ".csv", ".jsonl", ".gz")

TRANSLATE_HELP = (
    "Run a trained model of a comparison on new sources.\n\n"
    "[bold]A text[/]. The model is that of the recommended score, with the seed of the lowest "
    "validation loss:\n\n"
    '    anyscore translate runs/dates-1a2b3c4d "30 mars 2024"\n\n'
    "[bold]A file[/], one source a line, by beam search:\n\n"
    "    anyscore translate runs/NAME sources.txt --beam 5 > outputs.txt\n\n"
    "[bold]Attention weights[/], as a picture:\n\n"
    '    anyscore translate runs/NAME "30 mars 2024" --png weights.png\n\n'
    "[bold]A page to play with[/]: a visitor types, and the model of each score answers:\n\n"
    "    anyscore translate runs/NAME --play page.html"
)


def translate(
    run: Annotated[
        Path, typer.Argument(help="Folder of a comparison, or of a trial: RUN/trials/NAME.")
    ],
    text: Annotated[
        str | None,
        typer.Argument(
            help="Source, or a file with one source a line; - is standard input.",
            show_default="standard input",
        ),
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(
            help="Score of the model; with --play, scores separated by commas.",
            show_default="the recommended one, else the highest mean; with --play all",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of the model.", show_default="the lowest validation loss"),
    ] = None,
    beam: Annotated[
        int,
        typer.Option(
            help="Width of the beam search, 1 to 256; 1 takes the most probable token each time."
        ),
    ] = 1,
    attention: Annotated[
        bool | None,
        typer.Option(
            "--attention/--no-attention",
            help="Show the attention weights; with --json, add them to the objects.",
            show_default="on for a text on a terminal",
        ),
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option(help="File for a heatmap of one source, as PNG.", show_default="none"),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            help="File for a page with heatmaps of 1 to 100 sources, as HTML.", show_default="none"
        ),
    ] = None,
    play: Annotated[
        Path | None,
        typer.Option(
            help="File for a page on which recurrent models answer any text, as HTML.",
            show_default="none",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a line, for each source.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option(help="Print no remarks on standard error.", show_default="off")
    ] = False,
) -> None:
    """Check the options of a translation, and print the answers."""
    with _quiet_end():
        from anyscore.lab.translate import pictures
        from anyscore.lab.translate.sources import is_text, read_sources
        from anyscore.lab.translate.trials import find_trial

        if not 1 <= beam <= _MOST_BEAMS:
            raise InputError(f"--beam: expected 1 to {_MOST_BEAMS}, got {beam}")
        pictures.check_place("--png", png)
        pictures.check_place("--html", html)
        if play is not None:
            given = {
                "TEXT": text is not None,
                "--beam": beam > 1,
                "--attention": attention is not None,
                "--png": png is not None,
                "--html": html is not None,
                "--json": as_json,
            }
            _write_play(run, score, seed, play, [name for name in given if given[name]], quiet)
            return
        single = is_text(text)
        folder = find_trial(run, score, seed)
        # See `compare`: threads that wait should sleep.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        from anyscore.lab.train.checkpoint import load_run
        from anyscore.lab.train.stepwise import Stepwise
        from anyscore.lab.translate.heatmap import heatmap
        from anyscore.lab.translate.translations import Notes, translate

        model = load_run(folder)
        units = model.source_tokeniser.unit, model.target_tokeniser.unit
        if beam > 1 and not isinstance(model.model, Stepwise):
            raise InputError("--beam: this model predicts labels, each by itself; leave it out")
        if not quiet:
            remark(f"model: {folder.name} of {run}")
            if single and Path(text or "").suffix in _OF_FILES:
                remark(f"there is no file {text}; the name itself is the source")
        if attention is None:
            attention = single and sys.stdout.isatty() and not (quiet or as_json)
        picture = png is not None or html is not None
        notes = Notes(model.limit, model.longest_source)
        sources = read_sources(text)
        if picture:
            option, most = ("--png", 1) if png else ("--html", pictures.MOST)
            sources = iter(pictures.few(option, sources, most))
        translations = []
        for translation in translate(
            model, sources, notes, beam=beam, return_weights=attention or picture
        ):
            if as_json:
                print_json(translation.record(weights=attention), indent=None)
            else:
                print(visible(translation.text))
                for line in heatmap(translation, units, _width()) if attention else ():
                    print(f"  {line}")
            if picture and translation.answer is not None:
                translations.append(translation)
        sys.stdout.flush()
        if png is not None:
            pictures.write_picture(translations[0], units, png)
        if html is not None:
            pictures.write_html(translations, model.model.score, units, html)
        if not quiet:
            for line in notes.lines():
                remark(line)


def _write_play(
    run: Path, score: str | None, seed: int | None, path: Path, others: list[str], quiet: bool
) -> None:
    """Write the page to play with.

    Args:
        others: names of given options that do not go with it.
    """
    from anyscore.lab.translate.pictures import check_place
    from anyscore.lab.translate.trials import find_trials

    if others:
        raise InputError(
            f"--play: visitors of the page type the sources; leave out {listed(others)}"
        )
    check_place("--play", path)
    trials = find_trials(run, None if score is None else score.split(","), seed)
    from anyscore.lab.play.page import write_play

    write_play(run, trials, path)
    if not quiet:
        remark(f"models: {listed([trial.name for trial in trials])} of {run}")


@contextmanager
def _quiet_end() -> Iterator[None]:
    """Exit without a message at Ctrl-C, or when the reader of the output leaves."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:
        close_stdout()
        raise typer.Exit(1) from None


def _width() -> int:
    """Return the columns that a line may have."""
    from rich.console import Console

    return max(20, Console().width - 2)
