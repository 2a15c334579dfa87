"""`anyscore report`: the report of a finished comparison anew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anyscore.lab.cli.options import JSON_HELP, QUIET_HELP
from anyscore.lab.cli.output import print_json
from anyscore.lab.console import PlainConsole
from anyscore.lab.errors import InputError
from anyscore.lab.phrases import counted


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="The folder of a comparison; or several, to be merged or compared."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The new folder for several comparisons together.")
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(help="A folder for tables (CSV, LaTeX), pictures (PNG) and JSON."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
    quiet: Annotated[bool, typer.Option(help=QUIET_HELP)] = False,
) -> None:
    """Judge the trials in a folder again and write its report anew; export tables and pictures.

    Several folders become one. Runs of the same settings put their trials together; in runs of
    other settings each score is named after its run. All runs must have the same test items.
    """
    if len(runs) == 1 and out is not None:
        raise InputError("--out: expected several folders to be put together, got one")
    if len(runs) > 1 and out is None:
        raise InputError("expected --out with several folders, a new one for all of them together")
    from anyscore.lab.merging import merge
    from anyscore.lab.session import rebuild
    from anyscore.lab.terminal import show_outcome

    console = PlainConsole()
    if out is None:
        record, folder = rebuild(runs[0]), runs[0]
    else:
        (record, duplicates), folder = merge(runs, out), out
        if duplicates and not quiet and not as_json:
            remark_text = f"{counted(duplicates, 'trial')} of several runs: the first run's stand"
            console.print(remark_text, highlight=False)
    if export is not None:
        from anyscore.lab.report.exports import export as write_exports

        write_exports(record, export)
    if as_json:
        print_json(record)
    else:
        show_outcome(console, record, folder, quiet=quiet)
        if export is not None:
            remark_text = f"Tables and pictures: {export}"
            console.print(remark_text, highlight=False, soft_wrap=True)
