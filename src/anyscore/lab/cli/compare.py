"""`anyscore compare`: options into one record, checked; the comparison carried out and shown."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from anyscore.lab.cli.checks import check_machines, score_names
from anyscore.lab.cli.options import record_of, with_options
from anyscore.lab.cli.output import print_json, typed_command
from anyscore.lab.console import PlainConsole
from anyscore.lab.data.check import check_files
from anyscore.lab.data.options import DataOptions
from anyscore.lab.errors import InputError
from anyscore.lab.options import CompareOptions, ReportOptions, TrainingOptions, TrialOptions

COMPARE_HELP = (
    "Train a small model with each attention score and several seeds; say which scores differ.\n\n"
    "[bold]Try it[/] on generated dates in 60 languages:\n\n"
    "    anyscore compare\n\n"
    "[bold]Your own pairs[/], with every score, until all pairs of scores are decided or 20 "
    "minutes are over:\n\n"
    "    anyscore compare pairs.tsv --scores all --minutes 20\n\n"
    "[bold]A sample of a large table[/] with named columns:\n\n"
    "    anyscore compare big.csv.gz --source en --target fr --limit 5000\n\n"
    "All scores share the initial parameters of the model, the order of the data and the number "
    "of epochs. In a study, eight seeds always found a difference of 9 points. Three seeds found "
    "it in a quarter of the runs.\n\n"
    "The folder gets report.html, comparison.json and every trial. The same command continues a "
    "run that was stopped, and adds --seeds or --scores. Ctrl-C stops early and reports the "
    "finished trials."
)


@with_options(TrialOptions, ReportOptions, TrainingOptions, DataOptions)
def compare(
    pairs: Annotated[
        str | None,
        typer.Argument(
            help="Table of pairs, a source and a target in each row: .tsv, .csv, .jsonl or "
            ".parquet, plain or gzipped; - is standard input. With --target-file, the file of "
            "sources. Without any file, generated dates; for a pointer network, numbers to sort.",
            show_default=False,
        ),
    ] = None,
    scores: Annotated[
        str,
        typer.Option(
            help="Names of the scores, separated by commas; [bold]all[/] takes every score.",
            rich_help_panel="The comparison",
        ),
    ] = "scaled_dot,bilinear,additive,gaussian,gatv2",
    *,
    label: Annotated[
        str | None,
        typer.Option(
            help="Column of the labels, one label a row, in place of --target.",
            rich_help_panel="Data",
        ),
    ] = None,
    **others: Any,
) -> None:
    """Put the options into one record, check it, carry the comparison out and show it."""
    if label is not None:
        if others["target"] is not None or others["target_unit"] is not None:
            raise InputError(
                "--label takes the place of --target and --target-unit; give one of them"
            )
        others |= {"target": label, "target_unit": "label"}
    options = CompareOptions(
        record_of(DataOptions, others, path=pairs),
        record_of(TrainingOptions, others),
        record_of(TrialOptions, others, scores=score_names(scores)),
        record_of(ReportOptions, others),
    )
    options.check()
    check_files(options.data, options.training.model)
    check_machines(options)
    # Threads that wait should sleep: on a machine that is busy with other work, threads that spin
    # made a training step forty times slower. The variable must be set before PyTorch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _carry_out(options)


def _carry_out(options: CompareOptions) -> None:
    """Read the data, train and judge; print the outcome. Exit with 1 if a trial failed."""
    # Imported here because they import PyTorch: help and errors should not wait for it.
    import torch

    from anyscore.lab.built_in import compare_pairs, train_along
    from anyscore.lab.data.summary import summary_lines
    from anyscore.lab.data.task import load_task
    from anyscore.lab.info import find_device
    from anyscore.lab.logs import with_log
    from anyscore.lab.session import Watcher
    from anyscore.lab.terminal import TerminalWatcher, show_outcome
    from anyscore.lab.train.together import joined

    training, report = options.training, options.report
    device = find_device(training.device)
    torch.set_num_threads(training.threads)
    task = load_task(options.data, training.model)
    settings = training.settings(task, built_in=options.data.path is None, device=device)
    console = PlainConsole()
    terminals: list[TerminalWatcher] = []

    def watcher(folder: Path, data: Any, steps: int) -> Watcher:
        if report.as_json or report.quiet:
            return with_log(Watcher(), report.log)
        about = summary_lines(task.summary, data.too_long, data.out_of_reach)
        lines = [task.description, *about]
        terminals.append(TerminalWatcher(console, folder, lines, steps))
        return with_log(terminals[0], report.log)

    with joined(device) as group:
        if group.rank:
            train_along(task, settings, threads=training.threads, group=group)
            return
        try:
            record, folder = compare_pairs(
                task,
                settings,
                options.trials,
                out=report.out,
                split_seed=options.data.split_seed,
                threads=training.threads,
                command=typed_command(),
                watcher=watcher,
                group=group,
            )
        finally:
            for terminal in terminals:
                terminal.stop()
    if report.as_json:
        print_json(record)
    else:
        show_outcome(console, record, folder, quiet=report.quiet)
    if record["interrupted"]:
        raise typer.Exit(130)
    if any("failure" in trial for trial in record["trials"]):
        raise typer.Exit(1)
