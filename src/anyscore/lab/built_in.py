"""The built-in comparison: a small model on pairs of sequences, from options to a report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from anyscore.lab.data.encoding import Encoded, encode
from anyscore.lab.data.task import Task
from anyscore.lab.engine_ray import Cluster
from anyscore.lab.errors import TrialFailure
from anyscore.lab.info import describe_machine, room_for_trials
from anyscore.lab.options import TrialOptions
from anyscore.lab.rounds import Plan
from anyscore.lab.session import COMPILER, Execution, Runner, Watcher, compare
from anyscore.lab.train.cost import step_times
from anyscore.lab.train.models import build_model
from anyscore.lab.train.search import Search
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.together import ALONE, Group, follow, leading
from anyscore.lab.train.training import reported_failures, steps_per_epoch
from anyscore.lab.train.translation import TranslationTrain
from anyscore.lab.trials import Train, Trial
from anyscore.lab.tuning import TUNING, search_results
from anyscore.lab.tuning import tune as run_searches
from anyscore.lab.verdict.judge import Measure

MEASURES = (
    Measure("exact_match", "exact match", bounded=True),
    Measure("chrf", "chrF", scale=1.0, bounded=True),
    Measure("bleu", "BLEU", scale=1.0, bounded=True),
)
_PRELOAD = ("anyscore.lab.train.translation", COMPILER)
SEEDS = 8
"""Trials of each score by default. Eight find a difference of 9 points nearly always, three in a
quarter of comparisons (docs/verdict_study.md)."""
RATES = (0.5, 2.0)
"""Factors of the learning rate: with the first seed each score is trained at these rates too."""


def compare_pairs(
    task: Task,
    settings: Settings,
    trials: TrialOptions,
    *,
    out: Path | None = None,
    split_seed: int = 0,
    threads: int = 1,
    command: str | None = None,
    watcher: Callable[[Path, Encoded, int], Watcher] | None = None,
    group: Group = ALONE,
) -> tuple[dict[str, Any], Path]:
    """Train the settings' model on a task with every score and seed; see `session.compare`.

    Args:
        trials: scores, seeds, searches, and where the trials run; with Ray, each trial has a GPU
            to itself if the settings' device is a GPU.
        out: folder of the comparison; None takes runs/NAME-…, the same for the same settings.
        split_seed: the seed that split the task, for the record.
        threads: of PyTorch, for each trial.
        command: the command line as it was typed, for the report.
        watcher: (folder, data, steps of a trial) → the watcher that gets the events.
        group: the processes that train together; this one is the first.

    Returns:
        The content of `comparison.json`, and the folder.

    Raises:
        InputError: the folder holds something else, or the settings do not fit the data.
        RunFailure: the disk is full or a file cannot be written.
    """
    cluster = None
    if trials.engine == "ray":
        gpus = int(settings.device.startswith("cuda"))
        cluster = Cluster(trials.address, cpus=threads, gpus=gpus)
    data = encode(task, places=settings.model == "pointer")
    shared = _shared(task, data, settings, split_seed)
    if trials.tune:
        shared["settings"] |= {"tune": trials.tune, "tune_hidden": trials.tune_hidden}
    folder = out or Path("runs") / f"{task.name}-{_fingerprint(shared)}"
    plan = _plan(trials, settings.learning_rate)
    watching = Watcher()
    if watcher is not None:
        watching = watcher(folder, data, settings.epochs * steps_per_epoch(data, settings))
    alone = TranslationTrain(data, settings, threads=threads, group=group)
    chosen: dict[str, Any] = {}

    def search(run: Runner) -> Train:
        watching.searches(plan.scores, trials.tune)
        journals = folder / TUNING
        train = Search(
            data, settings, trials.tune, trials.tune_hidden, journals.absolute(), threads
        )
        run_searches(
            folder,
            plan.scores,
            partial(run, train, journals),
            shared=shared,
            on_event=watching.searched,
        )
        chosen.update({score: x["chosen"] for score, x in search_results(folder).items()})
        watching.chosen(chosen)
        return replace(alone, chosen=chosen)

    with leading(alone, group) as train:
        record = compare(
            train,
            plan,
            folder,
            shared=shared,
            measures=MEASURES,
            execution=Execution(
                jobs=trials.jobs or (0 if cluster else room_for_trials(settings.device)),
                here=group.size > 1,
                preload=_PRELOAD,
                cluster=cluster,
            ),
            watcher=watching,
            about=lambda: {
                "command": command,
                "out_of_reach": data.out_of_reach,
                "machine": describe_machine(settings.device),
                "step_ms": _costs(data, settings, plan, chosen),
            },
            prepare=search if trials.tune else None,
        )
    return record, folder


def _plan(trials: TrialOptions, learning_rate: float) -> Plan:
    """Plan the trials: rounds of all scores, and other learning rates with the first seed."""
    seeds = trials.seeds or (SEEDS if trials.minutes is None else 20)
    extra: tuple[Trial, ...] = ()
    if trials.rates and trials.minutes is None and not trials.tune:
        others = [learning_rate * factor for factor in RATES]
        extra = tuple(
            Trial(score, trials.first_seed, rate) for rate in others for score in trials.scores
        )
    return Plan(trials.scores, seeds, trials.first_seed, trials.minutes, extra)


def train_along(task: Task, settings: Settings, *, threads: int, group: Group) -> None:
    """Train along, in the other processes of a group, while the first runs `compare_pairs`."""
    data = encode(task, places=settings.model == "pointer")
    follow(TranslationTrain(data, settings, threads=threads, group=group), group)


def _shared(task: Task, data: Encoded, settings: Settings, split_seed: int) -> dict[str, Any]:
    """Return what all trials of a comparison share: facts of the task, and the settings."""
    return {
        "task": {
            "name": task.name,
            "description": task.description,
            "unit": data.unit,
            "source_unit": data.source_tokeniser.unit,
            "train": len(data.train),
            "valid": len(data.valid),
            "test": len(data.test),
            "left_out": data.left_out,
            "source_vocabulary": len(data.source_vocabulary),
            "target_vocabulary": len(data.target_vocabulary),
            "pairs_checksum": _fingerprint_of_all(chain(data.train, data.valid, data.test)),
            "summary": task.summary,
        },
        "settings": {**asdict(settings), "split_seed": split_seed},
    }


_as_text = json.JSONEncoder(sort_keys=True, ensure_ascii=False, default=str).encode


def _fingerprint(x: Any) -> str:
    """Return eight hexadecimal digits of the SHA-256 of plain data."""
    return hashlib.sha256(_as_text(x).encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _fingerprint_of_all(records: Iterable[object]) -> str:
    """Return `_fingerprint` of the list of the records' attributes, a batch in memory at a time."""
    digest, separator = hashlib.sha256(b"["), ""
    records = iter(records)
    while batch := [vars(record) for record in islice(records, 1000)]:
        digest.update(f"{separator}{_as_text(batch)[1:-1]}".encode("utf-8", "surrogatepass"))
        separator = ", "
    digest.update(b"]")
    return digest.hexdigest()[:8]


def _costs(
    data: Encoded, settings: Settings, plan: Plan, chosen: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, float]]:
    """Measure a training step of each score, in milliseconds: median and its 95 % interval.

    Returns:
        By score, "median", "low" and "high"; nothing where the models of all scores do not fit into
        memory together.
    """
    try:
        with reported_failures():
            models = {
                score: build_model(
                    score, data, replace(settings, **chosen.get(score, {})), plan.first_seed
                )
                for score in plan.scores
            }
            times = step_times(models, data, settings)
    except TrialFailure:
        return {}
    return {score: _median(taken) for score, taken in times.items()}


def _median(milliseconds: list[float]) -> dict[str, float]:
    """Return the median and its 95 % interval between two of the times in order (a sign test's)."""
    ordered = np.sort(milliseconds)
    below = special.bdtr(np.arange(len(ordered) + 1), len(ordered), 0.5)
    rank = int(np.searchsorted(below, 0.025))
    low, high = ordered[max(rank - 1, 0)], ordered[min(len(ordered) - rank, len(ordered) - 1)]
    return {"median": float(np.median(ordered)), "low": float(low), "high": float(high)}
