"""A runner prepares, checks and times calls, on the CPU or a GPU; a wrong answer gets no time."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyscore.lab.bench.rivals import Call, Rival, Unavailable, Variant
from anyscore.lab.bench.timing import EventClock, WallClock
from anyscore.lab.bench.work import Work

Answer = dict[str, Any]

TOLERANCES = {
    ("cpu", "float32"): 1e-3,
    ("cpu", "bfloat16"): 5e-2,
    ("cuda", "float32"): 2e-2,
    ("cuda", "bfloat16"): 2e-2,
}
"""The largest permitted error, as a share of the largest entry of the right answer. Rounding values
and weights to bfloat16 gives about 3e-3 on a GPU."""


@dataclass
class _Held:
    call: Call
    seconds: float
    answer: Answer


class Runner:
    """The calls of rivals on one device: each is set up once, checked and held."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.clock: Callable[[Call, int], float] = EventClock() if device == "cuda" else WallClock()
        self.held: dict[tuple[str, Work], _Held] = {}
        self.truths: dict[tuple[Work, str], Any] = {}

    def prepare(self, rival: Rival, work: Work, patience: float = math.inf) -> Answer:
        """Set up the fastest variant with a right answer, and time it roughly.

        patience: seconds after which no further variant is tried if one was right.

        Keys: problem, or None; how, the variant; ways, the milliseconds of each variant or None;
        error; seconds; about. On a GPU also first_s, the seconds of the first call with its
        compilation, and mib, the peak of memory above the inputs, results included.
        """
        if (rival.name, work) in self.held:
            return self.held[rival.name, work].answer
        try:
            return self._prepare(rival, work, patience)
        finally:
            self._wait(free=True)

    def _prepare(self, rival: Rival, work: Work, patience: float) -> Answer:
        begin = time.perf_counter()
        answer: Answer = {"problem": None, "how": "", "ways": {}, "error": None, "about": {}}
        reason = rival.why_not(work)
        if reason is not None:
            return answer | {"problem": reason}
        score = rival.computes or work.score
        work.checking(True)
        if (work, score) not in self.truths:
            self.truths[work, score] = work.truth(score)
        problems, best = [], math.inf
        try:
            variants = rival.variants(work)
        except Unavailable as unavailable:
            return answer | {"problem": str(unavailable)}
        except Exception as failure:
            return answer | {"problem": said(failure)}
        for variant in variants:
            if best < math.inf and time.perf_counter() - begin > patience:
                break
            try:
                attempt = self._try(variant, work, self.truths[work, score])
            except Exception as failure:  # any exception of a rival is its result
                attempt = {"problem": said(failure)}
            answer["ways"][variant.how] = attempt.get("seconds") and 1000 * attempt["seconds"]
            if attempt["problem"] is not None:
                problems.append(attempt["problem"])
            elif attempt["seconds"] < best:
                best = attempt["seconds"]
                self.held[rival.name, work] = _Held(attempt.pop("call"), best, answer)
                answer |= attempt | {"how": variant.how, "about": variant.about}
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
        attempt: Answer = {"problem": None, "error": error, "call": call}
        if self.device == "cuda":
            self._wait(free=True)
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            call()
            self._wait()
            attempt["mib"] = (torch.cuda.max_memory_allocated() - before) / 2**20
            attempt["first_s"] = first
        return attempt | {"seconds": self._seconds(call)}

    def _seconds(self, call: Call) -> float:
        """Estimate the seconds of a call; the first call, a warm-up, was not counted."""
        times: list[float] = []
        while not times or (len(times) < 5 and sum(times) < 0.2):
            times.append(self.clock(call, 1))
        return min(times)

    def turn(self, rival: Rival, work: Work, seconds: float) -> float:
        """Return the seconds of a call, over enough calls to last about `seconds`."""
        held = self.held[rival.name, work]
        return self.clock(held.call, max(1, math.ceil(seconds / held.seconds)))

    def _wait(self, free: bool = False) -> None:
        if free:
            gc.collect()
        if self.device == "cuda":
            torch.cuda.synchronize()
            if free:
                torch.cuda.empty_cache()  # other processes need the memory


def check(results: Sequence[Any], right: dict[str, Tensor], work: Work) -> tuple[float, str | None]:
    """Compare results, arrays of any framework, with `Work.truth`.

    Results with a row for each query are compared in `Work.checked_rows` only.

    Returns:
        The largest error, as a share of the largest entry, and the problem, or None.
    """
    worst = 0.0
    for place, (name, y) in enumerate(right.items()):
        if place >= len(results) or results[place] is None:
            return math.inf, f"wrong: it gives no {name}"
        x = work.checked(name, _float64(results[place]).to(y.device), y)
        if x.numel() != y.numel():
            return math.inf, f"wrong: its {name} has the shape {tuple(results[place].shape)}"
        if not bool(x.isfinite().all()):
            return math.inf, f"wrong: its {name} is not finite"
        error = float((x.reshape(y.shape) - y).abs().max() / y.abs().max().clamp_min(1e-300))
        worst = max(worst, error)
        if error > TOLERANCES[work.device, work.dtype]:
            return error, f"wrong: its {name} is off by {error:.2g} of the largest entry"
    return worst, None


def _float64(x: Any) -> Tensor:
    if isinstance(x, Tensor):
        return x.detach().double()
    return torch.from_numpy(np.asarray(x).astype(np.float64))


def said(failure: BaseException) -> str:
    """Describe an exception in a few words: its kind, and the first line of its text."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    text = f": {lines[0]}" if lines else ""
    return f"failed: {type(failure).__name__}{text}"[:200]
