"""Calls are prepared, timed and weighed, on the CPU or a GPU."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from anyscore.lab.bench.memory import available_bytes, give_back, now_and_peak, restart_peak
from anyscore.lab.bench.rivals import Call, Unavailable, Variant, find
from anyscore.lab.bench.timing import EventClock, WallClock
from anyscore.lab.bench.truth import check, truth
from anyscore.lab.bench.work import Work

_SMALL = 16  # queries and keys of the call that loads what is loaded once

Answer = dict[str, Any]


@dataclass
class _Held:
    call: Call
    seconds: float
    answer: Answer


class Runner:
    """Does what is asked of a worker: every public method is a request.

    rival: the name of one, see `rivals.find`. work: a `Work`, the same object or an equal one.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.clock: Callable[[Call, int], float] = EventClock() if device == "cuda" else WallClock()
        self.held: dict[tuple[str, Work], _Held] = {}
        self.truths: dict[tuple[Work, str], Any] = {}
        self.works: dict[Work, Work] = {}

    def prepare(self, rival: str, work: Work) -> Answer:
        """Set up the fastest variant whose answer is right, and time it roughly.

        Keys: problem, or None; how; ways, the milliseconds of each variant or None; error; seconds;
        on a GPU first_s, of the first call, in which it compiles, and mib, its peak of memory above
        the inputs, with the results; about.
        """
        work = self.works.setdefault(work, work)
        if (rival, work) in self.held:
            return self.held[rival, work].answer
        try:
            return self._prepare(rival, work)
        finally:
            self._wait(free=True)

    def _prepare(self, name: str, work: Work) -> Answer:
        rival = find(name, work)
        answer: Answer = {"problem": None, "how": "", "ways": {}, "error": None, "about": {}}
        if not rival.installed:
            extra = f": pip install 'anyscore[{rival.extra}]'" if rival.extra else ""
            return answer | {"problem": f"{rival.package} is not installed{extra}"}
        if work.device == "cpu" and rival.bytes_held(work) > 0.8 * available_bytes():
            gib = rival.bytes_held(work) / 2**30
            return answer | {"problem": f"would need about {gib:.0f} GiB"}
        score = rival.computes or work.score
        work.checking(True)
        if (work, score) not in self.truths:
            self.truths[work, score] = truth(work, score)
        problems, best = [], math.inf
        try:
            variants = rival.variants_of(work)
        except Unavailable as reason:
            return answer | {"problem": str(reason)}
        except Exception as failure:
            return answer | {"problem": said(failure)}
        for variant in variants:
            try:
                found = self._try(variant, work, self.truths[work, score])
            except Exception as failure:  # whatever a rival raises is its result
                found = {"problem": said(failure)}
            answer["ways"][variant.how] = found.get("seconds") and 1000 * found["seconds"]
            if found["problem"] is not None:
                problems.append(found["problem"])
            elif found["seconds"] < best:
                best = found["seconds"]
                self.held[name, work] = _Held(found.pop("call"), best, answer)
                answer |= found | {"how": variant.how, "about": variant.about}
        if best == math.inf:
            answer["problem"] = problems[0]
        return answer

    def _try(self, variant: Variant, work: Work, right: Any) -> Answer:
        work.checking(True)
        start = time.perf_counter()
        call = variant.build()
        results = call()
        self._wait()
        first = time.perf_counter() - start
        error, problem = check(results, right, work)
        del results
        if problem is not None:
            return {"problem": problem}
        work.checking(False)
        found: Answer = {"problem": None, "error": error, "call": call}
        if self.device == "cuda":
            self._wait(free=True)
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            call()
            self._wait()
            found["mib"] = (torch.cuda.max_memory_allocated() - before) / 2**20
            found["first_s"] = first
        return found | {"seconds": self._seconds(call)}

    def _seconds(self, call: Call) -> float:
        """Roughly how long a call takes; the first, in which it warmed up, is not counted."""
        times: list[float] = []
        while not times or (len(times) < 5 and sum(times) < 0.2):
            times.append(self.clock(call, 1))
        return min(times)

    def turn(self, rival: str, work: Work, seconds: float) -> float:
        """Seconds of a call, of as many as take about so long."""
        held = self.held[rival, work]
        return self.clock(held.call, max(1, math.ceil(seconds / held.seconds)))

    def load(self, rival: str, work: Work, seconds: float) -> float | None:
        """Keep the device busy for so long; its clock then in MHz, if PyTorch can tell."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self.turn(rival, work, 0.1)
        try:
            return float(torch.cuda.clock_rate())
        except Exception:  # without nvidia-ml-py
            return None

    def peak(self, name: str, how: str, work: Work) -> Answer:
        """MiB that this process grows by while it does the work once in the variant called `how`.

        Counted is what it holds at most beyond what it held before: results, saved tensors, buffers
        inside operations. What is loaded once is not: a call with few queries and keys comes first,
        or, where the size is compiled for, a call of the same size, whose memory is given back.
        """
        rival, shape = find(name, work), work.shape
        try:
            variants = {variant.how: variant for variant in rival.variants_of(work)}
        except Unavailable as reason:
            return {"mib": None, "problem": str(reason)}
        variant = variants.get(how) or next(iter(variants.values()))
        few = shape._replace(queries=min(shape.queries, _SMALL), keys=min(shape.keys, _SMALL))
        call = variant.build()
        try:
            (call if variant.compiles else rival.variants_of(work.to(shape=few))[0].build())()
        except Unavailable:
            call()
        give_back()
        restart_peak()
        before = now_and_peak()[0]
        results = call()
        growth = now_and_peak()[1] - before
        del results
        return {"mib": growth / 2**20, "problem": None}

    def _wait(self, free: bool = False) -> None:
        if free:
            gc.collect()
        if self.device == "cuda":
            torch.cuda.synchronize()
            if free:
                torch.cuda.empty_cache()  # it is needed elsewhere


def said(failure: BaseException) -> str:
    """Say in a few words what an exception is: its kind, and the first line of its text."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    text = f": {lines[0]}" if lines else ""
    return f"failed: {type(failure).__name__}{text}"[:200]
