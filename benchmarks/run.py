"""The benchmark: everything measured, and on disk as soon as it is known."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from anyscore.lab.bench import comparison, run
from anyscore.lab.bench.comparison import Comparison, Contestant, result
from anyscore.lab.bench.run import TABLE_FILE, begin
from anyscore.lab.bench.timing import Deadline, spread
from anyscore.lab.bench.weigh import weigh
from anyscore.lab.run_folder import write_whole
from benchmarks.bars import bars
from benchmarks.gpu_limits import Chip, targets
from benchmarks.hosts import Hosts, measure, prepare
from benchmarks.plot import draw
from benchmarks.rivals import OURS
from benchmarks.stages import Settings, known_rivals, parts_of
from benchmarks.tables import markdown
from benchmarks.worker import GpuRunner, Lost, Worker

PLOT_FILE = "bench.png"

_RESERVE = 8.0  # seconds for ending processes and for the report
_LEAST = 20.0  # seconds for which a part is not begun: a process needs them to start
_PREPARING = 0.65  # of a part's time on a GPU; the rest is for timing


class Watcher(run.Watcher):
    """Progress callbacks; the defaults do nothing."""

    def part_begins(self, name: str, shows: str) -> None:
        """A part begins."""

    def note(self, text: str) -> None:
        """Something could not be measured, and why."""


class Bench:
    """A benchmark on its way.

    hosts: the processes of contestants; None: they are all in this one, as on a CPU.
    """

    def __init__(
        self,
        settings: Settings,
        record: dict[str, Any],
        folder: Path,
        watcher: Watcher,
        hosts: Hosts | None = None,
    ) -> None:
        minutes = settings.minutes
        self.settings, self.record, self.folder, self.watcher = settings, record, folder, watcher
        self.hosts, self.runner = hosts, GpuRunner("cpu")
        self.deadline = Deadline(None if minutes is None else 60 * minutes, _RESERVE)
        self.until = self.deadline  # the end of the present part
        self.chip = Chip(**record["chip"]) if record.get("chip") else None

    def run(self) -> None:
        """Measure all parts, until the time is over. A part ends with its share of the time."""
        parts = parts_of(self.settings.device, self.settings.framework)
        ends = share_ends([parts[name].share for name in self.settings.parts])
        for name, end in zip(self.settings.parts, ends, strict=True):
            self.until = self.deadline.after(end)
            if not self.until.allows(_LEAST):
                self.record["left_out"].append(name)
                continue
            self.watcher.part_begins(name, parts[name].shows)
            for group in parts[name].plan(self.settings, self.record["results"]):
                if isinstance(group, str):
                    self.watcher.note(group)
                elif self.until.allows(0):
                    self.measure(group)
            if not self.until.allows(0):
                self.record["cut_short"].append(name)
                self.watcher.note(f"{name}: cut short, as its share of the time was over")
        if self.record["left_out"]:
            self.watcher.left_out(self.record["left_out"])

    def measure(self, group: Sequence[Comparison]) -> None:
        """Prepare a group of comparisons together, then measure one after the other."""
        gpu, pending = self.settings.device == "cuda", list(group)
        everybody = [c for one in group if one.timed or gpu for c in one.contestants]
        try:
            self.prepare(everybody)
            while pending:
                self.compare(pending[0])
                written = self.write(pending.pop(0))
                self.watcher.measured(written, self.record)
        finally:
            for one in pending:
                self.write(one)
            if self.hosts is not None:
                self.hosts.end()

    def prepare(self, some: list[Contestant]) -> None:
        """Prepare contestants, here or in their processes."""
        if self.hosts is None:
            self.runner = GpuRunner("cpu")  # which holds no others
            comparison.prepare(some, self.runner, self.watcher.busy)
        else:
            end = Deadline(_PREPARING * self.until.left())
            limit = min(self.settings.limit, end.left())
            prepare(some, self.hosts, end, limit, self.watcher.busy)

    def compare(self, compared: Comparison) -> None:
        """Time and weigh."""
        some, pace, busy = compared.contestants, self.settings.pace, self.watcher.busy
        if compared.timed and self.hosts is None:
            comparison.measure(some, self.runner, pace, busy)
        elif compared.timed and self.hosts is not None:
            measure(some, self.hosts, pace, self.until, busy)
            self.look(some[0], self.hosts)
        if compared.part == "kernels":
            for contestant in filter(lambda one: one.runs, some):
                busy(f"{contestant.label}: kernels")
                self.time_kernels(contestant)
        for contestant in some if compared.weighed else ():
            if contestant.problem is None:
                busy(f"{contestant.label}: memory")
                how = self._how(contestant)
                contestant.mib, contestant.problem = weigh(
                    contestant.rival, how, contestant.work, self.settings.threads
                )

    def time_kernels(self, contestant: Contestant) -> None:
        """Add the times of a contestant's kernels to its facts, or the reason for none."""
        found: dict[str, Any]
        try:
            if self.hosts is None:
                found = self.runner.kernels(contestant.rival, contestant.work)
            else:
                host = self.hosts.host(contestant)
                host.send("kernels", contestant.rival, contestant.work)
                found = host.receive(self.until.left())
        except (Lost, LookupError) as failure:
            found = {"problem": str(failure)}
        reason = found.get("problem")
        contestant.answer["about"] |= {"no_kernels": reason} if reason else {"kernels": found}

    def write(self, one: Comparison) -> dict[str, Any]:
        """Add a comparison to the record, and write all of it."""
        row = result(one)
        for entry, contestant in zip(row["entrants"], one.contestants, strict=True):
            if contestant.work.device == "cuda":
                entry |= _on_gpu(contestant)
        self.record["results"].append(row)
        self.save()
        return row

    def save(self) -> None:
        """Write bench.json."""
        if self.chip is not None:
            self.record["chip"] = asdict(self.chip)
            self.record["limits"] = self.chip.limits
            self.record["targets"] = targets(self.record["results"])
        else:
            self.record["targets"] = bars(self.record["results"])
        run.save(self.record, self.folder)

    def _how(self, contestant: Contestant) -> str:
        """Name the variant that was fastest when this was timed."""
        if contestant.answer.get("how"):
            return str(contestant.answer["how"])
        work = contestant.work
        for row in self.record["results"]:
            named = ("shape", "passes", "score", "task")
            if all(row[name] == getattr(work, name) for name in named):
                for entry in row["entrants"]:
                    if entry["name"] == contestant.label and entry["how"]:
                        return str(entry["how"])
        return ""

    def look(self, contestant: Contestant, hosts: Hosts) -> None:
        """See the GPU's clock under load, once."""
        if self.chip is None or self.chip.mhz or not contestant.runs:
            return
        if self.deadline.allows(10):
            host = hosts.host(contestant)
            with suppress(Lost):
                host.send("load", contestant.rival, contestant.work, 2.0)
                time.sleep(1.0)
                now = self.chip.under_load(None)
                answer = host.receive(60)
                mhz = answer if isinstance(answer, float) else None
                self.chip = now if now.mhz else self.chip.under_load(mhz)


