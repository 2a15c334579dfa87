"""The command line: `anyscore compare`, `prove`, `translate`, `report`, `bench`, `info`."""

from __future__ import annotations

from typing import Annotated

import typer

from anyscore import __version__
from anyscore.lab.cli.bench import BENCH_HELP, bench
from anyscore.lab.cli.compare import COMPARE_HELP, compare
from anyscore.lab.cli.info import info
from anyscore.lab.cli.output import one_line_errors, use_plain_characters
from anyscore.lab.cli.prove import PROVE_HELP, prove
from anyscore.lab.cli.report import REPORT_HELP, report
from anyscore.lab.cli.translate import TRANSLATE_HELP, translate

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Which attention scoring function suits your data?\n\n"
    "[bold]anyscore compare[/] trains a small model with each score, several times, and says which "
    "scores differ.",
)


def _show_version(flag: bool) -> None:
    """Print the version and exit, if the option is set."""
    if flag:
        print(f"anyscore {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    use_plain_characters()


app.command(help=COMPARE_HELP)(one_line_errors()(compare))
app.command(help=TRANSLATE_HELP)(one_line_errors()(translate))
app.command(help=PROVE_HELP)(one_line_errors()(prove))
app.command(help=REPORT_HELP)(one_line_errors()(report))
app.command(help=BENCH_HELP)(one_line_errors()(bench))
app.command()(one_line_errors()(info))
