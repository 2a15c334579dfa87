"""The calibration study trains equal scores, and counts how often a verdict says that they differ.

    python tests/studies/verdict_study.py train FOLDER --jobs 2     # half an hour on two cores
    python tests/studies/verdict_study.py page FOLDER --run "DATE (COMMIT)" > docs/verdict_study.md

A/A: additive against concat, one function class with other initial parameters; and additive against
additive with other seeds, under another name. A/B: additive against scaled_dot; and additive
against additive with other seeds, with some points of right answers made wrong.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import study_trials
from scipy import stats
from study_trials import EXACT

from anyscore.lab.comparison import Comparison, Finished
from anyscore.lab.data.options import DataOptions
from anyscore.lab.data.task import Example, Task, load_task, split
from anyscore.lab.rounds import look_level
from anyscore.lab.train.settings import Settings
from anyscore.lab.trials import Trial
from anyscore.lab.verdict.judge import judge

SEEDS = 24
SIZES = (2, 3, 4)
RESAMPLED = 40
POWER_SIZES = (*SIZES, 8)
POINTS = (1, 2, 5, 10, 20)
ONES = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
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


# Name → (task, epochs). After short training, seeds differ much.
TASKS = {
    "reversed strings": (reversed_strings, 8),
    "numbers in words": (numbers, 8),
    "dates": (lambda: load_task(DataOptions(limit=4000)), 8),
    "numbers, trained longer": (numbers, 24),
}


def train(folder: Path, jobs: int) -> None:
    """Run trials of each task, enough for comparisons without shared trials."""
    scores = {"additive": 2 * SEEDS, "concat": SEEDS, "scaled_dot": SEEDS}
    trials = [Trial(s, n) for s, count in scores.items() for n in range(count)]
    for name, (task, epochs) in TASKS.items():
        settings = Settings(epochs=epochs, hidden=32)
        study_trials.train(folder / name, name, task(), settings, trials, jobs)


def named(trials: Sequence[Finished], score: str, seeds: Sequence[int], name: str = "") -> Any:
    """Return trials of a score with these seeds, renamed to `name` and seeds 0, 1, …."""
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
    """Yield seeds of comparisons that share no trial."""
    for first in range(0, SEEDS - size + 1, size):
        yield tuple(range(first, first + size))


def resampled(size: int) -> Iterator[tuple[int, ...]]:
    rng = random.Random(size)
    for _ in range(RESAMPLED):
        yield tuple(rng.sample(range(SEEDS), size))


def verdict(a: Any, b: Any, level: float = 0.95) -> dict[str, Any]:
    (found,) = judge([*a, *b], EXACT, level=level)["differences"]
    return dict(found)


def differs(a: Any, b: Any, level: float = 0.95) -> bool:
    return bool(verdict(a, b, level)["verdict"] == "differs")


def grown(a: Any, b: Any) -> bool:
    """Return whether a comparison judged after each round ends in "differs"."""
    for look, size in enumerate(range(3, len(a) + 1), 1):
        if differs(a[:size], b[:size], look_level(look)):
            return True
    return False


def spoil(trials: Any, points: float) -> Any:
    """Return the trials with `points` of right answers made wrong, drawn anew for each trial."""
    found = []
    for one in trials:
        right = one.measures["exact_match"].copy()
        random = np.random.default_rng(one.trial.seed)
        rows = np.flatnonzero(right)
        right[random.choice(rows, round(points / 100 * len(right)), replace=False)] = 0.0
        found.append(replace(one, measures={"exact_match": right}))
    return found


def at_best(points: float, spread: float, seeds: int) -> float:
    """Return the power of a t-test over seeds, if seeds have this standard deviation.

    The power is P(|Z + shift| > bound · √(V / freedom)), with Z normal and V chi-squared: the mean
    over V's quantiles.
    """
    freedom, shift = seeds - 1, points / spread * np.sqrt(seeds)
    v = stats.chi2.ppf((np.arange(4000) + 0.5) / 4000, freedom)
    bound = stats.t.ppf(0.975, freedom) * np.sqrt(v / freedom)
    return float(np.mean(stats.norm.cdf(shift - bound) + stats.norm.cdf(-shift - bound)))


def reached(trials: Sequence[Finished], score: str) -> npt.NDArray[np.float64]:
    """Return the points of each trial of a score, by seed."""
    found = sorted((x for x in trials if x.trial.score == score), key=lambda x: x.trial.seed)
    return 100 * np.array([x.measures["exact_match"].mean() for x in found])


def page(folder: Path, run: str) -> str:
    found = {name: Comparison(folder / name).finished() for name in TASKS}
    equal, totals = _equal(found)
    real, wrong, count = _real(found)
    false = {how: _rate(*total) for how, total in totals.items()}
    lines = [
        "# Calibration study",
        "",
        "How often is a [verdict](verdict.md) of `anyscore compare` wrong, and how many seeds find "
        "a difference? `tests/studies/verdict_study.py` trained models to answer both, and "
        "generates this page. It helps you to plan a comparison, or to judge one.",
        "",
        f"- **False differences:** {false['apart']} of equal scores that share no trial; 5 % are "
        "allowed.",
        f"- **Wrong direction:** {wrong} of {count} comparisons of `additive` and `scaled_dot`.",
        "- **Power:** three seeds find large differences only; see the "
        "[two](#different-scores) [tables](#known-differences).",
        "",
        "```sh",
        "python tests/studies/verdict_study.py train FOLDER --jobs 2     # half an hour, two cores",
        "python tests/studies/verdict_study.py page FOLDER > docs/verdict_study.md",
        "```",
        "",
        f"The run of {run} has {sum(map(len, found.values()))} trials of {len(TASKS)} tasks, with "
        "the recurrent model at a width of 32. The table has the mean exact match of each score, "
        "and in brackets the lowest and the highest seed.",
        "",
        "|task|additive|concat|scaled_dot|",
        "|---|---|---|---|",
        *(f"|{name}|{_reached(trials)}|" for name, trials in found.items()),
        "",
        "## Equal scores",
        "",
        "How often does a verdict say that two equal scores differ? Additive is compared with "
        "concat, the same class of functions with other initial values, and with itself under "
        "other seeds. *Apart*: comparisons that share no trial. *Resampled*: the same trials in "
        "other combinations.",
        "",
        *equal,
    ]
    lines += ["", f"- **Apart:** {false['apart']}.", f"- **Resampled:** {false['resampled']}."]
    lines += [
        f"- **Growing:** {totals['growing'][0]} of {totals['growing'][1]}. These are judged after "
        "each seed from the third on, as with `--minutes`.",
        "",
    ]
    return "\n".join(lines + real + _known(found)) + "\n"


def _equal(found: dict[str, list[Finished]]) -> tuple[list[str], dict[str, tuple[int, int]]]:
    """Return the table of equal scores, and by kind how many differ of how many."""
    lines = ["|pair|task|seeds|apart|resampled|", "|---|---|---|---|---|"]
    totals = {"apart": (0, 0), "resampled": (0, 0), "growing": (0, 0)}

    def add(how: str, said: list[bool]) -> None:
        totals[how] = totals[how][0] + sum(said), totals[how][1] + len(said)

    for kind, pair in KINDS.items():
        for name, trials in found.items():
            for size in SIZES:
                cells = []
                for how, draws in (("apart", apart(size)), ("resampled", resampled(size))):
                    said = [differs(*pair(trials, seeds)) for seeds in draws]
                    add(how, said)
                    cells.append(f"{sum(said)} of {len(said)}")
                lines.append(f"|{kind}|{name}|{size}|{'|'.join(cells)}|")
    for pair in KINDS.values():
        for trials in found.values():
            rng = random.Random(0)
            seeds = [rng.sample(range(SEEDS), 8) for _ in range(10)]
            add("growing", [grown(*pair(trials, drawn)) for drawn in seeds])
    return lines, totals


def _rate(wrong: int, count: int) -> str:
    """Return "7 of 208 (3.4%; 95 %: 1.4% to 6.8%)", an interval for independent comparisons."""
    low, high = stats.binomtest(wrong, count).proportion_ci(0.95)
    return f"{wrong} of {count} ({wrong / count:.1%}; 95 %: {low:.1%} to {high:.1%})"


def _real(found: dict[str, list[Finished]]) -> tuple[list[str], int, int]:
    """Return the page's part on different scores, and the wrong verdicts among all."""
    lines = [
        "## Different scores",
        "",
        "How often does a verdict find a difference of `additive` and `scaled_dot`? The true "
        f"difference is the mean of all {SEEDS} seeds, in points, with the standard deviation over "
        "seeds. *Wrong direction* counts verdicts that name the other score as the better one.",
        "",
        "|task|true difference|"
        + "|".join(f"{n} seeds" for n in POWER_SIZES)
        + "|wrong direction|",
        "|---|---|" + "---|" * (len(POWER_SIZES) + 1),
    ]
    all_wrong = all_count = 0
    for name, trials in found.items():
        apart = reached(trials, "additive")[:SEEDS] - reached(trials, "scaled_dot")
        cells, wrong, count = [], 0, 0
        for size in POWER_SIZES:
            said = [
                verdict(named(trials, "additive", seeds), named(trials, "scaled_dot", seeds))
                for seeds in resampled(size)
            ]
            told = [x for x in said if x["verdict"] == "differs"]
            wrong += sum((x["better"] == "additive") != (apart.mean() > 0) for x in told)
            count += len(said)
            cells.append(f"{len(told) / len(said):.0%}")
        truth = f"{apart.mean():+.1f} ± {apart.std(ddof=1):.1f}".replace("-", "−")
        lines.append(f"|{name}|{truth}|{'|'.join(cells)}|{wrong} of {count}|")
        all_wrong, all_count = all_wrong + wrong, all_count + count
    return [*lines, ""], all_wrong, all_count


