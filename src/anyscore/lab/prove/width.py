"""Wider attention: an unscaled product of projections gets worse, an additive score does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch

from anyscore import Score
from anyscore.lab.data.encoding import Encoded, Item, encode
from anyscore.lab.prove import pinyin
from anyscore.lab.prove.proof import Check, Part, Proof
from anyscore.lab.train.answering import Answer, answers
from anyscore.lab.train.models import drawn
from anyscore.lab.train.recurrent import Recurrent
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.training import train
from anyscore.lab.trials import Outcome, Report, Trial
from anyscore.lab.verdict.judge import Measure
from anyscore.ops import Array, Ops
from anyscore.score.base import Init, Shapes, uniform
from anyscore.score.factors import Factors
from anyscore.score.pairs import PRODUCT
from anyscore.score.scales import number, scaled
from anyscore.torch import Attention

WIDTHS = (128, 256, 512, 1024)
"""The paper's widths of projected queries and keys."""

NONE = "no attention"
"""The variant that looks at every character alike."""

SYLLABLES = Measure("syllables", "syllables right", bounded=True)
LOOKED = Measure("looked", "looks at the right character", bounded=True)


@dataclass(frozen=True, eq=False)
class Multiplicative(Score):
    """s = scale · ⟨W_q q, W_k k⟩, W_q (h, d_q), W_k (h, d_k), scale = 1 unless given.

    Initialisation: a projected entry has the variance of an entry that is projected, so that the
    variance of the score is scale² · h. Source: Britz et al. 2017, eq. 7.
    """

    W_q: Array
    W_k: Array
    scale: Any = 1.0

    formula: ClassVar[str] = "⟨W_q q, W_k k⟩"
    shapes: ClassVar[Shapes] = {"W_q": ("h", "d_q"), "W_k": ("h", "d_k"), "scale": ()}

    @classmethod
    def parameters(cls, d_q: int, d_k: int, hidden: int) -> dict[str, Init | float]:
        """Return the initialisation of each parameter."""
        return {
            "W_q": uniform(hidden, d_q, variance=1 / d_q),
            "W_k": uniform(hidden, d_k, variance=1 / d_k),
        }

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        """Return the score's factors."""
        a, b = xp.matmul(query, xp.transpose(self.W_q)), xp.matmul(key, xp.transpose(self.W_k))
        return scaled(xp, Factors(a, b, PRODUCT), number(xp, self.scale, query))


def attention(name: str, hidden: int) -> Attention:
    """Make the layer of a trial's name over queries and keys of the width `hidden`."""
    if name == NONE:
        return Attention("scaled_dot", d_q=hidden, d_k=hidden, scale=0.0)
    kind, _, number = name.partition(", ")
    width = int(number)
    if kind == "additive":
        return Attention("additive", hidden=width, d_q=hidden, d_k=hidden)
    scale = 1 / math.sqrt(width) if kind == "scaled" else 1.0
    return Attention(Multiplicative, hidden=width, d_q=hidden, d_k=hidden, scale=scale)


@dataclass(frozen=True)
class WidthTrain:
    """Trains and tests the laboratory's recurrent model with an attention of the trial's width."""

    hidden: int = 64
    epochs: int = 4
    batch: int = 16
    rate: float = 2e-3
    characters: int = 500
    tested: int = 2000

    def __call__(self, trial: Trial, report: Report) -> Outcome:
        """Train and test one trial; see `trials.Train`."""
        torch.set_num_threads(1)
        data = encode(pinyin.task(self.characters, self.tested))
        settings = Settings(
            epochs=self.epochs, batch_size=self.batch, hidden=self.hidden, learning_rate=self.rate
        )
        model = build(trial.score, data, settings, trial.seed)
        epochs = train(model, data, settings, seed=trial.seed, report=report)
        test_answers = answers(model, data, data.test, return_weights=True)
        pairs = list(zip(test_answers, data.test, strict=True))
        return Outcome(
            {
                SYLLABLES.name: [said_right(*pair) for pair in pairs],
                LOOKED.name: [looked_right(*pair) for pair in pairs],
            },
            epochs=epochs,
        )


def build(name: str, data: Encoded, settings: Settings, seed: int) -> Recurrent:
    """Make the model in its initial state; all but the score's parameters are the same for all."""

    def make() -> Recurrent:
        model = Recurrent(
            "dot",
            settings,
            source_size=len(data.source_vocabulary),
            target_size=len(data.target_vocabulary),
        )
        model.attention = attention(name, settings.hidden)
        return model

    return drawn(make, seed)


def said_right(answer: Answer, item: Item) -> float:
    """Return the share of the syllables of a phrase that are right at their place."""
    (right,) = item.answers
    return sum(
        said == expected for said, expected in zip(answer.tokens, right, strict=False)
    ) / len(right)


