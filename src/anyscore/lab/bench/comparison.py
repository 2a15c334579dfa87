"""A comparison: the same work by several; no time is given for a wrong answer."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from anyscore.lab.bench.memory import available_bytes
from anyscore.lab.bench.rivals import find
from anyscore.lab.bench.timing import Deadline, Pace, interleave, spread
from anyscore.lab.bench.work import Work
from anyscore.lab.bench.worker import Here, Host, Lost, Worker

LIMIT = 150.0  # seconds that preparing one in a process of its own may take, compilation included
_HOUR = 3600.0


@dataclass(eq=False)
class Contestant:
    """One in a comparison.

    rival: its name, see `rivals.find`. process: the name of the process that has it on a GPU, else
    its label. answer: what preparing it gave. times: seconds of a call, by round. problem: why none
    are given, in a few words.
    """

    label: str
    rival: str
    work: Work
    process: str | None = None
    answer: dict[str, Any] = field(default_factory=dict)
    times: dict[int, float] = field(default_factory=dict)
    problem: str | None = None
    mib: float | None = None

    @property
    def runs(self) -> bool:
        return self.problem is None and "seconds" in self.answer


@dataclass(eq=False)
class Comparison:
    """Contestants, of which the first is what others are compared with.

    part: of the benchmark. work: that of most contestants. title: what is special about it.
    timed: or it is enough to prepare them. weighed: whether the memory of each is measured in a
    process of its own.
    """

    part: str
    work: Work
    contestants: list[Contestant]
    title: str = ""
    timed: bool = True
    weighed: bool = False


class Hosts:
    """The runners of contestants: one here for all of the CPU, on a GPU a process for each name."""

    def __init__(self, device: str, start: Callable[[], Host]) -> None:
        self.device, self.start = device, start
        self.known: dict[str, Host] = {}

    @classmethod
    def of(cls, device: str, threads: int) -> Hosts:
        """Return the hosts of a device."""
        return cls(device, Here if device == "cpu" else lambda: Worker(device, threads))

    def host(self, contestant: Contestant) -> Host:
        name = "" if self.device == "cpu" else contestant.process or contestant.label
        if name not in self.known:
            self.known[name] = self.start()
        return self.known[name]

    def end(self) -> None:
        """End all, whatever they do."""
        for host in self.known.values():
            host.end()
        self.known.clear()


def prepare(
    contestants: Sequence[Contestant],
    hosts: Hosts,
    deadline: Deadline,
    limit: float = LIMIT,
    busy: Callable[[str], None] = lambda text: None,
    pause: Callable[[], None] = lambda: time.sleep(0.05),
) -> None:
    """Prepare all: processes work side by side, each on its own one after the other.

    One that takes longer than `limit` seconds in a process of its own is given up.
    """
    queues: dict[Host, list[Contestant]] = {}
    for contestant in contestants:
        if contestant.problem is None:
            queues.setdefault(hosts.host(contestant), []).append(contestant)
    began: dict[Host, float] = {}
    while any(queues.values()):
        for host, queue in queues.items():
            try:
                while queue and (host not in began or host.ready()):
                    if host in began:
                        answer = host.receive(0)
                        queue[0].answer, queue[0].problem = answer, answer["problem"]
                        del queue[0], began[host]
                    else:
                        busy(f"{queue[0].label}: check")
                        began[host] = deadline.clock()
                        host.send("prepare", queue[0].rival, queue[0].work)
                if queue and deadline.clock() - began[host] > limit:
                    host.end(f"given up after {limit:.0f} s of preparation")
                elif queue and not deadline.allows(0):
                    host.end("given up as the time was over")
            except Lost as lost:
                for contestant in queue:
                    contestant.problem = str(lost)
                queue.clear()
        if any(queues.values()):
            pause()


def measure(
    contestants: Sequence[Contestant],
    hosts: Hosts,
    pace: Pace,
    deadline: Deadline,
    busy: Callable[[str], None] = lambda text: None,
) -> None:
    """Time those that run, in turns; what an interrupt or the deadline leaves is in `times`."""

    def turn_of(contestant: Contestant) -> Callable[[], float | None] | None:
        call = contestant.answer.get("seconds", 0.0)

        def turn() -> float | None:
            if not contestant.runs or not deadline.allows(3 * call + pace.turn):
                return None
            host = hosts.host(contestant)
            try:
                host.send("turn", contestant.rival, contestant.work, pace.turn)
                found = host.receive(min(deadline.left(), 30 + 20 * call))
            except Lost as lost:
                contestant.problem = str(lost)
                return None
            if isinstance(found, dict):  # what it raised
                contestant.problem = found["problem"]
                return None
            return float(found)

        return turn if contestant.runs else None

    counts = [pace.turns(c.answer["seconds"]) if c.runs else 0 for c in contestants]
    interleave([turn_of(c) for c in contestants], counts, [c.times for c in contestants], busy)


def weigh(contestant: Contestant, how: str, threads: int) -> None:
    """Measure the memory of the variant called `how`, else of the first."""
    rival, work = find(contestant.rival, contestant.work), contestant.work
    if contestant.problem is None and not rival.installed:
        contestant.problem = f"{rival.package} is not installed"
    if contestant.problem is None and rival.bytes_held(work) > 0.8 * available_bytes():
        contestant.problem = f"would need about {rival.bytes_held(work) / 2**30:.0f} GiB"
    if contestant.problem is not None:
        return
    worker = Worker("cpu", threads)
    try:
        worker.send("peak", contestant.rival, how, work)
        found = worker.receive(_HOUR)
        contestant.mib, contestant.problem = found.get("mib"), found["problem"]
    except Lost as lost:
        contestant.problem = str(lost)
    finally:
        worker.end()


def results(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the results of each contestant, as the JSON file has them.

    Ratios are taken between turns of the same round, `time ÷ time of the first`.
    """
    base, found = comparison.contestants[0].times, []
    for one in comparison.contestants:
        entry = {"name": one.label, "how": one.answer.get("how", "")}
        if comparison.timed or one.work.device == "cuda":
            times = one.times if one.problem is None else {}
            ratios = [t / base[turn] for turn, t in times.items() if turn in base]
            entry |= {
                "ways": one.answer.get("ways", {}),
                "ms": 1000 * statistics.median(times.values()) if times else None,
                "ratio": spread(ratios) if ratios else None,
                "error": one.answer.get("error"),
            }
        entry["problem"] = one.problem
        if comparison.weighed:
            entry["mib"] = one.mib
        if one.work.device == "cuda":
            rival = find(one.rival, one.work)
            entry |= {
                "mib": one.answer.get("mib"),
                "first_s": one.answer.get("first_s"),
                "triples": one.work.shape.triples,
                "computes": rival.computes or one.work.score,
                "dtype": one.work.dtype,
                "range": one.work.range,
                **one.answer.get("about", {}),
            }
        found.append(entry)
    return found
