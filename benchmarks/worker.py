"""A runner in a process of its own, which can be ended and whose crash harms nobody."""

from __future__ import annotations

import os
import pickle
import select
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from anyscore.lab.bench.rivals import Rival
from anyscore.lab.bench.runner import Runner, said
from anyscore.lab.bench.work import Work
from anyscore.lab.own_process import command
from benchmarks.private import kernel_times

_CALLS = 7  # timed calls of kernels
_AHEAD = 40_000_000  # cycles, about 20 ms, for which the device is kept busy before a call


class Lost(Exception):
    """A worker is no more; the text says why."""


class GpuRunner(Runner):
    """A runner whose device can be kept busy, and whose kernels can be timed."""

    def kernels(self, rival: Rival, work: Work) -> dict[str, float]:
        """Return the milliseconds of each kernel of anyscore in a call, medians of some calls."""
        call = self.held[rival.name, work].call

        cuda: Any = torch.cuda

        def mark() -> Any:
            event = cuda.Event(enable_timing=True)
            event.record()
            return event

        def since(begin: Any, end: Any) -> float:
            end.synchronize()
            return float(begin.elapsed_time(end))

        if self.device == "cpu":
            mark, since = time.perf_counter, lambda begin, end: 1000 * (end - begin)
        found = []
        for _ in range(_CALLS):
            if self.device == "cuda":
                cuda._sleep(_AHEAD)  # launches are queued, so that no kernel waits for one
            found.append(kernel_times(call, work.training, mark, since))
        return {name: statistics.median(one[name] for one in found) for name in found[0]}

    def load(self, rival: Rival, work: Work, seconds: float) -> float | None:
        """Keep the device busy for so long; its clock then in MHz, if PyTorch can tell."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self.turn(rival, work, 0.1)
        try:
            return float(torch.cuda.clock_rate())
        except Exception:  # without nvidia-ml-py
            return None


class Worker:
    """A runner in a process of its own."""

    def __init__(self, device: str, threads: int) -> None:
        handle, self.log = tempfile.mkstemp(suffix=".log")
        self.reason: str | None = None
        self.process = subprocess.Popen(
            command(__name__, device, str(threads)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=handle,
            start_new_session=True,  # Ctrl-C is for this process, which ends that one
            env=os.environ
            | {
                "OMP_NUM_THREADS": str(threads),
                "TORCHINDUCTOR_COMPILE_THREADS": "1",  # there are enough processes
            },
        )
        os.close(handle)

    def send(self, name: str, *args: Any) -> None:
        """Ask for a method of the runner; the answer is for `receive`. Raises: Lost."""
        if self.reason is not None:
            raise Lost(self.reason)
        request = pickle.dumps((name, [x.to() if isinstance(x, Work) else x for x in args]))
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(request)
            self.process.stdin.flush()
        except OSError:
            raise self._died() from None

    def ready(self, timeout: float = 0) -> bool:
        """Return whether `receive` need not wait, after so many seconds at most."""
        if self.reason is not None:
            return True
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], max(timeout, 0))[0])

    def receive(self, timeout: float) -> Any:
        """Give the answer, within so many seconds. Raises: Lost."""
        if self.reason is not None:
            raise Lost(self.reason)
        if not self.ready(timeout):
            self.end(f"given up after {timeout:.0f} s")
            raise Lost(self.reason)
        assert self.process.stdout is not None
        try:
            return pickle.load(self.process.stdout)
        except (EOFError, pickle.UnpicklingError):
            raise self._died() from None

    def end(self, reason: str = "its process was ended") -> None:
        """End the process at once."""
        if self.reason is None:
            self.reason = reason
            self.process.kill()
            self.process.communicate()
            with suppress(OSError):
                os.unlink(self.log)

    def _died(self) -> Lost:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        lines = Path(self.log).read_text(errors="replace").strip().splitlines()
        last = f": {lines[-1].strip()}" if lines else ""
        status = self.process.poll()
        self.end(f"failed: the process ended with status {status}{last}"[:300])
        return Lost(self.reason)


def serve(runner: Runner) -> None:
    """Answer requests, a method of a runner and its arguments, until none come."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints of libraries are no answer
    works: dict[Work, Work] = {}
    with suppress(EOFError):
        while True:
            name, args = pickle.load(sys.stdin.buffer)
            # One object for equal work: it keeps its inputs.
            args = [works.setdefault(x, x) if isinstance(x, Work) else x for x in args]
            try:
                answer = getattr(runner, name)(*args)
            except Exception as failure:
                answer = {"problem": said(failure)}
            answers.write(pickle.dumps(answer))
            answers.flush()


def main() -> None:
    """Serve, in a process of its own: the arguments are the device and the number of threads."""
    torch.set_num_threads(int(sys.argv[2]))
    serve(GpuRunner(sys.argv[1]))
