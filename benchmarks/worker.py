"""A runner in a process of its own, which can be ended and whose crash harms nobody."""

from __future__ import annotations

import os
import pickle
import select
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


class Lost(Exception):
    """A worker is no more; the text says why."""


class GpuRunner(Runner):
    """A runner whose device can be kept busy."""

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
