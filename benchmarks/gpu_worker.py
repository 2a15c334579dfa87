"""Calls prepared and timed in processes of their own: one that crashes or hangs is ended."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from gpu_race import Lost
from gpu_work import Inputs, Work, check, inputs, truth

LONG = 2000.0  # ms of a call from which there is none to warm up
MOST = 200  # calls in a turn

Answer = dict[str, Any]


class Events:
    """Milliseconds of calls on the device, each with nothing of its inputs in the L2 cache: before
    each a buffer of twice its size is filled.
    """

    def __init__(self) -> None:
        import torch

        size = 2 * getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 2**26)
        self.torch = torch
        self.buffer = torch.empty(max(size, 2**26), dtype=torch.int8, device="cuda")

    def __call__(self, call: Callable[[], Any], count: int) -> list[float]:
        event = self.torch.cuda.Event
        pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(count)]
        for start, end in pairs:
            self.buffer.zero_()
            start.record()
            call()
            end.record()
        self.torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in pairs]


class Clock:
    """The same without a device, for tests."""

    def __call__(self, call: Callable[[], Any], count: int) -> list[float]:
        times = []
        for _ in range(count):
            start = time.perf_counter()
            call()
            times.append(1000 * (time.perf_counter() - start))
        return times


@dataclass
class Held:
    call: Callable[[], Any]
    ms: float
    answer: Answer


class Runner:
    """What a worker does: every method is a request."""

    def __init__(self, device: str) -> None:
        import torch

        self.torch, self.device = torch, device
        self.timer: Callable[[Callable[[], Any], int], list[float]]
        self.timer = Events() if device == "cuda" else Clock()
        self.held: dict[tuple[str, Work], Held] = {}
        self.inputs: dict[Work, Inputs] = {}

    def prepare(self, way: str, work: Work) -> Answer:
        """Set up, compare with what is right, and time roughly.

        Keys: problem, or None; errors; about; first_s, of the first call, in which it compiles; ms;
        peak_bytes, above the inputs, with the results.
        """
        if (way, work) in self.held:
            return self.held[way, work].answer
        try:
            return self._prepare(way, work)
        except Exception as failure:  # whatever it raises is its result
            return {"problem": said(failure)}
        finally:
            gc.collect()
            if self.device == "cuda":
                self.torch.cuda.empty_cache()  # it is needed elsewhere

    def _prepare(self, way: str, work: Work) -> Answer:
        from gpu_ways import build

        x = self.inputs.get(work) or inputs(work, self.device)
        self.inputs[work] = x
        start = time.perf_counter()
        call, about = build(way, work, x)
        found = call(x.d_checked)
        self._wait()
        answer: Answer = {"about": about, "first_s": time.perf_counter() - start}
        right = truth(work, x, about.get("computes", "additive"))
        answer["errors"], answer["problem"] = check(found, right, work.rows)
        del found, right
        if answer["problem"] is not None:
            return answer

        def full() -> Any:
            return call(x.d_output)

        before = self._peak()
        ms = min(self.timer(full, 1))
        answer["peak_bytes"] = None if before is None else self._peak(before)
        if ms < LONG / 10:
            ms = min(self.timer(full, 3))
        answer["ms"] = ms
        self.held[way, work] = Held(full, ms, answer)
        return answer

    def turn(self, way: str, work: Work, seconds: float) -> list[float]:
        """Milliseconds of calls, as many as take about so long."""
        held = self.held[way, work]
        if held.ms < LONG:
            held.call()
        return self.timer(held.call, max(1, min(MOST, int(1000 * seconds / held.ms))))

    def load(self, way: str, work: Work, seconds: float) -> float | None:
        """Keep the device busy for so long; its clock then in MHz, if PyTorch can tell."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self.turn(way, work, 0.1)
        try:
            return float(self.torch.cuda.clock_rate())
        except Exception:  # without nvidia-ml-py
            return None

    def device_properties(self) -> Answer:
        """What `gpu_report.Chip` is made of."""
        if self.device != "cuda":
            return {"name": "no GPU", "capability": [0, 0], "sms": 1, "l2_bytes": 1,
                    "memory_bytes": 2**33, "uuid": ""}  # fmt: skip
        x = self.torch.cuda.get_device_properties(0)
        return {
            "name": x.name, "capability": [x.major, x.minor], "sms": x.multi_processor_count,
            "l2_bytes": getattr(x, "L2_cache_size", 0), "memory_bytes": x.total_memory,
            "uuid": str(getattr(x, "uuid", "")),
        }  # fmt: skip

    def _wait(self) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def _peak(self, before: int | None = None) -> int | None:
        """Bytes allocated now; or the most above `before` since that was asked."""
        if self.device != "cuda":
            return None
        self._wait()
        if before is not None:
            return self.torch.cuda.max_memory_allocated() - before
        self.torch.cuda.reset_peak_memory_stats()
        return self.torch.cuda.memory_allocated()


def said(failure: BaseException) -> str:
    """An exception in a few words: its kind, and how its text begins."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    return f"{type(failure).__name__}: {' '.join(lines[:4])}"[:300]


def serve(connection: Connection, device: str, log: str) -> None:
    """The life of a worker: requests, as a method of Runner and its arguments, until none come."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    file = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    runner = Runner(device)
    with suppress(EOFError, BrokenPipeError):
        while True:
            name, *args = connection.recv()
            try:
                answer = getattr(runner, name)(*args)
            except Exception as failure:
                answer = {"problem": said(failure)}
            connection.send(answer)


class Worker:
    """A process with a Runner, as its parent sees it."""

    def __init__(self, device: str) -> None:
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # there are enough processes
        context = multiprocessing.get_context("spawn")
        handle, self.log = tempfile.mkstemp(suffix=".log")
        os.close(handle)
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, device, self.log), daemon=True)
        old = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited
        self.process.start()
        signal.signal(signal.SIGINT, old)
        theirs.close()
        self.reason: str | None = None

    def send(self, *request: Any) -> None:
        """Ask for something; the answer is for `receive`. Raises Lost."""
        if self.reason is not None:
            raise Lost(self.reason)
        try:
            self.connection.send(request)
        except OSError:
            self._died()

    def ready(self) -> bool:
        return self.reason is not None or self.connection.poll(0)

    def receive(self, timeout: float) -> Any:
        """The answer, within so many seconds. Raises Lost."""
        if self.reason is not None:
            raise Lost(self.reason)
        if not self.connection.poll(max(timeout, 0)):
            self.end(f"given up after {timeout:.0f} s")
            raise Lost(self.reason)
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self._died()

    def end(self, reason: str = "its process was ended") -> None:
        """Kill the process."""
        if self.reason is None:
            self.reason = reason
            self.process.kill()
            self.process.join(10)
            self.connection.close()
            with suppress(OSError):
                os.unlink(self.log)

    def _died(self) -> Any:
        self.process.join(10)
        with open(self.log, errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
        last = f": {lines[-1]}" if lines else ""
        self.end(f"its process died with exit code {self.process.exitcode}{last}"[:300])
        raise Lost(self.reason)


class Here:
    """The same without a process, for tests."""

    def __init__(self, device: str) -> None:
        self.runner, self.reason, self.answers = Runner(device), None, []

    def send(self, *request: Any) -> None:
        name, *args = request
        self.answers.append(getattr(self.runner, name)(*args))

    def ready(self) -> bool:
        return bool(self.answers)

    def receive(self, timeout: float) -> Any:
        return self.answers.pop(0)

    def end(self, reason: str = "") -> None:
        self.runner.held.clear()
