"""Test sequences longer than training sequences: attention by content alone loses its place."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from anyscore.lab.data.encoding import encode
from anyscore.lab.data.task import Example, Task
from anyscore.lab.prove.proof import Check, Part, Proof
from anyscore.lab.train.models import build_model
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.training import train
from anyscore.lab.trials import Outcome, Report, Trial
from anyscore.lab.verdict.judge import Measure

LONGEST = 20
"""Tokens of the longest sequence in training."""

LENGTHS = (LONGEST, 40, 100)
MEASURES = tuple(Measure(f"length_{n}", f"tokens right, {n} long", bounded=True) for n in LENGTHS)
SYMBOLS = "abcdefghijklmnop"
SCORES = ("additive", "scaled_dot", "gaussian")


@dataclass(frozen=True)
class LongerTrain:
    """Trains the laboratory's recurrent model on short sequences, tests it on longer ones."""

    reverse: bool
    pairs: int = 4000
    epochs: int = 8
    hidden: int = 64
    tested: int = 200

    def __call__(self, trial: Trial, report: Report) -> Outcome:
        """Train and test one trial; see `trials.Train`."""
        torch.set_num_threads(1)
        data = encode(self.task())
        settings = Settings(epochs=self.epochs, batch_size=32, hidden=self.hidden)
        model = build_model(trial.score, data, settings, trial.seed)
        epochs = train(model, data, settings, seed=trial.seed, report=report)
        model.eval()
        source, target = data.source_vocabulary, data.target_vocabulary
        results: dict[str, Sequence[float]] = {}
        for length, measure in zip(LENGTHS, MEASURES, strict=True):
            draw = random.Random(length)
            sequences = [draw.choices(SYMBOLS, k=length) for _ in range(self.tested)]
            tokens = torch.tensor([source.encode(x) for x in sequences])
            outputs = model.greedy(tokens, torch.full((self.tested,), length), limit=length)
            results[measure.name] = [
                _share(target.decode(output.numbers), x[::-1] if self.reverse else x)
                for output, x in zip(outputs, sequences, strict=True)
            ]
        return Outcome(results, epochs=epochs)

    def task(self) -> Task:
        """Make sequences of 1 to 20 tokens, the same for all trials."""
        draw = random.Random(0)
        examples = [
            self._example(draw.choices(SYMBOLS, k=draw.randint(1, LONGEST)))
            for _ in range(self.pairs + 200)
        ]
        name = "reverse" if self.reverse else "copy"
        return Task(name, name, "word", examples[200:], examples[:200], examples[:1])

    def _example(self, tokens: list[str]) -> Example:
        return Example(" ".join(tokens), (" ".join(tokens[::-1] if self.reverse else tokens),))


def _share(output: list[str], right: list[str]) -> float:
    """Return the share of the places of `right` at which `output` has the same token."""
    return sum(a == b for a, b in zip(output, right, strict=False)) / len(right)


def _part(name: str, reverse: bool) -> Part:
    """Make the part of a task."""
    function = LongerTrain(reverse)
    return Part(name, SCORES, function, MEASURES, asdict(function))


_NAMES = ("copy", "reverse")

PROOF = Proof(
    name="longer",
    title="Longer than trained on",
    paper="Chorowski et al. 2015",
    source="Chorowski, Bahdanau, Serdyuk, Cho and Bengio 2015, Attention-based models for speech "
    "recognition, abstract",
    words="it can only be applied to utterances which are roughly as long as the ones it was "
    "trained on",
    task="The model copies or reverses a sequence of symbols, of which there are 16. It is the "
    "laboratory's recurrent model, 64 wide, whose decoder sees the source through attention by "
    "content alone. Training takes 8 epochs on 4,000 sequences of 1 to 20 tokens. The test has 200 "
    "sequences each of 20, 40 and 100 tokens. The measure is the share of tokens that are right at "
    "their place; chance gives 6 %.",
    differences="The paper recognises speech, with an additive score whose query is the decoder's "
    "state. These sequences are generated. “Can be applied” means at least 80 % of the tokens. "
    "“Only” means at most 50 % at five times the length.",
    parts=(_part("copy", False), _part("reverse", True)),
    checks=tuple(
        check
        for name in _NAMES
        for check in (
            Check(f"{name}: additive holds at 20 tokens", name, "additive", "length_20", 80),
            Check(
                f"{name}: additive does not hold at 100", name, "additive", "length_100", None, 50
            ),
        )
    ),
)
