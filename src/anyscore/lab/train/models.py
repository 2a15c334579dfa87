"""The laboratory's models by name."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TypeVar

import torch

from anyscore.lab.data.encoding import Encoded
from anyscore.lab.data.tokens import UNK
from anyscore.lab.errors import InputError
from anyscore.lab.train.bahdanau import Bahdanau
from anyscore.lab.train.model import Model
from anyscore.lab.train.pointer import Pointer
from anyscore.lab.train.recurrent import Recurrent
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.tagger import Classifier, Tagger
from anyscore.lab.train.transformer import Transformer

_M = TypeVar("_M", bound=Model)

MODELS: dict[str, type[Model]] = {
    "recurrent": Recurrent,
    "bahdanau": Bahdanau,
    "transformer": Transformer,
    "pointer": Pointer,
    "tagger": Tagger,
    "classifier": Classifier,
}


def new_model(
    settings: Settings, score: str, source_size: int, target_size: int, seed: int
) -> Model:
    """A model in its initial state, on the settings' device.

    source_size, target_size: of the vocabularies.
    """
    model = drawn(
        lambda: MODELS[settings.model](
            score, settings, source_size=source_size, target_size=target_size
        ),
        seed,
    )
    return model.to(settings.device)


def drawn(make: Callable[[], _M], seed: int) -> _M:
    """Draw the parameters of the model that `make` makes from `seed`, and from nothing else."""
    with torch.random.fork_rng(devices=[]):
        model = make()
        torch.manual_seed(seed)
        model.draw()
    return model


def build_model(score: str, data: Encoded, settings: Settings, seed: int) -> Model:
    """`new_model` with the vocabularies of `data`."""
    sizes = len(data.source_vocabulary), len(data.target_vocabulary)
    return new_model(settings, score, *sizes, seed)


def check_fits(model: str, data: Encoded) -> None:
    """Raises InputError, in one line, where targets are not what the model can say."""
    if (model == "pointer") != data.places:
        raise InputError(
            f"--model {model}: expected targets as "
            f"{'places of the source' if model == 'pointer' else 'tokens of their own'}; encode "
            f"the task with places={model == 'pointer'}"
        )
    if data.places:
        strange = sum(UNK in pair.target for pair in chain(data.train, data.valid_pairs))
        if strange:
            count = len(data.train) + len(data.valid_pairs)
            raise InputError(
                "--model pointer: expected targets made of tokens of their sources, got others in "
                f"{strange:,} of {count:,} pairs; give a --unit by which they are, or another model"
            )
    for item in chain(data.train, data.valid_pairs) if model in ("tagger", "classifier") else ():
        source, labels = len(item.source), len(item.target) - 1
        if model == "tagger" and labels != source:
            raise InputError(
                f"--model tagger: expected a label for every token, got {labels} for {source} "
                "tokens; give units by which they are as many, or another model"
            )
        if model == "classifier" and labels != 1:
            raise InputError(
                f"--model classifier: expected one label for a sequence, got {labels} tokens; give "
                "--target-unit label, or another model"
            )