def looked_right(answer: Answer, item: Item) -> float:
    """Return the share of the characters looked at most when their syllable was due."""
    assert answer.weights is not None
    places: Sequence[int] = answer.weights.argmax(-1).tolist()
    return sum(looked == place for looked, place in enumerate(places[: len(item.source)])) / len(
        item.source
    )


_PART = "phrases"
_TRAIN = WidthTrain()
_PUBLISHED = {
    "additive": ("22.23 ± 0.11", "22.33 ± 0.04", "22.47 ± 0.27", "22.10 ± 0.18"),
    "multiplicative": ("22.03 ± 0.08", "22.33 ± 0.28", "21.78 ± 0.05", "18.22 ± 0.03"),
}
_SCORES = (
    *(f"{kind}, {width}" for kind in _PUBLISHED for width in WIDTHS),
    *(f"scaled, {width}" for width in (WIDTHS[0], WIDTHS[-1])),
    NONE,
)
_BEST = "additive, 512"


def _beside(says: str, score: str, other: str, low: float | None, high: float | None) -> Check:
    return Check(says, _PART, score, SYLLABLES.name, low, high, other)


PROOF = Proof(
    name="width",
    title="Wider attention",
    paper="Britz et al. 2017",
    source="Britz, Goldie, Luong and Le 2017, Massive exploration of neural machine translation "
    "architectures, section 4.5 and table 6",
    words="We found that the parameterized additive attention mechanism slightly but consistently "
    "outperformed the multiplicative one, with the attention dimensionality having little effect.",
    task="The model reads a Chinese phrase: it writes one syllable for each character. The 11,198 "
    "phrases are made of the 500 most frequent characters of the dictionary in pypinyin: 8,698 for "
    "training and 2,000 for testing. The model is the laboratory's recurrent model, 64 wide, whose "
    "decoder sees the phrase through attention alone. Training takes 4 epochs.\n\n"
    "Queries and keys are projected to the paper's four widths. Multiplicative attention takes the "
    "product ⟨W_q q, W_k k⟩ as it is. Additive attention takes w·tanh(W_q q + W_k k). The first "
    "measure is the share of syllables that are right at their place. The second is the share of "
    "characters with the largest weight when their syllable is due.",
    differences="The paper translates English to German with a model 512 wide and measures BLEU. "
    "BLEU says little about phrases of two to eight characters. The bounds here follow from the "
    "paper's table in proportion. They were set before multiplicative attention was tried here.\n\n"
    "Additive attention changes by at most 1.6 % of its best from width to width: 2 points here. "
    "Up to 512, multiplicative attention is 0.9, 0.0 and 3.1 % behind: from 1 point ahead to 4 "
    "behind. At 1024 it is 17.6 % behind, which the paper's text passes over: half of that, 9 "
    "points. The better of the paper's two models without attention, which get the encoder's last "
    "state, is 48.5 % behind: half of that, 24 points. The model without attention here gets the "
    "mean of the keys.\n\n"
    "“Scaled” is multiplicative attention divided by √width, which the paper leaves out. Vaswani "
    "et al. 2017 cite the paper as a reason for dividing. Projections here keep the variance of "
    "their input; the paper's, by Glorot's rule, nearly do.\n\n"
    "Training is short. After a first look at all scores it was made 2.7 times as long. “Scaled” "
    "then came as far as additive, with seeds other than the reported ones. Of the reported "
    "seeds, not all come as far. Products get stuck where additive attention does not, so "
    "multiplicative attention is far behind at every width. Its result at 1024 therefore says "
    "little about width alone. With training three times as long, one seed has 77.2 % at 128 and "
    "76.3 % at 1024.\n\n"
    "A model that reads each character in its most frequent way has 92.9 % right. Attention has to "
    "find the character; its neighbours add little.",
    parts=(
        Part(
            _PART,
            _SCORES,
            _TRAIN,
            (SYLLABLES, LOOKED),
            asdict(_TRAIN),
        ),
    ),
    checks=(
        *(
            _beside(f"additive: {width} is as good as 512", f"additive, {width}", _BEST, -2, 2)
            for width in WIDTHS
            if width != 512
        ),
        *(
            _beside(
                f"multiplicative is slightly behind additive at {width}",
                f"multiplicative, {width}",
                f"additive, {width}",
                -4,
                1,
            )
            for width in WIDTHS[:-1]
        ),
        _beside(
            "multiplicative falls behind additive at 1024",
            "multiplicative, 1024",
            "additive, 1024",
            None,
            -9,
        ),
        _beside("without attention it is far worse", NONE, _BEST, None, -24),
    ),
    published={
        **{
            (_PART, f"{kind}, {width}"): f"{said} BLEU"
            for kind, told in _PUBLISHED.items()
            for width, said in zip(WIDTHS, told, strict=True)
        },
        (_PART, NONE): "11.57 ± 0.30 BLEU",
    },
)
