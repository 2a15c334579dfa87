"""The options of `anyscore compare` that say what to learn from."""

from __future__ import annotations

from typing import Annotated

import typer

_DATA = "What to learn from"

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