def share_ends(shares: Sequence[float | None]) -> list[float]:
    """Return the end of each part as a share of the whole time; None has no end before the last.

    >>> share_ends([3, 1]), share_ends([None, None])
    ([0.75, 1.0], [1.0, 1.0])
    """
    if None in shares:
        return [1.0] * len(shares)
    seconds = [share or 0.0 for share in shares]
    return [sum(seconds[: i + 1]) / sum(seconds) for i in range(len(seconds))]


def _on_gpu(contestant: Contestant) -> dict[str, Any]:
    """Return the facts of a contestant that only a GPU has."""
    times = [1000 * seconds for seconds in contestant.times.values()]
    return {
        "first_s": contestant.answer.get("first_s"),
        "spread": spread(times) if times else None,
        "triples": contestant.work.shape.triples,
        "computes": contestant.rival.computes or contestant.work.score,
        "dtype": contestant.work.dtype,
        "range": getattr(contestant.work, "range", "normal"),
        **contestant.answer.get("about", {}),
    }


def bench(
    settings: Settings, folder: Path, *, watcher: Watcher | None = None, command: str | None = None
) -> dict[str, Any]:
    """Measure; write `bench.json` after each comparison, at the end `bench.png` and `bench.md`.

    The first Ctrl-C ends it, and the record says "interrupted". A second one is not caught.

    Raises:
        RunFailure: when a file cannot be written.
    """
    watcher = watcher or Watcher()
    torch.set_num_threads(settings.threads)
    gpu = settings.device == "cuda"
    rivals = known_rivals(settings.device, settings.framework).values()
    record = begin(settings, settings.work()) | {
        "command": command,
        "not_installed": [r.name for r in rivals if not r.installed],
        "chip": asdict(Chip.first()) if gpu else None,
        "left_out": [],
        "cut_short": [],
    }
    watcher.begins(record)
    hosts = Hosts(lambda: Worker("cuda", settings.threads)) if gpu else None
    running = Bench(settings, record, folder, watcher, hosts)
    try:
        running.run()
    except KeyboardInterrupt:
        watcher.interrupted()
        record["interrupted"] = True
    finally:
        if hosts is not None:
            hosts.end()
    if record["results"]:
        running.save()
        write_whole(folder / TABLE_FILE, markdown(record).encode())
        write_whole(folder / PLOT_FILE, draw(record))
    return record


def ours_failed(record: dict[str, Any]) -> bool:
    """Return whether anyscore itself was wrong, or failed; not whether the time was over."""
    problems = [
        entry["problem"]
        for result in record["results"]
        for place, entry in enumerate(result["entrants"])
        if place == 0 or entry["name"].startswith((OURS.name, "separable"))
    ]
    return any(problem is not None and "given up" not in problem for problem in problems)
