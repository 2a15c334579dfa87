"""Processes of a gloo group that run functions of tests, each of them on every rank."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from helpers.hang import HANG


class Ranks:
    """A group of processes; `run` calls a function of an importable module on each of them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._folder = tempfile.TemporaryDirectory()
        context = mp.get_context("spawn")
        store = str(Path(self._folder.name) / "store")
        pipes = [context.Pipe() for _ in range(count)]
        self.pipes = [ours for ours, _ in pipes]
        self.processes = [
            context.Process(target=_serve, args=(rank, count, store, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self.processes:
            process.start()
        for _, theirs in pipes:  # a rank that ends closes its pipe
            theirs.close()

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Return the results of function(rank, ranks, *args) on all ranks.

        Raises:
            AssertionError: a rank raised an exception, or does not answer.
        """
        for pipe in self.pipes:
            pipe.send((function, args))
        answers = []
        for rank, pipe in enumerate(self.pipes):
            assert pipe.poll(HANG), f"rank {rank} does not answer"
            answers.append(pipe.recv())
        for rank, (error, _) in enumerate(answers):
            assert error is None, f"rank {rank}: {error}"
        return [result for _, result in answers]

    def close(self) -> None:
        """End all processes."""
        for process in self.processes:
            process.kill()
            process.join()
        self._folder.cleanup()


def _serve(rank: int, count: int, store: str, pipe: Connection) -> None:
    """Run functions until the pipe closes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            return
        try:
            answer = None, function(rank, count, *args)
        except Exception:
            answer = traceback.format_exc(), None
        pipe.send(answer)
