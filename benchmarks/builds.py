"""Builds of the C++ core in turns: which calls a change made faster, and which slower.

python benchmarks/builds.py before.so after.so

Files are `_core…so` of builds; the others are compared with the first. A copy of the first takes
part, too: how far its ratio is from 1 is what the machine adds. Results are compared before times
are taken: beside each ratio stands by how much they differ, as a part of the largest entry.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from anyscore.backends.record import keeps_scores
from anyscore.call.operands import Operands, Results, Settings
from anyscore.kernels import cpu
from anyscore.lab.bench.timing import Pace, WallClock, interleave, spread
from anyscore.lab.bench.work import Shape
from anyscore.lab.errors import InputError

PAIRS = tuple(pair.key for pair in cpu.PAIRS)
SHAPES = (
    "64,30,50,256,256", "4,512,512,128,128", "1,2048,2048,64,64", "64,1,50,256,512",
    "64,3,50,256,512", "256,8,20,128,128", "64,7,20,100,100", "512,12,12,32,32", "1,1,10,8,4",
)  # fmt: skip


class Work(NamedTuple):
    """A call of the core: its operands, results and gradients."""

    pair: str
    operands: Operands
    settings: Settings
    results: Results
    d_output: np.ndarray
    gradients: Operands
    threads: int

    @classmethod
    def made(cls, pair: str, shape: Shape, threads: int) -> Work:
        """Normal numbers, and weights as layers begin with them."""
        batch, queries, keys, width, value_width = shape
        rng = np.random.default_rng(0)

        def normal(*sizes: int) -> np.ndarray:
            return rng.standard_normal(sizes).astype(np.float32)

        weight = normal(1, width) * np.float32(width**-0.5)
        if pair in ("absolute", "squared"):
            weight = -np.abs(weight)
        x = Operands(
            normal(batch, queries, width),
            normal(batch, keys, width),
            None if pair == "product" else weight,
            value=normal(batch, keys, value_width),
        )
        scale = width**-0.5 if pair == "product" else 1.0
        sizes = (batch, queries, value_width), (batch, 2, queries), (batch, queries, keys)
        output, stats, scores = (np.zeros(size, np.float32) for size in sizes)
        settings = Settings(pair, scale, 1, 0.0, batch, (batch,))
        results = Results(output, stats, scores if keeps_scores(x, settings) else None)
        return cls(pair, x, settings, results, normal(*sizes[0]), x.map(np.zeros_like), threads)

    def forward(self, core: Any) -> None:
        results = self.results._replace(scores=None)
        core.forward(self.operands, self.pair, self.settings.numbers, results, self.threads)

    def training(self, core: Any) -> None:
        numbers, kept = self.settings.numbers, self.results
        core.forward(self.operands, self.pair, numbers, kept, self.threads)
        if kept.scores is not None:
            kept = kept._replace(output=None)
        upstream = Results(self.d_output, None)
        core.backward(
            self.operands, self.pair, numbers, kept, upstream, self.gradients, self.threads
        )

    def answers(self, core: Any) -> list[np.ndarray]:
        """Results and gradients, as copies."""
        self.training(core)
        return [x.copy() for x in (*self.results, *self.gradients) if x is not None]


def load(path: Path) -> Any:
    """Load a build beside other builds."""
    loader = ExtensionFileLoader("_core", str(path))
    spec = spec_from_loader("_core", loader)
    assert spec is not None
    core = module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nanobind: each has classes of the same names
        loader.exec_module(core)
    return core


def difference(first: list[np.ndarray], other: list[np.ndarray]) -> str:
    """Say by how much results differ at most, each as a part of its largest entry."""
    if all(np.array_equal(x, y) for x, y in zip(first, other, strict=True)):
        return "same bits"
    with np.errstate(invalid="ignore", divide="ignore"):
        parts = [np.abs(x - y).max() / np.abs(x).max() for x, y in zip(first, other, strict=True)]
    return f"{np.nanmax(parts):.0e}"


def timed(run: Callable[[Any], None], cores: list[Any], rounds: int) -> list[dict[int, float]]:
    """Return seconds of a call by round, of each core."""
    clock = WallClock()
    run(cores[0])
    repeats = max(1, int(Pace().turn / max(clock(lambda: run(cores[0]), 1), 1e-9)))

    def turn(core: Any) -> Callable[[], float]:
        def measure() -> float:
            run(core)
            return clock(lambda: run(core), repeats)

        return measure

    times: list[dict[int, float]] = [{} for _ in cores]
    interleave([turn(core) for core in cores], [rounds] * len(cores), times)
    return times


def rows(cores: list[Any], asked: argparse.Namespace) -> Iterator[list[str]]:
    """Give a row of the table for each shape, pair and pass, as it is measured."""
    for shape in asked.shapes:
        for pair in asked.pairs:
            work = Work.made(pair, shape, asked.threads)
            answers = [work.answers(core) for core in cores]
            for name, run in ("forward", work.forward), ("training", work.training):
                times = timed(run, cores, asked.rounds)
                row = [
                    ",".join(map(str, shape)),
                    pair,
                    name,
                    f"{np.median(list(times[0].values())) * 1e6:.1f}",
                ]
                for other, found in zip(times[1:], answers[1:], strict=True):
                    ratio = spread([times[0][n] / other[n] for n in other])
                    text = "{median:.2f} ({low:.2f} to {high:.2f})".format(**ratio)
                    row.append(f"{text}, {difference(answers[0], found)}")
                yield row


def main(arguments: list[str]) -> int:
    """Print the table; arguments: of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("builds", nargs="+", type=Path, help="files of builds, the oldest first")
    parser.add_argument("--shapes", nargs="+", default=SHAPES, help="B,T_q,T_k,H,D_v of each")
    parser.add_argument("--pairs", nargs="+", default=PAIRS, choices=PAIRS)
    parser.add_argument("--isa", help="the instruction set of all builds; their own choice")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args(arguments)
    if min(asked.rounds, asked.threads) < 1:
        parser.error("expected --rounds and --threads of 1 or more")
    try:
        asked.shapes = [Shape.parse(text) for text in asked.shapes]
    except InputError as error:
        parser.error(str(error))
    for path in asked.builds:
        if not path.is_file():
            parser.error(f"expected the file of a build, got {path}, which is not there")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy.so")
        shutil.copy(asked.builds[0], copy)
        paths = [asked.builds[0], copy, *asked.builds[1:]]
        cores = [load(path.resolve()) for path in paths]
        for path, core in zip(paths, cores, strict=True):
            if asked.isa and asked.isa not in core.isas():
                known = ", ".join(core.isas())
                parser.error(f"{path.name} has no --isa {asked.isa}, expected one of {known}")
            if asked.isa:
                core.use(asked.isa)
        print("B, T_q, T_k, H, D_v | pair | pass | µs of the first ÷ its copy's", end="")
        print("".join(f" | ÷ {path}'s" for path in asked.builds[1:]))
        for row in rows(cores, asked):
            print(" | ".join(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
