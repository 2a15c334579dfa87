"""Contestants on a GPU: each rival lives in a process of its own, until all must be over."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from anyscore.lab.bench.comparison import Contestant
from anyscore.lab.bench.timing import Deadline, Pace, interleave
from anyscore.lab.bench.work import Shape
from benchmarks.rivals import GRAPH
from benchmarks.worker import Lost, Worker

LIMIT = 150.0  # seconds that preparing one in a process of its own may take, compilation included
_GRACE = 15.0
_FIRST = 0.3  # of them: a rival whose first variants took longer gets no further ones


class Hosts:
    """The processes of contestants: one for each rival, score and shape."""

    def __init__(self, start: Callable[[], Worker]) -> None:
        self.start = start
        self.known: dict[tuple[str, str, Shape], Worker] = {}

    def host(self, contestant: Contestant) -> Worker:
        """Give the process that has a contestant; it is started if need be."""
        work = contestant.work
        name = contestant.rival.name.removesuffix(GRAPH), work.score, work.shape
        if name not in self.known:
            self.known[name] = self.start()
        return self.known[name]

    def end(self) -> None:
        """End all processes at once."""
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

    One that takes longer than `limit` seconds is given up. No preparation begins after the
    deadline. One under way is given up then, or `_GRACE` seconds later if its process holds others.
    """
    queues: dict[Worker, list[Contestant]] = {}
    for contestant in contestants:
        if contestant.problem is None:
            queues.setdefault(hosts.host(contestant), []).append(contestant)
    began: dict[Worker, float] = {}
    holding: set[Worker] = set()
    while any(queues.values()):
        for host, queue in queues.items():
            try:
                while queue and (host not in began or host.ready()):
                    if host in began:
                        answer, one = host.receive(0), queue[0]
                        one.answer, one.problem = answer, answer["problem"]
                        one.mib = answer.get("mib")
                        del queue[0], began[host]
                        if one.runs:
                            holding.add(host)
                    elif not deadline.allows(0):
                        for contestant in queue:
                            contestant.problem = "given up before it began: the time was over"
                        queue.clear()
                    else:
                        busy(f"{queue[0].label}: check")
                        began[host] = deadline.clock()
                        host.send("prepare", queue[0].rival, queue[0].work, _FIRST * limit)
                if queue and deadline.clock() - began[host] > limit:
                    host.end(f"given up after {limit:.0f} s of preparation")
                elif queue and not deadline.allows(-_GRACE if host in holding else 0):
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
    """Time those that run, in turns; `times` has the finished turns after an interrupt, too."""

    def turn_of(contestant: Contestant) -> Callable[[], float | None] | None:
        call = contestant.answer.get("seconds", 0.0)

        def turn() -> float | None:
            if not contestant.runs or not deadline.allows(3 * call + pace.turn):
                return None
            host = hosts.host(contestant)
            try:
                host.send("turn", contestant.rival, contestant.work, pace.turn)
                answer = host.receive(min(deadline.left(), 30 + 20 * call))
            except Lost as lost:
                contestant.problem = str(lost)
                return None
            if isinstance(answer, dict):  # an exception
                contestant.problem = answer["problem"]
                return None
            return float(answer)

        return turn if contestant.runs else None

    counts = [pace.turns(c.answer["seconds"]) if c.runs else 0 for c in contestants]
    interleave([turn_of(c) for c in contestants], counts, [c.times for c in contestants], busy)
