"""Attention across ranks of this machine: `python -m benchmarks.ranks`.

Each rank is a process of gloo with one thread. Calls are causal, with all gradients. The table has

    work      attended pairs of the busiest rank ÷ mean of the ranks; counted, not timed
    seconds   processor seconds of all ranks ÷ those of one process with all tokens
    waiting   part of the time in which a rank waits for tokens; for as many ranks as cores
    memory    growth of a rank ÷ (a part of the growth of one process + one block of keys)

Parity is checked first. A second table is arithmetic: the time of a ring on GPUs whose exchange has
a given bandwidth, from a measured time of one pair of query and key.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from anyscore import Additive, Causal, Contiguous, GATv2, Laplace, ScaledDot, Window, Zigzag
from anyscore import attention as attend
from anyscore.backends.torch.exchange import ProcessExchange
from anyscore.lab.bench.weigh import growth
from benchmarks.record import FOLDER, Row, row, script_options, write_script

TOKENS, WIDTH, ROUNDS = 16_384, 64, 3
LONG, NARROW, WINDOW = 262_144, 16, 64
"""Of the measurement of memory: tokens, width, and attended keys, which make it short."""
SCORES = "additive", "gatv2", "laplace", "scaled_dot"
LAYOUTS = {"contiguous": Contiguous, "zigzag": Zigzag}
SMALL = 256
BANDWIDTHS = 12.5, 50, 450
"""GB/s between two ranks: networks of 100 and 400 Gb/s, and NVLink of an H100 in one direction."""
MEASURED = "gpu-2026-11-26"
"""The file of measurements with the time of a pair on a GPU."""


def score_of(name: str, width: int) -> Any:
    """Return a score with parameters, the same on every rank."""
    w_q, w_k, w = torch.ones(width, width) / width, torch.eye(width), torch.ones(width) / width
    scores: dict[str, Callable[[], Any]] = {
        "additive": lambda: Additive(w_q, w_k, w),
        "gatv2": lambda: GATv2(w_q, w_k, w),
        "laplace": lambda: Laplace(float(width)),
        "scaled_dot": ScaledDot,
    }
    return scores[name]()


def busiest(layout: str, ranks: int, tokens: int) -> float:
    """Return the causal pairs of the busiest rank ÷ the mean of all ranks."""
    shards = LAYOUTS[layout](None)._shards(ranks, tokens)
    pairs = [sum(n + 1 for n in shards.numbers(rank)) for rank in range(ranks)]
    return max(pairs) * ranks / sum(pairs)


def drawn(tokens: int, width: int) -> list[Tensor]:
    """Return queries, keys and values (1, 1, tokens, width), the same on every rank."""
    torch.manual_seed(0)
    return [torch.randn(1, 1, tokens, width) for _ in range(3)]


def call_of(tensors: list[Tensor], score: Any, mask: Any, across: Any) -> Callable[[], Any]:
    """Return a function that attends and computes all gradients: (output, gradients)."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors]

    def call() -> Any:
        output = attend(*leaves, score=score, mask=mask, across=across)
        return output, torch.autograd.grad(output.sum(), leaves)

    return call


class _Waiting:
    """Counts the seconds in which an exchange waits."""

    def __init__(self) -> None:
        self.seconds = 0.0
        begin = ProcessExchange.pass_on

        def pass_on(exchange: ProcessExchange, *args: Any) -> Callable[[], list[Tensor]]:
            wait = self._timed(begin, exchange, *args)
            return lambda: self._timed(wait)

        ProcessExchange.pass_on = pass_on  # type: ignore[method-assign,assignment]

    def _timed(self, function: Callable[..., Any], *args: Any) -> Any:
        begun = time.perf_counter()
        found = function(*args)
        self.seconds += time.perf_counter() - begun
        return found


class Case(NamedTuple):
    """A measurement. kind: "time" or "memory"."""

    kind: str
    score: str
    layout: str
    tokens: int
    width: int
    rounds: int


