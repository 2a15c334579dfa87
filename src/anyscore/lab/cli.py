"""The command line: `anyscore compare`, `anyscore bench` and `anyscore info`."""

from __future__ import annotations

import codecs
import io
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from anyscore import __version__
from anyscore.lab.bench_command import BENCH_HELP, bench
from anyscore.lab.errors import InputError
from anyscore.lab.files import RunFailure, run_folder
from anyscore.lab.wording import visible
from anyscore.layers import SCORES

DEFAULT_SCORES = ("scaled_dot", "bilinear", "additive", "gaussian", "gatv2")

_PLAINER = "anyscore.plainer"  # how what a terminal cannot show is written
_ALIKE = {"→": "->", "•": "-", "·": ".", "−": "-", "‖": "|", "…": "...", "⇥": "|"}

# The default width and training steps, of the dates and of a file. The dates are easy: a wide model
# answers them with any score, a narrow one shows what a score is worth.
_HIDDEN = {True: 32, False: 128}
_STEPS = {True: 1900, False: 1000}

_COMPARE_HELP = (
    "Train one small model with each attention score; say which is worth it.\n\n"
    "[bold]Try it[/]: dates in many languages to 2024-03-30. No file needed, a few minutes.\n\n"
    "    anyscore compare\n\n"
    "[bold]Your own pairs[/], with every score, for 20 epochs:\n\n"
    "    anyscore compare pairs.tsv --scores all --epochs 20\n\n"
    "[bold]A large table with named columns[/], a part of it first:\n\n"
    "    anyscore compare big.csv.gz --source en --target fr --limit 5000\n\n"
    "Each score has the same first parameters, order of the data and budget. The run folder gets "
    "report.html (open it in a browser), metrics.json and every trained model. Ctrl-C stops "
    "early and reports what is finished."
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Which attention scoring function suits your data?\n\n"
    "[bold]anyscore compare[/] trains one small model with each of them and says.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"anyscore {__version__}")
        raise typer.Exit


def _plainer(error: UnicodeError) -> tuple[str, int]:
    """Other characters for those that a terminal does not have."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_ALIKE.get(character, "?") for character in missing), error.end


codecs.register_error(_PLAINER, _plainer)


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without "→" is no reason to fail
            stream.reconfigure(errors=_PLAINER)


@app.command(help=_COMPARE_HELP)
def compare(
    pairs: Annotated[
        Path | None,
        typer.Argument(
            help="A UTF-8 table of sequence pairs, source and target: .tsv or .csv, also .gz. "
            "Without it: dates in many languages, made on the spot.",
            show_default=False,
        ),
    ] = None,
    scores: Annotated[
        str, typer.Option(help="Names with commas between them, or [bold]all[/].")
    ] = ",".join(DEFAULT_SCORES),
    seed: Annotated[
        int, typer.Option(help="Of the split, the first parameters and the order of the data.")
    ] = 0,
    epochs: Annotated[
        int | None,
        typer.Option(
            help="How often every pair is seen.", show_default="as the number of pairs asks"
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Pairs in a training step.")] = 64,
    hidden: Annotated[
        int | None,
        typer.Option(help="Width of the model.", show_default="32 for the dates, 128 for a file"),
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu, cuda, cuda:1, mps; auto is a GPU if there is one.")
    ] = "auto",
    threads: Annotated[
        int, typer.Option(help="Of the CPU. One is fastest for models as small as these.")
    ] = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the run; must be new or empty.", show_default="runs/TASK-DATE-TIME"
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(help="Column of the sources: a number or a name.", show_default="1"),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="Column of the targets: a number or a name.", show_default="2"),
    ] = None,
    unit: Annotated[
        str,
        typer.Option(help="What a token is: character or word; auto looks at the texts."),
    ] = "auto",
    limit: Annotated[
        int | None,
        typer.Option(help="Use so many different sources only.", show_default="all of them"),
    ] = None,
) -> None:
    """Everything the command line says about a comparison, checked and passed on."""
    with _one_line_errors():
        names = _scores(scores)
        numbers = {"--epochs": epochs, "--batch-size": batch_size, "--hidden": hidden}
        numbers["--threads"] = threads
        for option, value in numbers.items():
            if value is not None and value < 1:
                raise InputError(f"{option}: expected 1 or more, got {value}")
        if not 0 <= seed < 2**31:
            raise InputError(f"--seed: expected 0 to {2**31 - 1}, got {seed}")
        if unit not in ("auto", "character", "word"):
            raise InputError(f"--unit: expected auto, character or word, got {unit!r}")
        # Threads that wait should sleep: on a machine that is busy with other work, threads that
        # spin made a training step forty times slower. It must be said before PyTorch comes in.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        # Here, because they import PyTorch: help and complaints should not wait for it.
        import torch

        from anyscore.lab.compare import compare as run
        from anyscore.lab.data import load_task
        from anyscore.lab.devices import find_device
        from anyscore.lab.display import TerminalWatcher, show_outcome
        from anyscore.lab.training import Settings, default_epochs

        found = find_device(device)
        torch.set_num_threads(threads)
        task = load_task(
            pairs,
            source=source,
            target=target,
            unit=cast(Literal["auto", "character", "word"], unit),
            seed=seed,
            limit=limit,
        )
        settings = Settings(
            scores=names,
            seed=seed,
            epochs=epochs or default_epochs(task, batch_size, _STEPS[pairs is None]),
            batch_size=batch_size,
            hidden=hidden or _HIDDEN[pairs is None],
            device=found,
        )
        console = Console()
        with run_folder(out, task.name) as folder:
            watcher = TerminalWatcher(console, folder)
            try:
                metrics = run(task, settings, folder, watcher=watcher, command=_command())
            finally:
                watcher.stop()
        show_outcome(console, metrics, folder)
        if metrics["interrupted"]:
            raise typer.Exit(130)
        if any("failure" in record for record in metrics["scores"]):
            raise typer.Exit(1)


@app.command()
def info() -> None:
    """Show versions, devices, and how each score would be computed here, and why."""
    with _one_line_errors():
        from anyscore.lab.info import core, devices, frameworks
        from anyscore.lab.places import plans

        console = Console()
        console.print(f"anyscore {__version__}, Python {sys.version.split()[0]}", highlight=False)
        table = Table("framework", "installed")
        for framework in frameworks():
            table.add_row(framework.name, framework.version or "no")
        console.print(table)
        table = Table("device", "what it is")
        for name, description in devices():
            table.add_row(name, description)
        console.print(table)
        console.print(core(), markup=False, highlight=False)
        table = Table("score", "formula")
        for name, score in SCORES.items():
            table.add_row(name, escape(score.formula))
        console.print(table)
        table = Table("tensors of", "scores", "are computed by", "because", show_lines=True)
        asked = [x.package for x in frameworks() if x.version and x.package != "keras"]
        for place, found in plans(asked).items():
            if isinstance(found, str):
                table.add_row(place, "", "", escape(found))
                continue
            reasons: dict[Any, list[str]] = {}
            for name, plan in found.items():
                reasons.setdefault(plan, []).append(name)
            for plan, names in reasons.items():
                said = "all" if len(names) == len(SCORES) else ", ".join(names)
                table.add_row(place, said, plan.route, escape(plan.reason))
        console.print(table)


def _scores(text: str) -> tuple[str, ...]:
    """The names in `--scores`, in the order given."""
    if text.strip() == "all":
        return tuple(SCORES)
    names = [name for name in (part.strip() for part in text.split(",")) if name]
    if not names:
        raise InputError(f"--scores: expected names, got none; there are {', '.join(SCORES)}")
    for name in names:
        if name not in SCORES:
            near = get_close_matches(name.lower(), SCORES, n=1, cutoff=0.5)
            meant = f"did you mean {near[0]}? " if near else ""
            raise InputError(
                f"--scores: there is no score {name!r}; {meant}there are {', '.join(SCORES)}"
            )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"--scores: {', '.join(twice)} given twice; give each score once")
    return tuple(names)


def _command() -> str:
    """What was typed, as it can be typed again."""
    return shlex.join(["anyscore", *sys.argv[1:]])


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Bad input and failures as one line on stderr and an exit status; no traceback."""
    try:
        yield
    except InputError as error:
        _complain(str(error))
        raise typer.Exit(2) from None
    except RunFailure as error:
        _complain(str(error))
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        _complain("stopped; nothing more was written")
        raise typer.Exit(130) from None
    except OSError as error:
        _complain(f"the output cannot be written ({error.strerror or error})")
        raise typer.Exit(1) from None


def _complain(text: str) -> None:
    line = " ".join(visible(text).splitlines())
    Console(stderr=True).print(
        f"anyscore: {line}", style="bold red", markup=False, highlight=False, soft_wrap=True
    )


app.command(help=BENCH_HELP)(_one_line_errors()(bench))
