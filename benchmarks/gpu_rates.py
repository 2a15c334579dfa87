"""Measure the rates of a GPU's units, by which kernels are planned.

    python -m benchmarks.gpu_rates --record gpu-rates

Rates are of single instructions, of the tensor cores, of the second-level cache and of launches.
Beside them are whole operations of PyTorch, and the kernels of `impl="separable"`. The command
needs PyTorch and Triton, and no CUDA compiler. Three minutes are planned for it. The record names a
section that fails, with its reason, and has all others.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from anyscore import Additive, attention
from anyscore.lab.bench.runner import said
from anyscore.lab.bench.timing import Deadline, EventClock, spread
from anyscore.lab.bench.work import TRAINING, Shape
from anyscore.lab.cli.bench import check_gpu
from anyscore.lab.errors import InputError
from benchmarks.gpu_limits import Chip
from benchmarks.record import FOLDER, Row, row, write
from benchmarks.variants_dot import in_torch
from benchmarks.work import Work

MINUTES = 5.0
ROUNDS = 15
SHAPE = Shape(32, 4096, 4096, 64, 64)
_PROGRAMS = 8  # of each multiprocessor
_REPEATS = 2_000  # of a loop's body
_PRODUCTS = ((128, 128, 64, 8), (128, 256, 64, 8), (64, 64, 64, 4))  # M, N, K, warps
_CACHED = 2**22  # float32 numbers, 16 MiB, that the second-level cache holds
_READ = 4096  # of them, a program at a time
_EMPTY = 2048  # programs that leave at once
_LAUNCHES = 100
_SHOWN = 12  # kernels of a profile


def main() -> None:
    """Run the command."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--record", metavar="NAME", help="write FOLDER/NAME-DATE.json")
    options.add_argument("--folder", type=Path, default=FOLDER, help="default: measurements/")
    options.add_argument("--minutes", type=float, default=MINUTES, help="no section begins later")
    given = options.parse_args()
    try:
        check_gpu("cuda")
    except InputError as error:
        sys.exit(f"gpu_rates: {str(error).removeprefix('--device cuda: ')}")
    chip, clock = Chip.first(), EventClock()
    command = " ".join(["python -m benchmarks.gpu_rates", *sys.argv[1:]])

    def save(rows: Sequence[Row], note: str | None) -> None:
        if given.record:
            machine = {"processor": chip.described, "device": "cuda"}
            write(given.record, rows, machine, command, given.folder, note)

    measure(SECTIONS, (chip, clock), Deadline(60 * given.minutes), save)


def measure(
    sections: Mapping[str, Callable[[Chip, EventClock], Iterator[Row]]],
    given: Any,
    deadline: Deadline,
    save: Callable[[Sequence[Row], str | None], None],
) -> list[Row]:
    """Run sections one after the other; print and save each row as soon as it is there.

    save: all rows until now, and a note of the missing sections.
    """
    rows: list[Row] = []
    missing: list[str] = []
    for name, section in sections.items():
        print(f"{name}:", flush=True)
        try:
            if not deadline.allows(0):
                raise TimeoutError("the time was over")
            for one in section(*given):
                rows.append(one)
                print(f"  {one['variant']}: {one['median']:,} {one['quantity']}", flush=True)
                save(rows, _note(missing))
        except Exception as failure:  # whatever it is, the other sections go on
            missing.append(f"{name} ({said(failure).removeprefix('failed: ')})")
            print(f"  not measured: {missing[-1]}", flush=True)
            save(rows, _note(missing))
    return rows


def _note(missing: Sequence[str]) -> str | None:
    return f"Not measured: {'; '.join(missing)}." if missing else None


def _seconds(call: Callable[[], Any], clock: EventClock) -> dict[str, float]:
    """Return the seconds of a call over some rounds: median and middle half."""
    call()
    return spread([clock(call, 1) for _ in range(ROUNDS)])


def _rate(count: float, seconds: dict[str, float]) -> dict[str, float]:
    """Return count ÷ seconds; the fastest quarter is the highest rate."""
    return {
        "median": count / seconds["median"],
        "low": count / seconds["high"],
        "high": count / seconds["low"],
    }


def _row(
    workload: str,
    variant: str,
    quantity: str,
    x: dict[str, float],
    dtype: str | None = "bfloat16",
) -> Row:
    return row(workload, variant, dtype, quantity, x)


def operations(chip: Chip, clock: EventClock) -> Iterator[Row]:
    """Whole operations of PyTorch: attention of a dot product, a product, a copy."""
    for passes in ("forward", TRAINING):
        work = Work(SHAPE, passes=passes, device="cuda", dtype="bfloat16")
        for variant in in_torch(work):
            try:
                seconds = _seconds(variant.build(), clock)
            except RuntimeError:  # a kernel that is not there
                continue
            name = f"{variant.how}, {passes}"
            yield _row("operations", name, "ms", {k: 1e3 * x for k, x in seconds.items()})
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    found = _rate(2 * 8192**3 / 1e12, _seconds(lambda: a @ b, clock))
    yield _row("operations", "product of 8,192³", "10¹² operations/s", found)
    x = torch.empty(2**28, device="cuda")
    y = torch.empty_like(x)
    found = _rate(2 * 2**30 / 1e9, _seconds(lambda: y.copy_(x), clock))
    yield _row("operations", "copy of 1 GiB, read and written", "GB/s", found, "float32")


