"""Trials of studies: trained in a folder, which takes up where it was left, and judged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anyscore.lab.comparison import Comparison
from anyscore.lab.data.encoding import encode
from anyscore.lab.data.task import Task
from anyscore.lab.engine import run_processes
from anyscore.lab.session import COMPILER
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.translation import TranslationTrain
from anyscore.lab.trials import Trial
from anyscore.lab.verdict.judge import Measure

EXACT = Measure("exact_match", "exact match", bounded=True)


def train(
    folder: Path, name: str, task: Task, settings: Settings, trials: Sequence[Trial], jobs: int
) -> None:
    """Train the trials that the folder lacks; print a line for each."""
    data = encode(task, places=settings.model == "pointer")
    run = Comparison(folder)
    with run.opened({"task": {"name": name}, "settings": vars(settings)}):
        missing = [trial for trial in trials if not run.has(trial)]
        function = TranslationTrain(data, settings, threads=1)
        preload = ("anyscore.lab.train.translation", COMPILER)
        for event in run_processes(missing, function, run.folder, jobs, preload):
            if event.kind in ("finished", "failed"):
                print(name, event.trial.name, event.kind, event.details, flush=True)
