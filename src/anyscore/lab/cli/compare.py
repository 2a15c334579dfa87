"""`anyscore compare`: options checked and passed on."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console

from anyscore.lab.cli import sources as of
from anyscore.lab.cli.machines import AddressOption, EngineOption, LogOption, check_machines, cores
from anyscore.lab.cli.names import score_names
from anyscore.lab.cli.report import JSON_HELP, QUIET_HELP
from anyscore.lab.data.check import check_files
from anyscore.lab.data.opening import readable_name
from anyscore.lab.data.options import DataOptions
from anyscore.lab.errors import InputError

DEFAULT_SCORES = ("scaled_dot", "bilinear", "additive", "gaussian", "gatv2")
_MODELS = ("recurrent", "bahdanau", "transformer", "pointer", "tagger", "classifier")

# The default width and training steps, of the dates and of a file. The dates are easy: a wide model
# answers them with any score, a narrow one shows what a score is worth.
_HIDDEN = {True: 32, False: 128}
_STEPS = {True: 1900, False: 1000}
_MOST = 2**31 - 1

COMPARE_HELP = (
    "Train one small model with each attention score, with several seeds; say which is better.\n\n"
    "[bold]Try it[/]: dates in many languages to 2024-03-30. No file needed, a few minutes.\n\n"
    "    anyscore compare\n\n"
    "[bold]Your own pairs[/], with every score, until it is settled or 20 minutes are over:\n\n"
    "    anyscore compare pairs.tsv --scores all --minutes 20\n\n"
    "[bold]A large table with named columns[/], a part of it first:\n\n"
    "    anyscore compare big.csv.gz --source en --target fr --limit 5000\n\n"
    "Each score has the same first parameters, order of the data and budget. The folder gets "
    "report.html (open it in a browser), comparison.json and every trial. The same command again "
    "goes on where it stopped; more --seeds or --scores add to it. Ctrl-C stops early and reports "
    "what is finished."
)

_TRAINING, _RUN = "Training", "The comparison"


def compare(
    pairs: Annotated[
        str | None,
        typer.Argument(
            help="A table of sequence pairs: .tsv, .csv, .jsonl or .parquet, also .gz; - is "
            "standard input. With --target-file: the sources alone, line by line. Without it: "
            "dates in many languages, made on the spot.",
            show_default=False,
        ),
    ] = None,
    scores: Annotated[
        str, typer.Option(help="Names with commas between them, or [bold]all[/].",
                          rich_help_panel=_RUN)
    ] = ",".join(DEFAULT_SCORES),
    seeds: Annotated[
        int, typer.Option(help="Trials of each score; with --minutes, at most.",
                          show_default="3, with --minutes 20", rich_help_panel=_RUN)
    ] = 0,
    minutes: Annotated[
        float | None,
        typer.Option(help="Stop when every pair of scores is settled, or after so long.",
                     rich_help_panel=_RUN),
    ] = None,
    jobs: Annotated[
        int, typer.Option(help="Trials side by side.", show_default="as many as cores",
                          rich_help_panel=_RUN)
    ] = 0,
    rates: Annotated[
        bool,
        typer.Option(help="Try each score at half and twice the learning rate too, with one seed.",
                     show_default="with neither --minutes nor --tune", rich_help_panel=_RUN),
    ] = True,
    tune: Annotated[
        int, typer.Option(help="Trainings of each score that search its learning rate first, on "
                          "the validation set.", show_default="none", rich_help_panel=_RUN)
    ] = 0,
    tune_hidden: Annotated[
        bool, typer.Option(help="Let --tune search its width too.", rich_help_panel=_RUN)
    ] = False,
    seed: Annotated[
        int, typer.Option(help="The first of the seeds.", rich_help_panel=_RUN)
    ] = 0,
    engine: EngineOption = "processes",
    address: AddressOption = None,
    log: LogOption = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the comparison.", show_default="runs/NAME-…",
                     rich_help_panel=_RUN),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help=JSON_HELP, rich_help_panel=_RUN)
    ] = False,
    quiet: Annotated[bool, typer.Option(help=QUIET_HELP, rich_help_panel=_RUN)] = False,
    model: Annotated[
        str, typer.Option(help=f"{', '.join(_MODELS)}.", rich_help_panel=_TRAINING)
    ] = "recurrent",
    epochs: Annotated[
        int | None,
        typer.Option(help="How often every pair is seen.", rich_help_panel=_TRAINING,
                     show_default="as the number of pairs asks"),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(help="Pairs in a training step.", rich_help_panel=_TRAINING)
    ] = 64,
    hidden: Annotated[
        int | None,
        typer.Option(help="Width of the model.", show_default="32 for the dates, 128 for a file",
                     rich_help_panel=_TRAINING),
    ] = None,
    learning_rate: Annotated[
        float, typer.Option(help="Of Adam; it falls to 0.", rich_help_panel=_TRAINING)
    ] = 4e-3,
    dropout: Annotated[
        float, typer.Option(help="In training.", rich_help_panel=_TRAINING)
    ] = 0.1,
    device: Annotated[
        str, typer.Option(help="cpu, cuda, cuda:1, mps; auto is a GPU if there is one.",
                          rich_help_panel=_TRAINING)
    ] = "auto",
    threads: Annotated[
        int, typer.Option(help="Of the CPU, for each trial.", rich_help_panel=_TRAINING)
    ] = 1,
    target_file: of.TargetFile = None,
    valid: of.Valid = None,
    test: of.Test = None,
    valid_target: of.ValidTarget = None,
    test_target: of.TestTarget = None,
    source: of.Source = None,
    target: of.Target = None,
    label: of.Label = None,
    format: of.Format = "auto",
    unit: of.Unit = "auto",
    source_unit: of.SourceUnit = None,
    target_unit: of.TargetUnit = None,
    subwords: of.Subwords = 1000,
    max_tokens: of.MaxTokens = 100,
    limit: of.Limit = None,
    split_seed: of.SplitSeed = 0,
    skip_empty: of.SkipEmpty = False,
) -> None:  # fmt: skip
    """Everything the command line says about a comparison, checked and passed on."""
    names = score_names(scores)
    numbers = {"--epochs": epochs, "--batch-size": batch_size, "--hidden": hidden}
    for option, value in (numbers | {"--threads": threads}).items():
        if value is not None and not 1 <= value <= (1024 if option == "--threads" else _MOST):
            raise InputError(f"{option}: expected 1 or more, got {value}" if value < 1 else
                             f"{option}: {value} is more than can be meant")  # fmt: skip
    for option, value in {"--seeds": seeds, "--jobs": jobs, "--tune": tune}.items():
        if not 0 <= value <= 10_000:
            raise InputError(f"{option}: expected 1 to 10,000, got {value}")
    if tune_hidden and not tune:
        raise InputError("--tune-hidden: expected --tune N beside it, trainings for each score")
    if not 0 <= seed < _MOST:
        raise InputError(f"--seed: expected 0 to {_MOST}, got {seed}")
    if minutes is not None and not 0 < minutes < 1e6:
        raise InputError(f"--minutes: expected more than 0, got {minutes:g}")
    if out is not None and str(out) in ("", "."):
        raise InputError("--out: expected the name of a folder, got an empty one")
    if label is not None and (target is not None or target_unit is not None):
        raise InputError("--label stands in the place of --target and --target-unit; give one")
    options = DataOptions(
        path=pairs, target_path=target_file, valid=valid, valid_target=valid_target, test=test,
        test_target=test_target, source=source, target=target if label is None else label,
        format=cast(Any, format), unit=cast(Any, unit), source_unit=cast(Any, source_unit),
        target_unit=cast(Any, target_unit if label is None else "label"), subwords=subwords,
        max_tokens=max_tokens, limit=limit, split_seed=split_seed, skip_empty=skip_empty,
    )  # fmt: skip
    check_files(options)
    check_machines(engine, address, log, jobs=jobs, tune=tune, stdin=pairs == "-")
    # Threads that wait should sleep: on a machine that is busy with other work, threads that spin
    # made a training step forty times slower. It must be said before PyTorch comes in.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Here, because they import PyTorch: help and complaints should not wait for it.
    import torch

    from anyscore.lab.built_in import compare_pairs, train_along
    from anyscore.lab.data.summary import summary_lines
    from anyscore.lab.data.task import load_task
    from anyscore.lab.engine_ray import Cluster
    from anyscore.lab.info import find_device
    from anyscore.lab.logs import with_log
    from anyscore.lab.rounds import Plan
    from anyscore.lab.session import Watcher
    from anyscore.lab.terminal import TerminalWatcher, show_outcome
    from anyscore.lab.train.settings import Settings, default_epochs
    from anyscore.lab.train.together import joined

    found = find_device(device)
    torch.set_num_threads(threads)
    task = load_task(options)
    settings = Settings(
        model=model,
        epochs=epochs or default_epochs(task, batch_size, _STEPS[pairs is None]),
        batch_size=batch_size,
        hidden=hidden or _HIDDEN[pairs is None],
        learning_rate=learning_rate,
        dropout=dropout,
        device=found,
    )
    settings.check()
    plan = Plan(names, seeds or (3 if minutes is None else 20), seed, minutes)
    cluster = Cluster(address, cpus=threads) if engine == "ray" else None
    console = Console(emoji=False)  # a name may have ":x:" in it
    made: list[TerminalWatcher] = []

    def watcher(folder: Path, data: Any, steps: int) -> Watcher:
        if as_json or quiet:
            return with_log(Watcher(), log)
        lines = [task.description, *summary_lines(task.summary, data.too_long, data.on_disk)]
        made.append(TerminalWatcher(console, folder, lines, steps))
        return with_log(made[0], log)

    with joined(found) as group:
        if group.rank:
            train_along(task, settings, threads=threads, group=group)
            return
        try:
            record, folder = compare_pairs(
                task, settings, plan, out=out, split_seed=split_seed, threads=threads,
                rates=rates and minutes is None, tune=tune, tune_hidden=tune_hidden,
                jobs=jobs or (0 if cluster else cores(found)), cluster=cluster, group=group,
                command=_command(), watcher=watcher,
            )  # fmt: skip
        finally:
            for one in made:
                one.stop()
    if as_json:
        print(json.dumps(record, ensure_ascii=False, indent=1))
    else:
        show_outcome(console, record, folder, quiet=quiet)
    if record["interrupted"]:
        raise typer.Exit(130)
    if any("failure" in trial for trial in record["trials"]):
        raise typer.Exit(1)


def _command() -> str:
    """Give the command line as a user can type it again."""
    return readable_name(shlex.join(["anyscore", *sys.argv[1:]]))