def _known(found: dict[str, list[Finished]]) -> list[str]:
    """Return the page's part on made differences."""
    lines = [
        "## Known differences",
        "",
        "How often does a verdict find a known difference? Additive is compared with itself under "
        "other seeds. In one of the two, right answers are made wrong until it lacks the points of "
        "the second column. The first column has the standard deviation of the difference over "
        "seeds, in points.",
        "",
        "In brackets is the share that a t-test over seeds alone would find, for normal "
        "differences of this deviation. Variance between seeds is the limit. More seeds raise the "
        "share, and so does longer training.",
        "",
        "|task (deviation)|points|" + "|".join(f"{n} seeds" for n in POWER_SIZES) + "|",
        "|---|---|" + "---|" * len(POWER_SIZES),
    ]
    for name, trials in found.items():
        every = reached(trials, "additive")
        spread = float(np.sqrt(2) * every.std(ddof=1))
        for points in POINTS:
            cells = []
            for size in POWER_SIZES:
                said = []
                for seeds in resampled(size):
                    a, b = KINDS["additive twice"](trials, seeds)
                    said.append(differs(a, spoil(b, points)))
                cells.append(f"{np.mean(said):.0%} ({at_best(points, spread, size):.0%})")
            lines.append(f"|{name} ({spread:.1f})|{points}|{'|'.join(cells)}|")
    return lines


def _reached(trials: Sequence[Finished]) -> str:
    cells = (reached(trials, score) for score in ("additive", "concat", "scaled_dot"))
    return "|".join(f"{x.mean():.0f} % ({x.min():.0f} to {x.max():.0f})" for x in cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("train", "page"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--run", default="an unknown date", help="date and commit of the training")
    given = parser.parse_args()
    if given.what == "train":
        train(given.folder, given.jobs)
    else:
        print(page(given.folder, given.run), end="")


if __name__ == "__main__":
    main()
