"""The main job runs trials of every score with every seed, judges them and writes a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from anyscore import __version__
from anyscore.lab.assemble import COMPARISON_FILE, assemble
from anyscore.lab.comparison import Comparison
from anyscore.lab.engine import Event, run_here, run_processes
from anyscore.lab.engine_ray import Cluster, run_ray
from anyscore.lab.errors import InputError
from anyscore.lab.finished import Finished
from anyscore.lab.forms import BOOL, NUMBER, PLAIN, TEXT, WHOLE, each, having, maybe, named
from anyscore.lab.records import read_record, write_record
from anyscore.lab.report.page import report_page
from anyscore.lab.rounds import Looks, Plan, play
from anyscore.lab.run_folder import file_in, write_whole
from anyscore.lab.trials import Train, Trial
from anyscore.lab.verdict.judge import Measure, check_measured, choose, judge
from anyscore.score import SCORES

REPORT_FILE = "report.html"
_ABOUT_FILE = "about.json"
_ABOUT = having(
    {
        "measures": each(
            having(
                {"name": TEXT, "title": TEXT},
                {"scale": NUMBER, "span": NUMBER, "bounded": BOOL, "matters": maybe(NUMBER)},
            ),
            least=1,
        )
    },
    {
        **dict.fromkeys(("anyscore", "created", "command"), maybe(TEXT)),
        "machine": maybe(named(PLAIN)),
        "out_of_reach": WHOLE,
        "step_ms": named(having(dict.fromkeys(("median", "low", "high"), NUMBER))),
        "formulas": named(TEXT),
        "run": having(
            {
                "level": NUMBER,
                "interrupted": BOOL,
                "planned": each(
                    having({"score": TEXT, "seed": WHOLE, "learning_rate": maybe(NUMBER)})
                ),
            }
        ),
    },
)
"""run: facts of the last call that the trials do not hold; see `_assembled`."""


class Watcher:
    """Callbacks for the progress of a comparison; the default does nothing."""

    def begins(self, comparison: Comparison, plan: Plan, about: Mapping[str, Any]) -> None:
        """Take note that trials begin, or go on."""

    def searches(self, scores: Sequence[str], trainings: int) -> None:
        """Take note that searches begin, of so many trainings for each score."""

    def searched(self, event: Event) -> None:
        """Take an event of a search."""

    def chosen(self, numbers: Mapping[str, Mapping[str, Any]]) -> None:
        """Take the numbers that the searches chose, by score."""

    def event(self, event: Event) -> None:
        """Take an event of a trial."""

    def verdict(self, verdict: dict[str, Any]) -> None:
        """Take the verdict after a round of a comparison with a limit of time."""

    def interrupted(self) -> None:
        """Take note of Ctrl-C; the finished trials are being written."""


COMPILER = "torch._dynamo"
"""The module that PyTorch's optimisers import for seconds; preloaded for processes that train."""


@dataclass(frozen=True)
class Execution:
    """The place of trials: this process, processes of this machine, or a Ray cluster.

    Attributes:
        jobs: trials side by side; on a cluster the most, and 0 is no limit but the cluster's.
        here: run trials in this process, one after the other.
        preload: modules that the processes need, to be imported once.
        cluster: run trials on this cluster.
    """

    jobs: int = 1
    here: bool = False
    preload: tuple[str, ...] = ()
    cluster: Cluster | None = None

    def run(
        self,
        train: Train,
        folder: Path,
        trials: Sequence[Trial],
        on_progress: Callable[[Event], None],
    ) -> Iterator[Event]:
        """Run trials into the folder of their comparison; yield the events.

        Args:
            on_progress: takes progress at once where trials run in this process.
        """
        if self.here:
            return run_here(trials, train, folder, on_progress)
        if self.cluster is not None:
            return run_ray(trials, train, folder, self.jobs or None, self.cluster)
        return run_processes(trials, train, folder, self.jobs, self.preload)


Runner = Callable[[Train, Path, Sequence[Trial]], Iterator[Event]]
"""Runs trials with a training function into the folder of their comparison."""


