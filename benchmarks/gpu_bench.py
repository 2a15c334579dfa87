"""The contests of `gpu.py`, stage by stage: what is known is printed and written as it comes."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from gpu_race import LIMIT, ROUNDS, Contest, Deadline, Entrant, Lost, prepare, race, results
from gpu_report import Chip, limits, number, row_of, smi, summary, table, targets, write
from gpu_work import Size, Work

SECONDS = 3.0  # for each in a contest
LEAST = 45.0  # seconds for which a stage is not begun
RACES = 40.0  # seconds of a stage that are not for preparing
COPIES = 10  # of all elements in float32, that the formula broadcast may need in several processes


class Bench:
    """All contests, in stages; what is known is printed and written as it comes.

    start: makes a worker, see `gpu_worker.Worker`.
    """

    def __init__(
        self,
        size: Size,
        start: Callable[[], Any],
        deadline: Deadline,
        quick: bool = False,
        json: str | None = None,
        limit: float = LIMIT,
        say: Callable[[str], None] = lambda text: print(text, flush=True),
    ) -> None:
        self.size, self.start, self.deadline, self.quick = size, start, deadline, quick
        self.json, self.limit, self.say = json, limit, say
        self.workers: dict[str, Any] = {}
        self.chip: Chip | None = None
        self.uuid = ""
        self.report: dict[str, Any] = {
            "begun": time.strftime("%Y-%m-%d %H:%M:%S %z"), "size": list(size), "quick": quick,
            "versions": versions(), "contests": [], "left_out": [], "finished": False,
        }  # fmt: skip

    def run(self) -> None:
        """Everything, until the time is over."""
        try:
            for key, stage in self.stages():
                if not self.deadline.allows(LEAST):
                    self.report["left_out"].append(key)
                    continue
                try:
                    self.stage(stage())
                finally:
                    self.end()
            self.report["finished"] = not self.report["left_out"]
        finally:
            self.save()
            if self.chip is not None:
                self.say("\n" + summary(self.report["contests"], self.chip))
            if self.report["left_out"]:
                self.say(f"left out, as the time was over: {', '.join(self.report['left_out'])}")

    def stages(self) -> Iterator[tuple[str, Callable[[], list[Contest]]]]:
        """Those whose workers live at a time, the most important first."""
        yield "forward", self.forward
        yield "training", self.training
        if self.quick:
            return
        yield "step", self.step
        if row_of(self.report["contests"], "training", "flex").get("ms") is None:
            yield "narrow", self.narrow
        yield "small", self.small

    def stage(self, contests: list[Contest]) -> None:
        entrants = [entrant for contest in contests for entrant in contest.entrants]
        self.describe(entrants[0].worker)
        self.say(f"\npreparing: {', '.join(contest.key for contest in contests)}")
        limit = min(self.limit, max(LEAST / 2, self.deadline.left() - RACES))
        prepare(entrants, limit, self.deadline, lambda text: self.say(f"  {text}"))
        rounds = 5 if self.quick else ROUNDS
        for contest in contests:
            try:
                if contest.timed:
                    race(contest.entrants, SECONDS, rounds, self.deadline)
                    self.look(contest.entrants[0])
            finally:
                self.record(contest)

    def record(self, contest: Contest) -> None:
        found = {"key": contest.key, "title": contest.title, "rows": results(contest)}
        self.report["contests"].append(found)
        if self.chip is not None:
            self.say("\n" + table(found, self.chip))
        self.save()

    def save(self) -> None:
        self.report["targets"] = targets(self.report["contests"])
        if self.chip is not None:
            self.report["chip"] = vars(self.chip)
            self.report["limits"] = limits(self.chip)
        write(self.json, self.report)

    def describe(self, worker: Any) -> None:
        """Ask once what the device is."""
        if self.chip is not None:
            return
        worker.send("device_properties")
        found = worker.receive(120)
        if "problem" in found:
            raise Lost(found["problem"])
        self.uuid = found.pop("uuid")
        said = smi(["driver_version", "clocks.max.sm"], self.uuid) or [None, None]
        found["capability"] = tuple(found["capability"])
        self.chip = Chip(**found, max_mhz=number(said[1]))
        self.report["versions"]["driver"] = said[0]
        named = ", ".join(f"{name} {x}" for name, x in self.report["versions"].items() if x)
        self.say(f"{self.chip.name}, {self.chip.sms} SMs; {named}\n{self.size}")

    def look(self, entrant: Entrant) -> None:
        """The clock under load, once."""
        if self.chip is None or self.chip.mhz is not None or not entrant.runs:
            return
        if not self.deadline.allows(10):
            return
        with suppress(Lost):
            entrant.worker.send("load", entrant.way, entrant.work, 2.0)
            time.sleep(1.0)
            said = smi(["clocks.sm"], self.uuid) or [None]
            told = entrant.worker.receive(60)
            mhz = number(said[0]) or (told if isinstance(told, float) else None)
            self.chip = replace(self.chip, mhz=mhz)

    def ours_failed(self) -> bool:
        """Whether any of ours was wrong or raised."""
        rows = [row for contest in self.report["contests"] for row in contest["rows"]]
        ours = [row for row in rows if row["name"].startswith(("anyscore", "exact", "separable"))]
        return any(row["problem"] and "given up" not in row["problem"] for row in ours)

    def end(self) -> None:
        for worker in self.workers.values():
            worker.end()
        self.workers.clear()

    def one(self, name: str, way: str, work: Work, worker: str | None = None) -> Entrant:
        """An entrant in the worker of that name, else in one of its own."""
        key = worker or name
        if key not in self.workers:
            self.workers[key] = self.start()
        return Entrant(name, way, work, self.workers[key])

    def rivals(self, work: Work) -> list[Entrant]:
        """Ours, and those that hold no more than the scores."""
        found = [self.one("anyscore", "anyscore", work)]
        if not self.quick:
            found.append(self.one("anyscore, float32", "anyscore", work.to(dtype="float32")))
            found.append(self.one("torch.compile", "compile", work))
        if not (self.quick and work.training):
            found.append(self.one("flex", "flex", work))
        if not self.quick and not work.training:
            found.append(self.one("flex, sigmoid", "flex, sigmoid", work))
            found.append(self.one("flex, approximate", "flex, approximate", work))
        return [*found, self.one("dot product (SDPA)", "dot", work)]

    def ranges(self, work: Work) -> list[Entrant]:
        """Exponents that are small, at the border, clamped, and too large for exponentials."""
        return [
            self.one(f"anyscore, std {std:g}", "anyscore", work.to(std=std), "anyscore")
            for std in (0.5, 1.0, 4.0, 8.0)
        ]

    def longer(self, work: Work) -> list[Entrant]:
        size = self.size._replace(queries=2 * self.size.queries, keys=2 * self.size.keys)
        return [self.one("anyscore", "anyscore", work.to(size=size))]

    def forward(self) -> list[Contest]:
        work = self.work()
        near = self.work(reach=2.0)
        exact = self.one("exact", "anyscore", near, "anyscore")
        return [
            Contest("forward", f"Forward, std 1: {self.size}", self.rivals(work)),
            Contest("ranges", "Forward, small and large numbers", self.ranges(work)),
            Contest(
                "separable",
                "Forward, within ± 2: exact, and as a product of rank 8",
                [exact, self.one("separable", "separable", near)],
            ),
            Contest("forward 2T", "Forward, memory at 2T", self.longer(work), timed=False),
        ]

    def training(self) -> list[Contest]:
        work = self.work(training=True)
        return [
            Contest("training", f"Forward + backward, std 1: {self.size}", self.rivals(work)),
            Contest(
                "training ranges", "Forward + backward, small and large numbers", self.ranges(work)
            ),
            Contest("training 2T", "Forward + backward, memory at 2T", self.longer(work), False),
        ]

    def step(self) -> list[Contest]:
        work = self.work(size=self.size._replace(queries=1))
        names = {
            "anyscore": "step", "formula": "formula", "torch.compile": "compile",
            "dot product (SDPA)": "dot",
        }  # fmt: skip
        return [
            Contest(
                f"step{graph}",
                f"A decoder's step, T_q = 1{graph}: {work.size}",
                [self.one(name, way + graph, work, name) for name, way in names.items()],
            )
            for graph in ("", ", CUDA graph")
        ]

    def narrow(self) -> list[Contest]:
        """A width at which FlexAttention may manage the gradients."""
        work = self.work(size=self.size._replace(width=16), training=True)
        both = [self.one(name, name, work) for name in ("anyscore", "flex")]
        return [Contest("narrow", "Forward + backward, width 16", both)]

    def small(self) -> list[Contest]:
        """As many tokens as the formula, broadcast, has memory for."""
        assert self.chip is not None
        size, tokens = self.size, min(self.size.queries, 2048)
        each = 4 * COPIES * size.batch * size.heads * size.width
        while tokens > 64 and each * tokens**2 > 0.8 * self.chip.memory_bytes:
            tokens //= 2
        contests = []
        for training, name in ((False, "Forward"), (True, "Forward + backward")):
            work = self.work(size=size._replace(queries=tokens, keys=tokens), training=training)
            contests.append(Contest(
                f"small {'training' if training else 'forward'}",
                f"{name}, where the formula fits memory: {work.size}",
                [
                    self.one("anyscore", "anyscore", work),
                    self.one("formula", "formula", work),
                    self.one("formula, float32", "formula", work.to(dtype="float32"), "formula"),
                    self.one("torch.compile", "compile", work),
                ],
            ))  # fmt: skip
        return contests

    def work(self, **options: Any) -> Work:
        return Work(**({"size": self.size} | options))


def versions() -> dict[str, str | None]:
    import torch

    from anyscore import __version__

    try:
        from triton import __version__ as triton
    except ImportError:
        triton = None
    return {
        "anyscore": __version__, "torch": torch.__version__, "CUDA": torch.version.cuda,
        "triton": triton, "Python": platform.python_version(),
    }  # fmt: skip
