"""`anyscore report`: writes the report of a comparison again; merges comparisons."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anyscore.lab.cli.options import JSON_HELP, QUIET_HELP
from anyscore.lab.cli.output import print_json
from anyscore.lab.console import PlainConsole
from anyscore.lab.errors import InputError
from anyscore.lab.phrases import counted

REPORT_HELP = (
    "Write the report of a comparison again, from its trials; export tables and pictures.\n\n"
    "Several folders become one comparison, in the folder --out. Runs of the same settings put "
    "their trials together. If settings differ, the name of its run follows each score. All runs "
    "must have the same test items."
)


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folder of a comparison; several folders are merged or compared."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="New folder for the result of several folders.", show_default="none"),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            help="Folder for tables (CSV, LaTeX), pictures (PNG) and JSON.", show_default="none"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
    quiet: Annotated[bool, typer.Option(help=QUIET_HELP, show_default="off")] = False,
) -> None:
    """Check the options of a report, and write it."""
    if len(runs) == 1 and out is not None:
        raise InputError("--out: expected two folders or more to be merged, got one")
    if len(runs) > 1 and out is None:
        raise InputError("several folders need --out, a new folder for the result")
    from anyscore.lab.merging import merge
    from anyscore.lab.session import rebuild
    from anyscore.lab.terminal import show_outcome

    console = PlainConsole()
    if out is None:
        record, folder = rebuild(runs[0]), runs[0]
    else:
        (record, duplicates), folder = merge(runs, out), out
        if duplicates and not quiet and not as_json:
            remark_text = (
                f"{counted(duplicates, 'trial')} in several runs: those of the first are kept"
            )
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
