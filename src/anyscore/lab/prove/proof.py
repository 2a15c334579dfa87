"""A proof: a published claim, trials that can contradict it, and the checks that it must pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from anyscore.lab.trials import Train
from anyscore.lab.verdict.judge import Measure

Picture = Callable[[], bytes]
"""Draws a PNG."""


@dataclass(frozen=True)
class Part:
    """A comparison within a proof: scores that are trained and tested on the same task.

    Attributes:
        name: of the setting, as in "k = 10"; it names a folder.
        scores: names of the variants, each passed to `train` as the score of a trial.
        train: trains one; can be pickled.
        measures: of the test items, the first the most important.
        settings: plain data that tells these trials from others.
    """

    name: str
    scores: tuple[str, ...]
    train: Train
    measures: tuple[Measure, ...]
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """A bound that a claim implies for a measured number.

    The number is the mean of a measure over seeds and test items, in points. With `beside` it is
    the mean of one score minus that of another.

    Attributes:
        says: the claim, in a sentence.
        part, score, measure: names.
        at_least, at_most: the bounds.
        beside: the other score.
    """

    says: str
    part: str
    score: str
    measure: str
    at_least: float | None = None
    at_most: float | None = None
    beside: str | None = None


@dataclass(frozen=True)
class Proof:
    """A published claim and how it is tried.

    Attributes:
        name: as typed.
        title: a line.
        paper: in short.
        source: the paper and the place in it.
        words: the claim as printed in the paper.
        task: the trained models and their test, in paragraphs.
        differences: of the task from the paper, and the meaning of the bounds.
        parts: the comparisons.
        checks: all must hold to confirm the claim.
        published: numbers of the paper, by part and score.
        picture: a function that draws a picture, and the picture's caption.
    """

    name: str
    title: str
    paper: str
    source: str
    words: str
    task: str
    differences: str
    parts: tuple[Part, ...]
    checks: tuple[Check, ...]
    published: Mapping[tuple[str, str], str] = field(default_factory=dict)
    picture: tuple[Picture, str] | None = None
