"""Keys on a line: a score that is linear in the key can pick an end only, never one between."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from anyscore.lab.prove.learn import attention, learn
from anyscore.lab.prove.proof import Check, Part, Proof
from anyscore.lab.report.charts import png
from anyscore.lab.trials import Outcome, Report, Trial
from anyscore.lab.verdict.judge import Measure
from anyscore.score import SCORES

PLACES = 5
"""Keys on each line."""

LINEAR = ("dot", "scaled_dot", "bilinear", "trilinear")
"""Scores that are linear in the key, at every query."""

MONOTONE = ("gat", "additive, width 1")
"""Scores that rise or fall with a function that is linear in the key: no better."""

OTHERS = tuple(name for name in SCORES if name not in LINEAR)

RIGHT = Measure("right", "all places", bounded=True)
BETWEEN = Measure("between", "places between the ends", bounded=True)
_APART = 0.5  # from one key to the next
_TESTED = 1000  # lines, each asked for every place


class Line(nn.Module):
    """Attention over points of the plane, moved by linear maps; the answer is the label it reads.

        output = Attention(W_q point + b_q, W_k points + b_k, labels)

    Labels are one-hot, so the output is the probability of each; no layer reads it out.
    """

    def __init__(self, score: str, width: int = 16, hidden: int = 64) -> None:
        super().__init__()
        self.to_query, self.to_key = nn.Linear(2, width), nn.Linear(2, width)
        if score in MONOTONE:
            self.attention = attention("gatv2" if score == "gat" else "additive", width, 1)
        else:
            self.attention = attention(score, width, hidden)

    def forward(self, targets: Tensor, points: Tensor, labels: Tensor) -> Tensor:
        """Return probabilities (B, T_q, k) of the labels.

        Args:
            targets: points asked for (B, T_q, 2).
            points: on the line (B, k, 2).
            labels: one-hot (B, k, k).
        """
        output: Tensor = self.attention(self.to_query(targets), self.to_key(points), labels)
        return output


@dataclass(frozen=True)
class MiddleTrain:
    """Trains and tests one trial, on lines that are drawn as it goes."""

    steps: int = 800
    rate: float = 0.01
    batch: int = 64

    def __call__(self, trial: Trial, report: Report) -> Outcome:
        """Train and test one trial; see `trials.Train`."""
        model = self.trained(trial.score, trial.seed, report)
        points = lines(_TESTED, torch.Generator())
        right = (picked(model, points) == torch.arange(PLACES)).double()
        share = {RIGHT.name: right.mean(1), BETWEEN.name: right[:, 1:-1].mean(1)}
        return Outcome({name: x.tolist() for name, x in share.items()})

    def trained(self, score: str, seed: int, report: Report = lambda told: None) -> Line:
        """Train a model and return it."""
        torch.manual_seed(seed)
        random = torch.Generator().manual_seed(seed)
        model = Line(score)

        def loss() -> Tensor:
            points = lines(self.batch, random)
            labels = torch.rand(self.batch, PLACES, generator=random).argsort(-1)
            output = model(points, points, one_hot(labels, PLACES).float())
            probabilities: Tensor = output.gather(-1, labels[..., None])
            return -(probabilities + 1e-9).log().mean()

        learn(model, loss, steps=self.steps, rate=self.rate, report=report)
        return model


def lines(count: int, random: torch.Generator) -> Tensor:
    """Draw points (count, places, 2) in equal distances on lines anywhere in the plane."""
    start = torch.randn(count, 1, 2, generator=random)
    angle = 2 * math.pi * torch.rand(count, 1, 1, generator=random)
    step = _APART * torch.cat((angle.cos(), angle.sin()), -1)
    return start + step * torch.arange(PLACES)[:, None]


@torch.no_grad()
def picked(model: Line, points: Tensor) -> Tensor:
    """Return the place (B, k) of largest weight when each of the points is asked for."""
    labels = torch.eye(PLACES).expand(len(points), -1, -1)
    places: Tensor = model(points, points, labels).argmax(-1)
    return places


@torch.no_grad()
def scores_along(model: Line, target: float, at: Tensor) -> Tensor:
    """Return the scores at places (n,) of a line when the place `target` is asked for.

    The largest score is 0.
    """
    points = lines(1, torch.Generator().manual_seed(1))[0]
    start, step = points[0], points[1] - points[0]
    weights = model.attention(
        model.to_query((start + target * step)[None, None]),
        model.to_key((start + at[:, None] * step)[None]),
        torch.zeros(1, len(at), 1),
        return_weights=True,
    )[1]
    logarithm: Tensor = weights[0, 0].double().log()
    scores: Tensor = logarithm - logarithm.max()
    return scores


def picture() -> bytes:
    """Draw scores along a line, of a linear score and of one that is not."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 2.6), layout="constrained")
    axes = figure.subplots(1, 2, sharex=True)
    at = torch.linspace(0, PLACES - 1, 81)
    keys = torch.arange(PLACES, dtype=torch.float32)
    for place, score in zip(axes, ("bilinear", "additive"), strict=True):
        model = MiddleTrain().trained(score, 0)
        curve, dots = (scores_along(model, PLACES // 2, x) for x in (at, keys))
        curve = curve + (dots.max() - curve[(at[:, None] == keys).any(1)].max())
        place.plot(at, curve, color="#0b5cab", linewidth=1.4)
        place.plot(keys, dots, "o", color="#1b1f24", markersize=5)
        place.axvline(PLACES // 2, color="#c6cbd1", linewidth=1.0, zorder=0)
        place.set_title(score, fontsize="medium")
        place.set_xlabel("key")
        place.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("score, largest key 0")
    return png(figure)


_BOUND = 100 * 2 / PLACES
_PART = "five keys on a line"
_NAMES = {"gat": "GAT", "additive, width 1": "additive of width 1"}
PROOF = Proof(
    name="middle",
    title="The middle of a line",
    paper="Brody et al. 2022",
    source="Brody, Alon and Yahav 2022, How attentive are graph attention networks?, appendix E.2",
    words="for any query q, the key h1 can never get the highest score, and thus cannot be "
    "“selected”",
    task="Five keys stand in a row on a random line in the plane. The query is one of these "
    "points, and the model predicts its label. Labels are dealt anew for every line. Linear maps "
    "take queries and keys to a width of 16, so the keys stay on a line. One attention layer "
    "follows and nothing else: the answer is the label with the largest weight.\n\n"
    "A score that is linear in the key, s = a(q) + b(q)·k, is linear along the line. Its maximum "
    "is at an end. So it is right for at most 2 of 5 places (40 %), and never between the ends. "
    "The same holds for monotone functions of such a score: GAT, and additive of width 1. Training "
    "takes 800 steps of 64 lines. The test asks for every place of 1,000 lines.",
    differences="The paper proves the claim for dot products. The bound of 2/k holds if no learnt "
    "layer reads the output, since a bias after it may guess. “Never” means below 1 %. “Can” means "
    "at least 99 % between the ends. A test of this package checks the theorem itself over all "
    "parameters (tests/lab/prove/test_collinear_keys.py).",
    parts=(
        Part(
            _PART,
            (*LINEAR, *MONOTONE, *OTHERS),
            MiddleTrain(),
            (RIGHT, BETWEEN),
            asdict(MiddleTrain()),
        ),
    ),
    checks=(
        *(
            Check(f"{_NAMES.get(s, s)} never picks a key between", _PART, s, "between", at_most=1)
            for s in (*LINEAR, *MONOTONE)
        ),
        *(
            Check(f"{s} is right at most 2/5 of the time", _PART, s, "right", at_most=_BOUND)
            for s in LINEAR
        ),
        *(Check(f"{s} can pick a key between", _PART, s, "between", at_least=99) for s in OTHERS),
    ),
    published={(_PART, s): "at most 40" for s in LINEAR},
    picture=(
        picture,
        "Scores along a line when the middle key is asked for. The bilinear score is a straight "
        "line, so its highest key is an end. The additive score has its peak at the middle key.",
    ),
)
