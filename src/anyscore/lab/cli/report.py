"""`anyscore report`: the report of a finished comparison anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

JSON_HELP = "Print the comparison as JSON, and nothing else."
QUIET_HELP = "Print the verdict alone, without progress."


def report(
    run: Annotated[Path, typer.Argument(help="The folder of a comparison.")],
    export: Annotated[
        Path | None,
        typer.Option(help="A folder for tables (CSV, LaTeX), pictures (PNG) and JSON."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
    quiet: Annotated[bool, typer.Option(help=QUIET_HELP)] = False,
) -> None:
    """Judge the trials in a folder again and write its report anew; export tables and pictures."""
    from anyscore.lab.display import show_outcome
    from anyscore.lab.session import rebuild

    record = rebuild(run)
    if export is not None:
        from anyscore.lab.report.exports import export as write_exports

        write_exports(record, export)
    if as_json:
        print(json.dumps(record, ensure_ascii=False, indent=1))
    else:
        show_outcome(Console(), record, run, quiet=quiet)