def instructions(chip: Chip, clock: EventClock) -> Iterator[Row]:
    """Lanes a clock of a multiprocessor, for single instructions; two numbers of a register are
    one lane.
    """
    kernels = importlib.import_module("benchmarks.rate_kernels")
    mhz = _clock_under_load(chip, kernels)
    programs, block = chip.sms * _PROGRAMS, kernels.BLOCK.value
    out = torch.zeros(programs * block, dtype=torch.int32, device="cuda")
    for name, x in kernels.INSTRUCTIONS.items():
        if chip.capability < x.least:
            continue
        seconds = _seconds(_repeat(kernels, out, programs, x.asm), clock)
        lanes = _REPEATS * kernels.IN_A_ROW * programs * block
        yield _row("instructions", name, "10¹² lanes/s", _rate(lanes / 1e12, seconds), None)
        per_clock = _rate(lanes / (1e6 * mhz * chip.sms), seconds)
        yield _row("instructions", name, "lanes a clock", per_clock, None)
    for name, maxima in kernels.MIXES.items():
        asm, warps = kernels.mix_asm(maxima), kernels.WARPS
        mixed = partial(kernels.mix[(programs,)], out, 7, _REPEATS, asm, num_warps=warps)
        products = _REPEATS * kernels.MMA_IN_A_ROW * programs * block / 32
        flop = products * kernels.MMA_FLOP
        seconds = _seconds(mixed, clock)
        yield _row("products", name, "10¹² operations/s", _rate(flop / 1e12, seconds))


def _repeat(
    kernels: Any, out: Any, programs: int, asm: str, repeats: int = _REPEATS
) -> Callable[[], None]:
    return partial(kernels.repeat[(programs,)], out, 7, repeats, asm, num_warps=kernels.WARPS)


def _clock_under_load(chip: Chip, kernels: Any) -> float:
    """Return the clock in MHz while instructions run."""
    programs = chip.sms * _PROGRAMS
    out = torch.zeros(programs * kernels.BLOCK.value, dtype=torch.int32, device="cuda")
    asm = next(iter(kernels.INSTRUCTIONS.values())).asm
    call = _repeat(kernels, out, programs, asm, 50 * _REPEATS)
    for _ in range(100):  # about three seconds, longer than the question takes
        call()
    found = chip.under_load(None)
    torch.cuda.synchronize()
    if found.clock is None:
        raise LookupError("nvidia-smi does not know the clock")
    return found.clock / 1e6


def products(chip: Chip, clock: EventClock) -> Iterator[Row]:
    """Products of tiles whose operands stay in shared memory: the rate of the tensor cores."""
    kernels = importlib.import_module("benchmarks.rate_kernels")
    for m, n, k, warps in _PRODUCTS:
        a, b = (torch.randn(x, k, device="cuda").to(torch.bfloat16) for x in (m, n))
        out = torch.empty(2 * chip.sms * n, device="cuda")

        multiply = partial(
            kernels.multiply[(2 * chip.sms,)], a, b.mT.contiguous(), out, _REPEATS, m, n, k,
            num_warps=warps,
        )  # fmt: skip
        flop = 2 * m * n * k * _REPEATS * 2 * chip.sms
        found = _rate(flop / 1e12, _seconds(multiply, clock))
        yield _row("products", f"tl.dot of {m} × {n} × {k}", "10¹² operations/s", found)


def cache(chip: Chip, clock: EventClock) -> Iterator[Row]:
    """Reading from the second-level cache."""
    kernels = importlib.import_module("benchmarks.rate_kernels")
    programs, rounds = chip.sms * _PROGRAMS, 512
    x, out = torch.zeros(_CACHED, device="cuda"), torch.empty(programs, device="cuda")

    call = partial(kernels.read[(programs,)], x, out, _CACHED // _READ, rounds, SIZE=_READ)
    found = _rate(4 * _READ * rounds * programs / 1e9, _seconds(call, clock))
    yield _row("operations", "reading 16 MiB in the second-level cache", "GB/s", found, "float32")


def launches(chip: Chip, clock: EventClock) -> Iterator[Row]:
    """Launches of programs that leave at once, from Python and in a CUDA graph."""
    kernels = importlib.import_module("benchmarks.rate_kernels")
    wanted = torch.zeros(1, dtype=torch.int32, device="cuda")
    out = torch.zeros(_EMPTY, dtype=torch.int32, device="cuda")

    def call() -> None:
        for _ in range(_LAUNCHES):
            kernels.leave[(_EMPTY,)](wanted, out)

    name = f"a launch of {_EMPTY:,} programs that leave at once"
    times = _seconds(call, clock)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for how, seconds in (("", times), (", in a CUDA graph", _seconds(graph.replay, clock))):
        found = {key: 1e6 * seconds[key] / _LAUNCHES for key in ("median", "low", "high")}
        yield _row("launches", name + how, "µs", found, None)


def separable(chip: Chip, clock: EventClock) -> Iterator[Row]:
    """The kernels of `impl="separable"`, by PyTorch's profiler."""
    work = Work(SHAPE, range="near", device="cuda", dtype="bfloat16")
    score = Additive(None, None, work.weight)

    def call() -> Any:
        return attention(work.query, work.key, work.value, score=score, impl="separable")

    call()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(3):
            call()
        torch.cuda.synchronize()
    found = [(x.key, x.device_time_total / 3000) for x in profile.key_averages()]
    for name, ms in sorted(found, key=lambda one: -one[1])[:_SHOWN]:
        yield _row("separable, kernels", name[:80], "ms", {"median": ms})


SECTIONS = {
    "operations of PyTorch": operations,
    "instructions": instructions,
    "products of tiles": products,
    "second-level cache": cache,
    "launches": launches,
    'impl="separable"': separable,
}
"""The sections by name, the most wanted first."""

if __name__ == "__main__":
    main()
