"""The options of the commands, as Typer reads them: type, help, group."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anyscore.lab.extras import ENGINES, LOGS
from anyscore.lab.options import MODELS

_DATA, _TRAINING, _RUN = "What to learn from", "Training", "The comparison"
JSON_HELP = "Print the comparison as JSON, and nothing else."
QUIET_HELP = "Print the verdict alone, without progress."

Pairs = Annotated[
    str | None,
    typer.Argument(
        help="A table of sequence pairs: .tsv, .csv, .jsonl or .parquet, also .gz; - is "
        "standard input. With --target-file: the sources alone, line by line. Without it: "
        "dates in many languages, made on the spot.",
        show_default=False,
    ),
]
Scores = Annotated[
    str,
    typer.Option(help="Names with commas between them, or [bold]all[/].", rich_help_panel=_RUN),
]
Seeds = Annotated[
    int,
    typer.Option(
        help="Trials of each score; with --minutes, at most.",
        show_default="3, with --minutes 20",
        rich_help_panel=_RUN,
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        help="Stop when every pair of scores is settled, or after so long.", rich_help_panel=_RUN
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        help="Trials side by side.", show_default="as many as cores", rich_help_panel=_RUN
    ),
]
Rates = Annotated[
    bool,
    typer.Option(
        help="Try each score at half and twice the learning rate too, with one seed.",
        show_default="with neither --minutes nor --tune",
        rich_help_panel=_RUN,
    ),
]
Tune = Annotated[
    int,
    typer.Option(
        help="Trainings of each score that search its learning rate first, on the validation set.",
        show_default="none",
        rich_help_panel=_RUN,
    ),
]
TuneHidden = Annotated[
    bool, typer.Option(help="Let --tune search its width too.", rich_help_panel=_RUN)
]
Seed = Annotated[int, typer.Option(help="The first of the seeds.", rich_help_panel=_RUN)]
Engine = Annotated[
    str,
    typer.Option(
        help=f"What carries the trials: {' or '.join(ENGINES)}, the machines of a Ray cluster.",
        rich_help_panel=_RUN,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="With --engine ray: of the cluster.",
        show_default="$RAY_ADDRESS, or this machine",
        rich_help_panel=_RUN,
    ),
]
Log = Annotated[
    str | None,
    typer.Option(help=f"Curves for {' or '.join(LOGS)} too.", rich_help_panel=_RUN),
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the comparison.", show_default="runs/NAME-…", rich_help_panel=_RUN
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help=JSON_HELP, rich_help_panel=_RUN)]
Quiet = Annotated[bool, typer.Option(help=QUIET_HELP, rich_help_panel=_RUN)]

Model = Annotated[str, typer.Option(help=f"{', '.join(MODELS)}.", rich_help_panel=_TRAINING)]
Epochs = Annotated[
    int | None,
    typer.Option(
        help="How often every pair is seen.",
        rich_help_panel=_TRAINING,
        show_default="as the number of pairs asks",
    ),
]
BatchSize = Annotated[
    int, typer.Option(help="Pairs in a training step.", rich_help_panel=_TRAINING)
]
Hidden = Annotated[
    int | None,
    typer.Option(
        help="Width of the model.",
        show_default="32 for the dates, 128 for a file",
        rich_help_panel=_TRAINING,
    ),
]
LearningRate = Annotated[
    float, typer.Option(help="Of Adam; it falls to 0.", rich_help_panel=_TRAINING)
]
Dropout = Annotated[float, typer.Option(help="In training.", rich_help_panel=_TRAINING)]
Device = Annotated[
    str,
    typer.Option(
        help="cpu, cuda, cuda:1, mps; auto is a GPU if there is one.", rich_help_panel=_TRAINING
    ),
]
Threads = Annotated[
    int, typer.Option(help="Of the CPU, for each trial.", rich_help_panel=_TRAINING)
]

TargetFile = Annotated[
    str | None,
    typer.Option(help="The targets, line by line beside the sources.", rich_help_panel=_DATA),
]
Valid = Annotated[
    str | None,
    typer.Option(help="Your own validation pairs, used as they are.", rich_help_panel=_DATA),
]
Test = Annotated[
    str | None,
    typer.Option(help="Your own test pairs, used as they are.", rich_help_panel=_DATA),
]
ValidTarget = Annotated[
    str | None,
    typer.Option(help="The targets of --valid, in a file of their own.", rich_help_panel=_DATA),
]
TestTarget = Annotated[
    str | None,
    typer.Option(help="The targets of --test, in a file of their own.", rich_help_panel=_DATA),
]
Source = Annotated[
    str | None,
    typer.Option(
        help="Column of the sources: a number or a name.", show_default="1", rich_help_panel=_DATA
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        help="Column of the targets: a number or a name.", show_default="2", rich_help_panel=_DATA
    ),
]
Label = Annotated[
    str | None,
    typer.Option(help="Column with one label a row, in place of --target.", rich_help_panel=_DATA),
]
Format = Annotated[
    str,
    typer.Option(
        help="tsv, csv, jsonl or parquet; auto goes by the name, then by the content.",
        rich_help_panel=_DATA,
    ),
]
Unit = Annotated[
    str,
    typer.Option(
        help="What a token is: character, word, token (ready, between spaces), bpe "
        "(trained on your training pairs); auto looks at the texts.",
        rich_help_panel=_DATA,
    ),
]
SourceUnit = Annotated[
    str | None,
    typer.Option(help="Of the sources, where it differs.", rich_help_panel=_DATA),
]
TargetUnit = Annotated[
    str | None,
    typer.Option(help="Of the targets, where it differs.", rich_help_panel=_DATA),
]
Subwords = Annotated[
    int, typer.Option(help="Kinds of token that a bpe side may have.", rich_help_panel=_DATA)
]
MaxTokens = Annotated[
    int,
    typer.Option(help="Pairs with a longer side are left out and counted.", rich_help_panel=_DATA),
]
Limit = Annotated[
    int | None,
    typer.Option(
        help="Use so many different sources, a fair sample.",
        rich_help_panel=_DATA,
        show_default="all of them",
    ),
]
SplitSeed = Annotated[
    int,
    typer.Option(help="Of the split and of what --limit keeps.", rich_help_panel=_DATA),
]
SkipEmpty = Annotated[
    bool,
    typer.Option(
        help="Leave out rows with an empty side instead of refusing the file.",
        rich_help_panel=_DATA,
    ),
]
