"""Is a verdict to be trusted? Trains scores that are the same, and counts how often they "differ".

python benchmarks/verdict_study.py train FOLDER --jobs 2     (half an hour on two cores)
python benchmarks/verdict_study.py page FOLDER > docs/verdict_study.md

A/A: additive against concat, one function class with other first parameters; and additive against
additive with other seeds, under another name. A/B: the same trials with a known share of the
answers of one side spoilt.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from anyscore.lab.comparison import Comparison, Finished
from anyscore.lab.data.encoding import encode
from anyscore.lab.data.options import DataOptions
from anyscore.lab.data.task import Example, Task, load_task, split
from anyscore.lab.engine import run_processes
from anyscore.lab.rounds import look_level
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.translation import translation_train
from anyscore.lab.trials import Trial
from anyscore.lab.verdict.judge import Measure, judge

EXACT = Measure("exact_match", "exact match", bounded=True)
SEEDS = 12
SIZES = (2, 3, 4)
RESAMPLED = 40
SPOILT = (0.01, 0.02, 0.05, 0.1)
ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def reversed_strings() -> Task:
    rng = random.Random(0)
    words = {"".join(rng.choices("abcdefghij", k=rng.randint(4, 9))) for _ in range(4000)}
    return made("reversed strings", [(" ".join(w), " ".join(w[::-1])) for w in sorted(words)])


def numbers() -> Task:
    def said(n: int) -> str:
        if n < 20:
            return ONES[n]
        if n < 100:
            return TENS[n // 10 - 2] + (f" {ONES[n % 10]}" if n % 10 else "")
        if n < 1000:
            return f"{ONES[n // 100]} hundred" + (f" {said(n % 100)}" if n % 100 else "")
        return f"{said(n // 1000)} thousand" + (f" {said(n % 1000)}" if n % 1000 else "")

    chosen = random.Random(0).sample(range(100_000), 4000)
    return made("numbers in words", [(" ".join(str(n)), said(n)) for n in chosen])


def made(name: str, pairs: list[tuple[str, str]]) -> Task:
    parts = split([Example(a, (b,)) for a, b in pairs], 0)
    return Task(name, name, "word", *parts)


TASKS = {
    "reversed strings": reversed_strings,
    "numbers in words": numbers,
    "dates": lambda: load_task(DataOptions(limit=4000)),
}


def train(folder: Path, jobs: int) -> None:
    """Trials of each task: enough for comparisons that share none."""
    scores = {"additive": 2 * SEEDS, "concat": SEEDS, "scaled_dot": SEEDS}
    for name, task in TASKS.items():
        data = encode(task())
        settings = Settings(epochs=8, hidden=32)
        run = Comparison(folder / name)
        with run.opened({"task": name, "settings": vars(settings)}):
            trials = [Trial(s, n) for s, count in scores.items() for n in range(count)]
            missing = [trial for trial in trials if not run.has(trial)]
            function = translation_train(data, settings, threads=1)
            preload = "anyscore.lab.train.translation"
            for event in run_processes(missing, function, run.folder, jobs, preload):
                if event.kind in ("finished", "failed"):
                    print(name, event.trial.name, event.kind, event.told, flush=True)


def named(trials: Sequence[Finished], score: str, seeds: Sequence[int], name: str = "") -> Any:
    """Trials of a score with these seeds, as if of another name with seeds 0, 1, …."""
    by_seed = {x.trial.seed: x for x in trials if x.trial.score == score}
    return [replace(by_seed[seed], trial=Trial(name or score, n)) for n, seed in enumerate(seeds)]


KINDS = {
    "additive, concat": lambda trials, seeds: (
        named(trials, "additive", seeds), named(trials, "concat", seeds)
    ),
    "additive twice": lambda trials, seeds: (
        named(trials, "additive", seeds),
        named(trials, "additive", [SEEDS + s for s in seeds], "again"),
    ),
}  # fmt: skip


def apart(size: int) -> Iterator[tuple[int, ...]]:
    """Seeds of comparisons that share no trial."""
    for first in range(0, SEEDS - size + 1, size):
        yield tuple(range(first, first + size))


def resampled(size: int) -> Iterator[tuple[int, ...]]:
    rng = random.Random(size)
    every = list(combinations(range(SEEDS), size))
    rng.shuffle(every)
    yield from islice(every, RESAMPLED)


def differs(a: Any, b: Any, level: float = 0.95) -> bool:
    (found,) = judge([*a, *b], EXACT, level=level)["differences"]
    return bool(found["verdict"] == "differs")


def grown(a: Any, b: Any) -> bool:
    """Whether a comparison with a limit of time ends in "differs", looked at after each round."""
    for look, size in enumerate(range(3, len(a) + 1), 1):
        if differs(a[:size], b[:size], look_level(look)):
            return True
    return False


def spoil(trials: Any, share: float) -> Any:
    """The same trials with that share of all answers wrong, of the same items in each."""
    found = []
    for one in trials:
        right = one.measures["exact_match"].copy()
        right[np.random.default_rng(0).random(len(right)) < share] = 0.0
        found.append(replace(one, measures={"exact_match": right}))
    return found


def page(folder: Path) -> str:
    found = {name: Comparison(folder / name).finished() for name in TASKS}
    lines = ["# Can the verdict be trusted?", ""]
    lines += [
        "A generated page: `python benchmarks/verdict_study.py`. The verdict is that of "
        "[docs/verdict.md](verdict.md); each trial trains the model of `anyscore compare` anew.",
        "",
        f"Trials: {sum(map(len, found.values()))}, of three tasks. "
        + "; ".join(f"{name}: {_reached(trials)}" for name, trials in found.items())
        + ".",
        "",
        "## The same thing under two names (A/A)",
        "",
        "How often the verdict says that two scores differ which are the same; 5 % are allowed. "
        "*Apart*: comparisons that share no trial. *Resampled*: of the same trials in other "
        "combinations. *Growing*: looked at after each round from three seeds on, as with "
        "`--minutes`.",
        "",
        "|pair|task|seeds|apart|resampled|",
        "|---|---|---|---|---|",
    ]
    totals = {"apart": [0, 0], "resampled": [0, 0]}
    for kind, pair in KINDS.items():
        for name, trials in found.items():
            for size in SIZES:
                cells = []
                for how, draws in (("apart", apart(size)), ("resampled", resampled(size))):
                    said = [differs(*pair(trials, seeds)) for seeds in draws]
                    totals[how][0] += sum(said)
                    totals[how][1] += len(said)
                    cells.append(f"{sum(said)} of {len(said)}")
                lines.append(f"|{kind}|{name}|{size}|{'|'.join(cells)}|")
    growing = []
    for pair in KINDS.values():
        for trials in found.values():
            rng = random.Random(0)
            for _ in range(10):
                growing.append(grown(*pair(trials, rng.sample(range(SEEDS), 8))))
    for how, (wrong, count) in totals.items():
        low, high = stats.binomtest(wrong, count).proportion_ci(0.95)
        lines += ["", f"**{how.capitalize()}: {wrong} of {count}** ({wrong / count:.1%}; 95 %: "
                  f"{low:.1%} to {high:.1%}, were they independent)."]  # fmt: skip
    lines += ["", f"**Growing: {sum(growing)} of {len(growing)}.**", ""]
    lines += ["## Known differences (A/B)", ""]
    lines += [
        "How often a difference is found: additive against itself with other seeds, and a share "
        "of the other's answers spoilt (so many points, where all are right).",
        "",
        "|points|" + "|".join(f"{size} seeds" for size in (*SIZES, 8)) + "|",
        "|---|" + "---|" * (len(SIZES) + 1),
    ]
    for share in SPOILT:
        cells = []
        for size in (*SIZES, 8):
            said = []
            for trials in found.values():
                for seeds in islice(resampled(size), 20):
                    a, b = KINDS["additive twice"](trials, seeds)
                    said.append(differs(a, spoil(b, share)))
            cells.append(f"{np.mean(said):.0%}")
        lines.append(f"|{100 * share:g}|{'|'.join(cells)}|")
    return "\n".join(lines) + "\n"


def _reached(trials: Sequence[Finished]) -> str:
    by_score: dict[str, list[float]] = {}
    for one in trials:
        by_score.setdefault(one.trial.score, []).append(100 * one.measures["exact_match"].mean())
    return ", ".join(
        f"{score} {np.mean(x):.0f} % (from {min(x):.0f} to {max(x):.0f})"
        for score, x in by_score.items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("train", "page"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    if given.what == "train":
        train(given.folder, given.jobs)
    else:
        print(page(given.folder), end="")


if __name__ == "__main__":
    main()
