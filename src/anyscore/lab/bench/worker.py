"""Hosts of a runner: this process, or one of its own, which can be ended and whose crash
harms nobody.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch

from anyscore.lab.bench.runner import Runner, said
from anyscore.lab.bench.work import Work
from anyscore.lab.own_process import command


class Lost(Exception):
    """A worker is no more; the text says why."""


class Host(Protocol):
    """The host of a `Runner`."""

    def send(self, name: str, *args: Any) -> None:
        """Ask for a method of the runner; the answer is for `receive`. Raises: Lost."""

    def ready(self) -> bool:
        """Return whether `receive` need not wait."""

    def receive(self, timeout: float) -> Any:
        """Give the answer, within so many seconds. Raises: Lost."""

    def end(self, reason: str = "its process was ended") -> None:
        """Forget everything; a process ends."""


class Here:
    """A runner in this process: calls take turns without a detour."""

    def __init__(self, device: str = "cpu") -> None:
        self.runner, self.answers = Runner(device), list[Any]()

    def send(self, name: str, *args: Any) -> None:
        self.answers.append(getattr(self.runner, name)(*args))

    def ready(self) -> bool:
        return bool(self.answers)

    def receive(self, timeout: float) -> Any:
        return self.answers.pop(0)

    def end(self, reason: str = "") -> None:
        self.runner.held.clear()
        self.runner.truths.clear()
        self.runner.works.clear()
        self.answers.clear()


class Worker:
    """A runner in a process of its own: requests and answers are lines of JSON."""

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
                "MALLOC_MMAP_THRESHOLD_": "65536",  # freed buffers go back, and count again
                "TORCHINDUCTOR_COMPILE_THREADS": "1",  # there are enough processes
            },
        )
        os.close(handle)

    def send(self, name: str, *args: Any) -> None:
        if self.reason is not None:
            raise Lost(self.reason)
        line = json.dumps([name, *(asdict(x) if isinstance(x, Work) else x for x in args)])
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise self._died() from None

    def ready(self, timeout: float = 0) -> bool:
        if self.reason is not None:
            return True
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], max(timeout, 0))[0])

    def receive(self, timeout: float) -> Any:
        if self.reason is not None:
            raise Lost(self.reason)
        if not self.ready(timeout):
            self.end(f"given up after {timeout:.0f} s")
            raise Lost(self.reason)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.endswith(b"\n"):
            raise self._died()
        return json.loads(line)

    def end(self, reason: str = "its process was ended") -> None:
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


def serve(device: str, threads: int) -> None:
    """Answer requests, a method of Runner and its arguments, until none come."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    torch.set_num_threads(threads)
    runner = Runner(device)
    for line in sys.stdin:
        name, *args = json.loads(line)
        try:
            given = [Work.from_dict(x) if isinstance(x, dict) else x for x in args]
            answer = getattr(runner, name)(*given)
        except Exception as failure:
            answer = {"problem": said(failure)}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def main() -> None:
    """Serve, in a process of its own: the arguments are the device and the number of threads."""
    serve(sys.argv[1], int(sys.argv[2]))
