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
from scipy import stats

from anyscore.lab.data.encoding import Encoded, encode
from anyscore.lab.data.task import Task
from anyscore.lab.engine_ray import Cluster
from anyscore.lab.errors import InputError, TrialFailure
from anyscore.lab.info import describe_machine
from anyscore.lab.rounds import Plan
from anyscore.lab.session import Carry, Watcher, compare
from anyscore.lab.train.cost import step_times
from anyscore.lab.train.models import build_model
from anyscore.lab.train.search import Search
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.together import ALONE, Group, follow, leading
from anyscore.lab.train.training import reported_failures, steps_per_epoch
from anyscore.lab.train.translation import translation_train
from anyscore.lab.trials import Train, Trial
from anyscore.lab.tuning import TUNING, found
from anyscore.lab.tuning import tune as run_searches
from anyscore.lab.verdict.judge import Measure

MEASURES = (
    Measure("exact_match", "exact match", bounded=True),
    Measure("chrf", "chrF", scale=1.0, bounded=True),
    Measure("bleu", "BLEU", scale=1.0, bounded=True),
)
_PRELOAD = "anyscore.lab.train.translation"
RATES = (0.5, 2.0)
"""Times the learning rate: each score is trained with these as well, with the first seed."""


def compare_pairs(
    task: Task,
    settings: Settings,
    plan: Plan,
    *,
    out: Path | None = None,
    split_seed: int = 0,
    jobs: int = 1,
    threads: int = 1,
    rates: bool = True,
    tune: int = 0,
    tune_hidden: bool = False,
    command: str | None = None,
    watcher: Callable[[Path, Encoded, int], Watcher] | None = None,
    cluster: Cluster | None = None,
    group: Group = ALONE,
) -> tuple[dict[str, Any], Path]:
    """Train the settings' model on a task with every score and seed; see `session.compare`.

    Args:
        out: folder of the comparison; runs/NAME-… if not given, the same for the same settings.
        jobs, threads: trials side by side, and threads of each.
        rates: whether each score is tried at other learning rates too; not where they are tuned.
        tune: trainings in which each score's learning rate is searched on the validation set,
            before the trials; 0 for none.
        tune_hidden: whether its width is searched as well.
        command: what was typed, for the report.
        watcher: makes what is told how it goes, of the folder, the data and the steps of a trial.
        cluster: where trials run, if not on this machine; a GPU for each, if the settings say so.
        group: the processes that train together, of which this one is the first.

    Returns:
        What `comparison.json` holds, and the folder.
    """
    data = encode(task, places=settings.model == "pointer")
    if cluster is not None and data.on_disk:
        raise InputError(
            "--engine ray: the training data do not fit into memory and lie on the disk of this "
            "machine; give --limit to train on a part of them, or leave --engine out"
        )
    shared = _shared(task, data, settings, split_seed)
    if tune:
        shared["settings"] |= {"tune": tune, "tune_hidden": tune_hidden}
    folder = out or Path("runs") / f"{task.name}-{_fingerprint(shared)}"
    if rates and not tune:
        others = [settings.learning_rate * x for x in RATES]
        extra = tuple(Trial(s, plan.first_seed, rate) for rate in others for s in plan.scores)
        plan = replace(plan, extra=extra)
    watching = Watcher()
    if watcher is not None:
        watching = watcher(folder, data, settings.epochs * steps_per_epoch(data, settings))
    if cluster is not None and settings.device.startswith("cuda"):
        cluster = replace(cluster, gpus=1)
    alone = translation_train(data, settings, threads=threads, group=group)
    chosen: dict[str, Any] = {}

    def search(carry: Carry) -> Train:
        watching.searches(plan.scores, tune)
        place = folder / TUNING
        one = Search(data, settings, tune, tune_hidden, place.absolute(), threads)
        run_searches(
            folder,
            plan.scores,
            partial(carry, one, place),
            shared=shared,
            on_event=watching.searched,
        )
        chosen.update({score: x["chosen"] for score, x in found(folder).items()})
        watching.chosen(chosen)
        return replace(alone, chosen=chosen)

    with leading(alone, group) as train:
        record = compare(
            train,
            plan,
            folder,
            shared=shared,
            measures=MEASURES,
            jobs=jobs,
            watcher=watching,
            about=lambda: {
                "command": command,
                "machine": describe_machine(settings.device),
                "step_ms": _costs(data, settings, plan, chosen),
            },
            preload=_PRELOAD,
            here=group.size > 1,
            cluster=cluster,
            prepare=search if tune else None,
        )
    return record, folder


def train_along(task: Task, settings: Settings, *, threads: int, group: Group) -> None:
    """In the other processes of a group, what `compare_pairs` is in the first."""
    data = encode(task, places=settings.model == "pointer")
    follow(translation_train(data, settings, threads=threads, group=group), group)


def _shared(task: Task, data: Encoded, settings: Settings, split_seed: int) -> dict[str, Any]:
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
    return hashlib.sha256(_as_text(x).encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _fingerprint_of_all(records: Iterable[object]) -> str:
    """`_fingerprint` of the list of their attributes, some at a time: they may be on disk."""
    found, between = hashlib.sha256(b"["), ""
    records = iter(records)
    while some := [vars(record) for record in islice(records, 1000)]:
        found.update(f"{between}{_as_text(some)[1:-1]}".encode("utf-8", "surrogatepass"))
        between = ", "
    found.update(b"]")
    return found.hexdigest()[:8]


def _costs(
    data: Encoded, settings: Settings, plan: Plan, chosen: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, float]]:
    """Milliseconds of a training step by score: median, and where it lies with 95 %.

    Nothing where the models of all scores do not fit into memory together.
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


def _median(taken: list[float]) -> dict[str, float]:
    """The median and its 95 % interval, between two of the times in order (a sign test's)."""
    times = np.sort(taken)
    rank = int(stats.binom.ppf(0.025, len(times), 0.5))
    low, high = times[max(rank - 1, 0)], times[min(len(times) - rank, len(times) - 1)]
    return {"median": float(np.median(times)), "low": float(low), "high": float(high)}
