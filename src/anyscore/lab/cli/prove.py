"""`anyscore prove`: published findings, tried on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from anyscore.lab.cli.options import QUIET_HELP
from anyscore.lab.cli.output import print_json, typed_command
from anyscore.lab.console import PlainConsole
from anyscore.lab.errors import InputError
from anyscore.lab.prove.names import NAMES, check, find

PROVE_HELP = (
    "Try published findings on attention scores on this machine, several seeds each; say which "
    "stand.\n\n"
    "[bold]All of them[/], in a quarter of an hour on two cores:\n\n"
    "    anyscore prove\n\n"
    "[bold]One or some[/], a few minutes each:\n\n"
    "    anyscore prove lookup middle\n\n"
    "lookup: a dictionary new in every example, GAT against GATv2. middle: keys on a line. "
    "neighbours: kernel regression. longer: sequences longer than those trained on. width: phrases "
    "in Chinese, additive against multiplicative attention of four widths.\n\n"
    "The folder gets report.html, proofs.json and every trial. The same command again goes on "
    "where it stopped; more --seeds add to it."
)


def prove(
    names: Annotated[
        list[str] | None,
        typer.Argument(help=f"{', '.join(NAMES)}; all of them if none.", show_default=False),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Trials of each score.")] = 5,
    out: Annotated[Path, typer.Option(help="Folder of the proofs.")] = Path("runs/proofs"),
    jobs: Annotated[
        int, typer.Option(help="Trials side by side.", show_default="as many as cores")
    ] = 0,
    page: Annotated[
        Path | None, typer.Option(help="Write the results as a page in Markdown, too.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the results as JSON, and nothing else.")
    ] = False,
    quiet: Annotated[bool, typer.Option(help=QUIET_HELP)] = False,
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
