"""The benchmark: everything measured, and on disk as soon as it is known."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from anyscore import __version__, plan
from anyscore.lab.bench.bars import bars
from anyscore.lab.bench.comparison import (
    Comparison,
    Contestant,
    Hosts,
    measure,
    prepare,
    results,
    weigh,
)
from anyscore.lab.bench.gpu_limits import Chip, targets
from anyscore.lab.bench.plot import draw
from anyscore.lab.bench.rivals import OURS
from anyscore.lab.bench.stages import Settings, known_rivals, parts_of
from anyscore.lab.bench.tables import markdown
from anyscore.lab.bench.timing import Deadline
from anyscore.lab.bench.worker import Lost
from anyscore.lab.info import describe_machine
from anyscore.lab.run_folder import write_whole

BENCH_FILE, PLOT_FILE, TABLE_FILE = "bench.json", "bench.png", "bench.md"

_LEAST = 45.0  # seconds for which a part is not begun on a GPU
_TIMING = 40.0  # seconds of a group on a GPU that are not for preparing


class Watcher:
    """Progress callbacks; the defaults do nothing."""

    def begins(self, record: dict[str, Any]) -> None:
        """The machine and the settings are known."""

    def part_begins(self, name: str, shows: str) -> None:
        """A part begins."""

    def busy(self, text: str) -> None:
        """Return the step that is being done."""

    def note(self, text: str) -> None:
        """Something could not be measured, and why."""

    def measured(self, result: dict[str, Any], record: dict[str, Any]) -> None:
        """A comparison is done."""

    def interrupted(self) -> None:
        """Ctrl-C was seen; what was measured is being written."""


class Bench:
    """A benchmark on its way.

    hosts: where contestants live; deadline: when all must be over.
    """

    def __init__(
        self,
        settings: Settings,
        record: dict[str, Any],
        folder: Path,
        watcher: Watcher,
        hosts: Hosts | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        minutes = settings.minutes
        self.settings, self.record, self.folder, self.watcher = settings, record, folder, watcher
        self.hosts = hosts or Hosts.of(settings.device, settings.threads)
        self.deadline = deadline or Deadline(None if minutes is None else 60 * minutes)
        self.chip = Chip(**record["chip"]) if record.get("chip") else None

    def run(self) -> None:
        """Measure all parts, until the time is over."""
        parts = parts_of(self.settings.device, self.settings.framework)
        for name in self.settings.parts:
            if not self.deadline.allows(_LEAST):
                self.record["left_out"].append(name)
                continue
            self.watcher.part_begins(name, parts[name].shows)
            for group in parts[name].plan(self.settings, self.record["results"]):
                if isinstance(group, str):
                    self.watcher.note(group)
                elif self.deadline.allows(0):
                    self.measure(group)
        if self.record["left_out"]:
            left = ", ".join(self.record["left_out"])
            self.watcher.note(f"left out, as the time was over: {left}")

    def measure(self, group: Sequence[Comparison]) -> None:
        """Prepare a group of comparisons together, then measure one after the other."""
        if "torch._dynamo" in sys.modules:
            torch.compiler.reset()  # it stops compiling a function that has met many sizes
        here = self.settings.device == "cpu"
        everybody = [
            contestant
            for comparison in group
            for contestant in comparison.contestants
            if comparison.timed or not here
        ]
        limit = min(self.settings.limit, max(_LEAST / 2, self.deadline.left() - _TIMING))
        pending = list(group)
        try:
            prepare(everybody, self.hosts, self.deadline, limit, self.watcher.busy)
            while pending:
                self.compare(pending[0])
                self.watcher.measured(self.write(pending.pop(0)), self.record)
        finally:
            for comparison in pending:
                self.write(comparison)
            self.hosts.end()

    def compare(self, comparison: Comparison) -> None:
        """Time and weigh."""
        settings, some = self.settings, comparison.contestants
        if comparison.timed:
            measure(some, self.hosts, settings.pace, self.deadline, self.watcher.busy)
            if settings.device == "cuda":
                self.look(some[0])
        for contestant in some if comparison.weighed else ():
            if contestant.problem is None:
                self.watcher.busy(f"{contestant.label}: memory")
                weigh(contestant, self._how(contestant), settings.threads)

    def write(self, comparison: Comparison) -> dict[str, Any]:
        """Add what is known of a comparison to the record, and write all of it."""
        work = comparison.work
        about = {"part": comparison.part, **asdict(work), "prepared": work.prepared}
        about["title"] = comparison.title
        result = about | {"entrants": results(comparison)}
        self.record["results"].append(result)
        self.save()
        return result

    def save(self) -> None:
        """Write bench.json."""
        if self.chip is not None:
            self.record["chip"] = asdict(self.chip)
            self.record["limits"] = self.chip.limits
            self.record["targets"] = targets(self.record["results"])
        else:
            self.record["targets"] = bars(self.record["results"])
        text = json.dumps(self.record, indent=1, ensure_ascii=False)
        write_whole(self.folder / BENCH_FILE, text.encode())

    def _how(self, contestant: Contestant) -> str:
        """Name the variant that was fastest when this was timed."""
        if contestant.answer.get("how"):
            return str(contestant.answer["how"])
        work = contestant.work
        for result in self.record["results"]:
            named = ("shape", "passes", "score", "task")
            if all(result[name] == getattr(work, name) for name in named):
                for entry in result["entrants"]:
                    if entry["name"] == contestant.label and entry["how"]:
                        return str(entry["how"])
        return ""

    def look(self, contestant: Contestant) -> None:
        """See the GPU's clock under load, once."""
        if self.chip is None or self.chip.mhz or not contestant.runs:
            return
        if self.deadline.allows(10):
            host = self.hosts.host(contestant)
            with suppress(Lost):
                host.send("load", contestant.rival, contestant.work, 2.0)
                time.sleep(1.0)
                now = self.chip.under_load(None)
                told = host.receive(60)
                mhz = told if isinstance(told, float) else None
                self.chip = now if now.mhz else self.chip.under_load(mhz)


