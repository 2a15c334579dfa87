"""A rank that ends: the others end too, and their errors name it."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import time

import pytest

from helpers.by_pair import also_weekly
from helpers.hang import HANG

SCRIPT = """
import sys, torch, torch.distributed as dist
from anyscore import Causal, Laplace, Zigzag, attention

rank, ranks, port = map(int, sys.argv[1:])
torch.set_num_threads(1)
store = f"tcp://127.0.0.1:{port}"
dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
layout = Zigzag(dist.group.WORLD)
x = [torch.randn(1, 2, 64, 16, requires_grad=True) for _ in range(3)]
for call in range(1_000_000):
    attention(*x, score=Laplace(2.0), mask=Causal(), across=layout).sum().backward()
    if call == 0:
        print("ready", flush=True)
"""


def started(ranks: int) -> list[subprocess.Popen[str]]:
    """Start ranks that attend in a loop; return after each has attended once."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), str(ranks), str(port)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    return processes


@pytest.mark.parametrize("seed", [0, 1, *also_weekly(*range(2, 50))])
def test_a_lost_rank_is_named(seed: int) -> None:
    draw = random.Random(seed)
    processes = started(3)
    try:
        lost = draw.randrange(3)
        time.sleep(draw.random() / 2)
        processes[lost].send_signal(signal.SIGKILL)
        for rank, process in enumerate(processes):
            if rank == lost:
                continue
            _, error = process.communicate(timeout=HANG)
            assert process.returncode == 1
            assert f"rank {lost} of 3 (process {processes[lost].pid} on" in error
            assert f"so this rank, {rank}, cannot go on" in error
    finally:
        for process in processes:
            process.kill()
            process.communicate()
