"""`anyscore bench` measures each comparison and writes its result at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from anyscore import __version__, plan
from anyscore.lab.bench import graphs
from anyscore.lab.bench.comparison import Comparison, Contestant, measure, prepare, result
from anyscore.lab.bench.graphs import GraphWork, random_graph
from anyscore.lab.bench.report import markdown, work_of
from anyscore.lab.bench.rivals import Rival
from anyscore.lab.bench.runner import Runner
from anyscore.lab.bench.timing import Deadline, Pace
from anyscore.lab.bench.variants import OURS, RIVALS
from anyscore.lab.bench.weigh import weigh
from anyscore.lab.bench.work import FORWARD, TRAINING, Shape, Work
from anyscore.lab.info import describe_machine
from anyscore.lab.records import write_record
from anyscore.lab.run_folder import write_whole

BENCH_FILE, TABLE_FILE = "bench.json", "bench.md"
_LEAST = 45.0  # seconds for which a comparison is not begun

Record = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """The choices of a user.

    rivals: names in `variants.RIVALS`. edges: of a random graph, over which GATv2 is measured; 0:
    no graph. threads: of PyTorch and of anyscore. weighed: whether the memory of each is measured,
    in its own process. minutes: for everything; None: no limit.
    """

    shapes: tuple[Shape, ...]
    scores: tuple[str, ...]
    rivals: tuple[str, ...]
    threads: int
    dtype: str = "float32"
    device: str = "cpu"
    edges: int = 0
    weighed: bool = True
    minutes: float | None = None
    pace: Pace = field(default_factory=Pace)


class Watcher:
    """Progress callbacks; the defaults do nothing."""

    def begins(self, record: Record) -> None:
        """Take the machine and the settings, before the first comparison."""

    def busy(self, text: str) -> None:
        """Take the name of the step that begins."""

    def measured(self, result: Record, record: Record) -> None:
        """Take the result of a comparison."""

    def left_out(self, names: list[str]) -> None:
        """Take the work that was not begun, as the time was over."""

    def interrupted(self) -> None:
        """Take note of Ctrl-C; the results until then are being written."""


def bench(
    settings: Settings, folder: Path, *, watcher: Watcher | None = None, command: str | None = None
) -> Record:
    """Measure; write `bench.json` after each comparison and, at the end, `bench.md`.

    The first Ctrl-C ends the benchmark, and the record has "interrupted". A second one is not
    caught.

    Raises:
        RunFailure: when a file cannot be written.
    """
    watcher = watcher or Watcher()
    torch.set_num_threads(settings.threads)
    deadline = Deadline(None if settings.minutes is None else 60 * settings.minutes)
    planned = list(_comparisons(settings))
    record = begin(settings, planned[0].work) | {"command": command, "left_out": []}
    watcher.begins(record)
    try:
        for comparison in planned:
            if not deadline.allows(_LEAST):
                about = result(comparison)
                record["left_out"].append(f"{about['score']}, {work_of(about)}")
                continue
            try:
                _measure(comparison, settings, watcher)
            finally:
                record["results"].append(result(comparison))
                save(record, folder)
            watcher.measured(record["results"][-1], record)
    except KeyboardInterrupt:
        watcher.interrupted()
        record["interrupted"] = True
    save(record, folder)
    if record["left_out"]:
        watcher.left_out(record["left_out"])
    write_whole(folder / TABLE_FILE, markdown(record).encode())
    return record


def _comparisons(settings: Settings) -> Iterator[Comparison]:
    """Yield a comparison for each score, shape and pass, and for each pass over the graph."""
    for score in settings.scores:
        for shape in settings.shapes:
            for passes in (FORWARD, TRAINING):
                work = Work(shape, score, passes, settings.dtype, settings.device)
                rivals = OURS, *(RIVALS[name] for name in settings.rivals)
                yield _comparison(work, rivals, settings)
    for passes in (FORWARD, TRAINING) if settings.edges else ():
        graph = GraphWork(
            random_graph(settings.edges), "gatv2", passes, device=settings.device,
            edges=settings.edges,
        )  # fmt: skip
        rivals = graphs.OURS, *(graphs.RIVALS[name] for name in settings.rivals)
        yield _comparison(graph, rivals, settings)


def _comparison(work: Work, rivals: Sequence[Rival], settings: Settings) -> Comparison:
    contestants = [Contestant(rival.name, rival, work) for rival in rivals]
    weighed = settings.weighed and settings.device == "cpu"
    return Comparison("speed", work, contestants, weighed=weighed)


def _measure(comparison: Comparison, settings: Settings, watcher: Watcher) -> None:
    contestants, runner, work = comparison.contestants, Runner(settings.device), comparison.work

    def busy(text: str) -> None:
        watcher.busy(f"{work.score}, {work.shape}, {work.passes}: {text}")

    prepare(contestants, runner, busy)
    measure(contestants, runner, settings.pace, busy)
    for contestant in contestants if comparison.weighed else ():
        if contestant.problem is None:
            busy(f"{contestant.label}: memory")
            contestant.mib, contestant.problem = weigh(
                contestant.rival, contestant.answer["how"], work, settings.threads
            )


def begin(settings: Any, work: Work) -> Record:
    """Begin a record: the machine, settings (a dataclass), and the plan of anyscore for `work`."""
    small = work.to(shape=work.shape._replace(batch=1, queries=2, keys=2))
    score = small.formula.score(small.weight)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    machine = describe_machine(work.device)
    return {
        "anyscore": __version__,
        "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine | {"cores": os.cpu_count(), "load": round(load, 2)},
        "settings": asdict(settings),
        "plan": asdict(plan(small.query, small.key, small.value, score=score)),
        "results": [],
        "interrupted": False,
    }


def save(record: Record, folder: Path) -> None:
    """Write `bench.json`."""
    write_record(folder / BENCH_FILE, record, indent=1)


def ours_failed(record: Record) -> bool:
    """Return whether anyscore itself was wrong, or failed."""
    return any(result["entrants"][0]["problem"] is not None for result in record["results"])
