"""Train a small model of every kind, in one process or as one of several.

python trained_together.py FILE
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

from anyscore.lab.data.encoding import Encoded, encode
from anyscore.lab.data.task import Example, Task
from anyscore.lab.train.models import MODELS, build_model
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.together import Group, joined
from anyscore.lab.train.training import train
from anyscore.score import SCORES

WORDS = ["ab", "abc", "c", "bcd", "dabcab", "acdb", "bad", "cda", "dcab", "bb", "ca"]
# The last batch of an epoch has one pair, so one process has none.
SETTINGS = Settings(epochs=2, batch_size=5, hidden=8, dropout=0.0, learning_rate=1e-2)


def task(model: str) -> Encoded:
    """Return words to their reverse, their capitals or their lengths."""
    says = {"tagger": str.upper, "classifier": lambda word: str(len(word) % 3)}
    examples = [Example(x, (says.get(model, lambda word: word[::-1])(x),)) for x in WORDS]
    made = Task("words", "Words", "character", examples, examples[:3], examples[3:6])
    return encode(made, places=model == "pointer")


def trials() -> list[tuple[str, str]]:
    """Return every model with one score, and every score with one model."""
    return [*((model, "additive") for model in MODELS if model != "recurrent"),
            *(("recurrent", score) for score in SCORES)]  # fmt: skip


def trained(group: Group) -> dict[tuple[str, str], tuple[torch.Tensor, dict[str, torch.Tensor]]]:
    """Return losses (epochs, 2) in training and validation, and parameters, by model and score."""
    found = {}
    for name, score in trials():
        settings = replace(SETTINGS, model=name)
        data = task(name)
        model = build_model(score, data, settings, seed=3)
        epochs = train(model, data, settings, seed=3, group=group)
        losses = [(x["train_loss"], x["valid_loss"]) for x in epochs]
        found[name, score] = torch.tensor(losses, dtype=torch.float64), model.state_dict()
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    with joined("cpu") as group:
        found = trained(group)
        if group.rank == 0:
            torch.save((group.size, found), sys.argv[1])
