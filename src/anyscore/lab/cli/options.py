"""The options of the commands, as Typer reads them: type, help, group."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from anyscore.lab.extras import ENGINES, LOGS
from anyscore.lab.options import MODELS

JSON_HELP = "Print the comparison as JSON, and nothing else."
QUIET_HELP = "Print the verdict alone, without progress."


def _option(panel: str, help: str, *names: str, default: str | bool = True) -> Any:
    """Make an option of a group. default: what the help says of it, in place of the value."""
    return typer.Option(*names, help=help, show_default=default, rich_help_panel=panel)


_data = partial(_option, "What to learn from")
_training = partial(_option, "Training")
_run = partial(_option, "The comparison")

Pairs = Annotated[
    str | None,
    typer.Argument(
        help="A table of sequence pairs: .tsv, .csv, .jsonl or .parquet, also .gz; - is "
        "standard input. With --target-file: the sources alone, line by line. Without it: "
        "dates in many languages, made on the spot.",
        show_default=False,
    ),
]

Scores = Annotated[str, _run("Names with commas between them, or [bold]all[/].")]
Seeds = Annotated[
    int, _run("Trials of each score; with --minutes, at most.", default="3, with --minutes 20")
]
Minutes = Annotated[
    float | None, _run("Stop when every pair of scores is settled, or after so long.")
]
Jobs = Annotated[int, _run("Trials side by side.", default="as many as cores")]
Rates = Annotated[
    bool,
    _run(
        "Try each score at half and twice the learning rate too, with one seed.",
        default="with neither --minutes nor --tune",
    ),
]
Tune = Annotated[
    int,
    _run(
        "Trainings of each score that search its learning rate first, on the validation set.",
        default="none",
    ),
]
TuneHidden = Annotated[bool, _run("Let --tune search its width too.")]
Seed = Annotated[int, _run("The first of the seeds.")]
Engine = Annotated[
    str, _run(f"What carries the trials: {' or '.join(ENGINES)}, the machines of a Ray cluster.")
]
Address = Annotated[
    str | None, _run("With --engine ray: of the cluster.", default="$RAY_ADDRESS, or this machine")
]
Log = Annotated[str | None, _run(f"Curves for {' or '.join(LOGS)} too.")]
Out = Annotated[Path | None, _run("Folder of the comparison.", default="runs/NAME-…")]
AsJson = Annotated[bool, _run(JSON_HELP, "--json")]
Quiet = Annotated[bool, _run(QUIET_HELP)]

Model = Annotated[str, _training(f"{', '.join(MODELS)}.")]
Epochs = Annotated[
    int | None,
    _training("How often every pair is seen.", default="as the number of pairs asks"),
]
BatchSize = Annotated[int, _training("Pairs in a training step.")]
Hidden = Annotated[
    int | None, _training("Width of the model.", default="32 for the dates, 128 for a file")
]
LearningRate = Annotated[float, _training("Of Adam; it falls to 0.")]
Dropout = Annotated[float, _training("In training.")]
Device = Annotated[str, _training("cpu, cuda, cuda:1, mps; auto is a GPU if there is one.")]
Threads = Annotated[int, _training("Of the CPU, for each trial.")]

TargetFile = Annotated[str | None, _data("The targets, line by line beside the sources.")]
Valid = Annotated[str | None, _data("Your own validation pairs, used as they are.")]
Test = Annotated[str | None, _data("Your own test pairs, used as they are.")]
ValidTarget = Annotated[str | None, _data("The targets of --valid, in a file of their own.")]
TestTarget = Annotated[str | None, _data("The targets of --test, in a file of their own.")]
Source = Annotated[str | None, _data("Column of the sources: a number or a name.", default="1")]
Target = Annotated[str | None, _data("Column of the targets: a number or a name.", default="2")]
Label = Annotated[str | None, _data("Column with one label a row, in place of --target.")]
Format = Annotated[
    str, _data("tsv, csv, jsonl or parquet; auto goes by the name, then by the content.")
]
Unit = Annotated[
    str,
    _data(
        "What a token is: character, word, token (ready, between spaces), bpe "
        "(trained on your training pairs); auto looks at the texts."
    ),
]
SourceUnit = Annotated[str | None, _data("Of the sources, where it differs.")]
TargetUnit = Annotated[str | None, _data("Of the targets, where it differs.")]
Subwords = Annotated[int, _data("Kinds of token that a bpe side may have.")]
MaxTokens = Annotated[int, _data("Pairs with a longer side are left out and counted.")]
Limit = Annotated[
    int | None, _data("Use so many different sources, a fair sample.", default="all of them")
]
SplitSeed = Annotated[int, _data("Of the split and of what --limit keeps.")]
SkipEmpty = Annotated[
    bool, _data("Leave out rows with an empty side instead of refusing the file.")
]