def bench(
    settings: Settings, folder: Path, *, watcher: Watcher | None = None, command: str | None = None
) -> dict[str, Any]:
    """Measure; `bench.json` and, at the end, `bench.png` and `bench.md` hold what was found.

    The first Ctrl-C ends it: what was measured by then is written, under "interrupted". A second
    one is not caught.

    Raises:
        RunFailure: when a file cannot be written.
    """
    watcher = watcher or Watcher()
    torch.set_num_threads(settings.threads)
    record = _record(settings) | {"command": command}
    watcher.begins(record)
    running = Bench(settings, record, folder, watcher)
    try:
        running.run()
    except KeyboardInterrupt:
        watcher.interrupted()
        record["interrupted"] = True
    finally:
        running.hosts.end()
    if record["results"]:
        running.save()
        write_whole(folder / TABLE_FILE, markdown(record).encode())
        write_whole(folder / PLOT_FILE, draw(record))
    return record


def ours_failed(record: dict[str, Any]) -> bool:
    """Tell whether anyscore itself was wrong, or failed; not whether the time was over."""
    found = [
        entry["problem"]
        for result in record["results"]
        for place, entry in enumerate(result["entrants"])
        if place == 0 or entry["name"].startswith((OURS.name, "separable"))
    ]
    return any(problem is not None and "given up" not in problem for problem in found)


def _record(settings: Settings) -> dict[str, Any]:
    shape = settings.shapes[0]
    small = settings.work(shape._replace(batch=1, queries=2, keys=2))
    score = small.formula.score(small.weight)
    found = plan(small.query, small.key, small.value, score=score)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    machine = describe_machine(settings.device)
    rivals = known_rivals(settings.device, settings.framework).values()
    return {
        "anyscore": __version__,
        "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine | {"cores": os.cpu_count(), "load": round(load, 2)},
        "settings": asdict(settings),
        "plan": asdict(found),
        "not_installed": [r.name for r in rivals if not r.installed],
        "chip": asdict(Chip.first()) if settings.device == "cuda" else None,
        "results": [],
        "left_out": [],
        "interrupted": False,
    }
