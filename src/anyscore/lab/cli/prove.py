"""`anyscore prove`: repeats published findings on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from anyscore.lab.cli.output import print_json, typed_command
from anyscore.lab.console import PlainConsole
from anyscore.lab.errors import InputError
from anyscore.lab.prove.names import NAMES, check, find

PROVE_HELP = (
    "Repeat five published findings on attention scores here; say which are confirmed.\n\n"
    "[bold]All findings[/], in a quarter of an hour on two cores:\n\n"
    "    anyscore prove\n\n"
    "[bold]Some findings[/], a few minutes each:\n\n"
    "    anyscore prove lookup middle\n\n"
    "lookup: GAT and GATv2 look words up in a dictionary. middle: scores pick a key on a line. "
    "neighbours: attention as kernel regression. longer: test sequences are longer than training "
    "sequences. width: additive and multiplicative attention of four widths, on Chinese "
    "phrases.\n\n"
    "On the project's machine two findings were confirmed, two were undecided and one was not. The "
    "folder gets report.html, proofs.json and every trial. The same command continues a run that "
    "was stopped, and adds --seeds."
)


def prove(
    names: Annotated[
        list[str] | None,
        typer.Argument(help=f"Names of the findings: {', '.join(NAMES)}.", show_default="all five"),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds of each score, 1 to 10,000.")] = 5,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("runs/proofs"),
    jobs: Annotated[
        int,
        typer.Option(
            help="Number of trials that run side by side, 1 to 10,000.",
            show_default="one per core",
        ),
    ] = 0,
    page: Annotated[
        Path | None,
        typer.Option(help="File for the results as a page in Markdown.", show_default="none"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the content of proofs.json, and nothing else.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option(help="Print the results without progress.", show_default="off")
    ] = False,
) -> None:
    """Check the options of proofs, and carry the proofs out."""
    check(names or ())
    if not 1 <= seeds <= 10_000:
        raise InputError(f"--seeds: expected 1 to 10,000, got {seeds}")
    if not 0 <= jobs <= 10_000:
        raise InputError(f"--jobs: expected 1 to 10,000, got {jobs}")
    if str(out) in ("", "."):
        raise InputError("--out: expected the name of a folder, got an empty one")
    # Threads that wait should sleep. The variable must be set before PyTorch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from anyscore.lab.info import room_for_trials
    from anyscore.lab.prove.runner import ProofWatcher, run_proofs
    from anyscore.lab.terminal import TerminalProofs, show_proofs

    console = PlainConsole()
    watcher = ProofWatcher() if as_json or quiet else TerminalProofs(console)
    try:
        record: dict[str, Any] = run_proofs(
            find(names or ()),
            seeds=seeds,
            out=out,
            jobs=jobs or room_for_trials("cpu"),
            command=typed_command(),
            watcher=watcher,
        )
    finally:
        if isinstance(watcher, TerminalProofs):
            watcher.stop()
    if page is not None:
        from anyscore.lab.report.proofs import write_markdown

        write_markdown(record, out, page)
    if as_json:
        print_json(record)
    else:
        show_proofs(console, record, out)
    if record["interrupted"]:
        raise typer.Exit(130)
    if any(part["failures"] for result in record["proofs"] for part in result["parts"]):
        raise typer.Exit(1)
