"""`python -m benchmarks`: anyscore beside other libraries, from the folder of the repository."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from anyscore.lab.cli.output import one_line_errors, use_plain_characters
from benchmarks.command import HELP, bench

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(help=HELP)(one_line_errors()(bench))


def main() -> None:
    """Run the command line; processes that it begins find this package, too."""
    root = str(Path(__file__).parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    use_plain_characters()
    app(prog_name="python -m benchmarks")


if __name__ == "__main__":
    main()