def measure(rank: int, ranks: int, store: str, case: Case, answers: str) -> None:
    """Measure on one rank; rank 0 writes the answer."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    layout, score = LAYOUTS[case.layout](dist.group.WORLD), score_of(case.score, case.width)
    found = (_time if case.kind == "time" else _memory)(rank, ranks, layout, score, case)
    if rank == 0:
        Path(answers).write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def _time(rank: int, ranks: int, layout: Any, score: Any, case: Case) -> dict[str, float]:
    whole = drawn(case.tokens, case.width)
    alone = call_of(whole, score, Causal(), None)
    shared = call_of([layout.shard(x) for x in whole], score, Causal(), layout)
    (output, gradients), (mine, own) = alone(), shared()
    for x, y in zip((output, *gradients), (mine, *own), strict=True):
        torch.testing.assert_close(y, layout.shard(x), rtol=1e-3, atol=1e-3)
    waiting, seconds, waited = _Waiting(), [], []
    for _ in range(case.rounds):
        one = 0.0
        if rank == 0:
            begun = time.process_time()
            alone()
            one = time.process_time() - begun
        dist.barrier()
        begun, at, waiting.seconds = time.process_time(), time.perf_counter(), 0.0
        shared()
        used = torch.tensor([time.process_time() - begun, one])
        waited.append(waiting.seconds / (time.perf_counter() - at))
        dist.all_reduce(used)
        seconds.append((used[0] / used[1]).item())
    return {"seconds": median(seconds), "waiting": median(waited)}


def _memory(rank: int, ranks: int, layout: Any, score: Any, case: Case) -> dict[str, float]:
    mask = Window(WINDOW, 0)
    few = drawn(SMALL, case.width)
    call_of(few, score, mask, None)()  # loads libraries
    call_of([layout.shard(x) for x in few], score, mask, layout)()
    whole = drawn(case.tokens, case.width)
    shared = call_of([layout.shard(x) for x in whole], score, mask, layout)
    mine = growth(shared)
    dist.barrier()
    one = growth(call_of(whole, score, mask, None)) if rank == 0 else 0.0
    block = 2 * case.tokens // ranks * case.width * 4 / 2**20  # projected keys, and values
    return {"rank": mine, "one": one, "memory": mine / (one / ranks + block)}


def run(ranks: int, case: Case) -> dict[str, float]:
    """Measure a case on a new group of processes."""
    if case.kind == "memory":
        os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # freed buffers go back, and count again
    with tempfile.TemporaryDirectory() as folder:
        store, answers = (str(Path(folder) / name) for name in ("store", "answers"))
        mp.spawn(measure, (ranks, store, case, answers), nprocs=ranks)  # type: ignore[attr-defined,no-untyped-call]
        found: dict[str, float] = json.loads(Path(answers).read_text(encoding="utf-8"))
    return found


def on_paper() -> list[tuple[int, int, float, float]]:
    """Return (tokens, machines, seconds of arithmetic, seconds of exchange at 1 GB/s).

    One head of an additive forward in bfloat16, width 64, causal with zigzag. A rank computes
    T² / (2 P) pairs and receives (P − 1) blocks of T / P projected keys and values.
    """
    measured = json.loads((FOLDER / f"{MEASURED}.json").read_text(encoding="utf-8"))["rows"]
    (ms,) = (
        x["median"] for x in measured
        if (x["workload"], x["variant"], x["dtype"], x["quantity"])
        == ("long batch", "anyscore", "bfloat16", "ms")
    )  # fmt: skip
    pair = ms / 1e3 / (32 * 4096**2)
    found = []
    for tokens in (2**20, 2**24):
        for machines in (8, 64):
            moved = tokens / machines * (machines - 1) * 2 * 64 * 2  # bytes of both, in bfloat16
            found.append((tokens, machines, tokens**2 / 2 / machines * pair, moved / 1e9))
    return found


def main() -> None:
    """Print the tables."""
    given = script_options(__doc__)
    rows: list[Row] = []
    cores = len(os.sched_getaffinity(0))

    def note(workload: str, variant: str, quantity: str, value: float) -> None:
        rows.append(row(workload, variant, "float32", quantity, {"median": value}))

    print("work of the busiest rank ÷ mean")
    for layout in LAYOUTS:
        for ranks in (4, 8, 64):
            most = busiest(layout, ranks, 2**16)
            print(f"  {layout:12s} {ranks:3d} ranks {most:6.3f}", flush=True)
            note(f"{ranks} ranks", layout, "work of the busiest rank ÷ mean", most)
    print(f"causal, {TOKENS:,} tokens, width {WIDTH}, with gradients, {cores} ranks")
    for score in SCORES:
        found = run(cores, Case("time", score, "zigzag", TOKENS, WIDTH, ROUNDS))
        print(f"  {score:12s} seconds {found['seconds']:.3f}  waiting {found['waiting']:.3f}")
        of = f"{cores} ranks, zigzag"
        note(of, score, "processor seconds ÷ one process's", found["seconds"])
        note(of, score, "part of the time spent waiting", found["waiting"])
    print(f"a window of {WINDOW}, {LONG:,} tokens, width {NARROW}, with gradients, 4 ranks")
    for score in ("laplace", "additive"):
        found = run(4, Case("memory", score, "contiguous", LONG, NARROW, 1))
        each = f"{found['rank']:.0f} MiB; one process {found['one']:.0f} MiB"
        print(f"  {score:12s} {each}; ÷ (a quarter + one block) {found['memory']:.2f}")
        of = "memory, 4 ranks"
        note(of, score, "a rank, MiB", found["rank"])
        note(of, score, "one process, MiB", found["one"])
        note(of, score, "a rank ÷ (a quarter of one process + one block)", found["memory"])
    print("on paper: seconds of arithmetic, and of exchange")
    for tokens, machines, arithmetic, exchange in on_paper():
        of = f"{tokens:,} tokens, {machines} GPUs"
        seconds = {"arithmetic": arithmetic}
        seconds |= {f"exchange at {speed} GB/s": exchange / speed for speed in BANDWIDTHS}
        print(f"  {of}: {'; '.join(f'{name} {x:.3g}' for name, x in seconds.items())}")
    write_script(given, "benchmarks.ranks", rows)


if __name__ == "__main__":
    main()