def compare(
    train: Train,
    plan: Plan,
    folder: Path,
    *,
    shared: Mapping[str, Any],
    measures: Sequence[Measure],
    execution: Execution,
    watcher: Watcher | None = None,
    about: Callable[[], Mapping[str, Any]] = dict,
    prepare: Callable[[Runner], Train] | None = None,
) -> dict[str, Any]:
    """Run the trials of a plan that `folder` lacks; judge all of them; write a report.

    A trial that fails is reported, and the others go on. The first Ctrl-C ends the running trials;
    the finished ones are judged all the same.

    Args:
        train: (trial, report) → outcome.
        plan: scores, seeds and other trials.
        folder: a new or empty one, or that of a comparison with the same `shared`.
        shared: plain data that all trials share: "task", "settings".
        measures: the measures of a trial; see `assemble`.
        execution: where trials run, and how many side by side.
        watcher: gets the events of the comparison.
        about: returns further facts for the report; called when the folder is new.
        prepare: called with a runner of trials before the first trial, while the folder is locked;
            returns the function to use instead of `train`.

    Returns:
        The content of `comparison.json`.

    Raises:
        InputError: the folder holds something else, or is in use.
        RunFailure: the disk is full or a file cannot be written.
    """
    watcher = watcher or Watcher()
    comparison = Comparison(folder)
    interrupted, looks = False, Looks()

    run = partial(execution.run, on_progress=watcher.event)
    cluster = execution.cluster
    # One connection for all rounds.
    with comparison.opened(shared), cluster.connected() if cluster else nullcontext():
        known: Mapping[str, Any] = {}
        try:
            check_measured(comparison.finished(), measures)
            train = train if prepare is None else prepare(run)
            known = _about(comparison, plan, measures, about)
            watcher.begins(comparison, plan, known)
            play(
                comparison,
                plan,
                partial(run, train, folder),
                looks,
                on_event=watcher.event,
                judge=partial(_judged, measures=measures),
                on_verdict=watcher.verdict,
            )
        except KeyboardInterrupt:
            interrupted = True
            watcher.interrupted()
        planned = plan.trials
        if plan.minutes is not None:  # rounds beyond the limit of time are not missing
            planned = [
                trial for trial in planned if comparison.has(trial) or comparison.failure(trial)
            ]
        finished = [trial.trial for trial in comparison.finished()]
        known = {
            **known,
            "run": {
                "level": looks.level_of(finished, plan),
                "interrupted": interrupted,
                "planned": [asdict(trial) for trial in planned],
            },
        }
        if file_in(comparison.folder, _ABOUT_FILE).exists():  # not if it was interrupted before
            write_about(comparison, known)
        return write(comparison, _assembled(comparison, known, measures))


def _assembled(
    comparison: Comparison, about: Mapping[str, Any], measures: Sequence[Measure]
) -> dict[str, Any]:
    """Return the record of a comparison by the facts of its last call, also in later processes."""
    facts = {name: value for name, value in about.items() if name != "run"}
    run = about.get("run", {"level": 0.95, "interrupted": False, "planned": []})
    planned = [Trial(**trial) for trial in run["planned"]]
    level, interrupted = run["level"], run["interrupted"]
    return assemble(
        comparison, facts, measures, planned=planned, level=level, interrupted=interrupted
    )


def write(comparison: Comparison, record: dict[str, Any]) -> dict[str, Any]:
    """Write the record of a comparison and its report into the folder; return the record."""
    path = file_in(comparison.folder, COMPARISON_FILE)
    page_path = file_in(comparison.folder, REPORT_FILE)
    page = report_page(record)  # both are made before either is written
    write_record(path, record, indent=1)
    write_whole(page_path, page)
    return record


def rebuild(folder: Path) -> dict[str, Any]:
    """Make the record and the report of a folder anew, from its trials.

    Raises:
        InputError: it is not the folder of a comparison, or something in it is damaged.
    """
    comparison = Comparison(folder)
    with comparison.opened(comparison.shared()):
        about = read_about(comparison)
        return write(comparison, _assembled(comparison, about, measures_of(about)))


def measures_of(about: Mapping[str, Any]) -> list[Measure]:
    """Return the measures that a comparison was begun with."""
    known = [field.name for field in fields(Measure)]
    return [
        Measure(**{name: x for name, x in measure.items() if name in known})
        for measure in about["measures"]
    ]


def _judged(trials: list[Finished], level: float, measures: Sequence[Measure]) -> dict[str, Any]:
    """Judge the trials of the rounds; leave out those at other learning rates."""
    rounds = [finished for finished in trials if finished.trial.learning_rate is None]
    return judge(rounds, choose(measures, rounds) if rounds else measures[0], level=level)


def _about(
    comparison: Comparison,
    plan: Plan,
    measures: Sequence[Measure],
    more: Callable[[], Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the facts from the folder's first run, with the formulas of new scores."""
    if file_in(comparison.folder, _ABOUT_FILE).exists():
        known = read_about(comparison)
        _check_measure(comparison, measures_of(known)[0], measures[0])
    else:
        created = datetime.now(timezone.utc).isoformat(timespec="seconds")
        known = {"anyscore": __version__, "created": created, **more()}
        known["measures"] = [asdict(measure) for measure in measures]
    formulas = {name: SCORES[name].formula for name in plan.scores if name in SCORES}
    known["formulas"] = {**known.get("formulas", {}), **formulas}
    write_about(comparison, known)
    return known


def _check_measure(comparison: Comparison, first: Measure, now: Measure) -> None:
    """Check that a folder is judged by the measure that it was begun with.

    Raises:
        InputError: the name, scale, span or margin of equality is another one.
    """
    for name in ("name", "scale", "span", "matters"):
        expected, got = getattr(first, name), getattr(now, name)
        if expected != got:
            word = "measure" if name == "name" else name
            raise InputError(
                f"{comparison.folder}: expected {word} {expected!r}, by which it was begun, got "
                f"{got!r}; choose another folder"
            )


def write_about(comparison: Comparison, about: Mapping[str, Any]) -> None:
    """Write the report's facts beside the trials."""
    write_record(file_in(comparison.folder, _ABOUT_FILE), about, indent=1)


def read_about(comparison: Comparison) -> dict[str, Any]:
    """Read the file of `write_about`.

    Raises:
        InputError: the file is missing or damaged.
    """
    advice = "remove it and give the command again"
    return read_record(_ABOUT, comparison.folder, _ABOUT_FILE, advice=advice)
