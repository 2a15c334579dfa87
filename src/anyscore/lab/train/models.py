"""The laboratory's models by name."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TypeVar

import torch

from anyscore.lab.data.encoding import Encoded
from anyscore.lab.data.tokens import UNK
from anyscore.lab.errors import InputError
from anyscore.lab.phrases import counted
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


def shapes(
    settings: Settings, score: str, source_size: int, target_size: int
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's numbers by name, without memory for them; see `new_model`."""
    with torch.device("meta"):
        model = MODELS[settings.model](
            score, settings, source_size=source_size, target_size=target_size
        )
    return {name: tuple(x.shape) for name, x in model.state_dict().items()}


def new_model(
    settings: Settings, score: str, source_size: int, target_size: int, seed: int
) -> Model:
    """Make a model in its initial state, on the settings' device.

    Args:
        settings: name and widths of the model.
        score: name of the score.
        source_size, target_size: of the vocabularies.
        seed: of the parameters.
    """
    model = drawn(
        lambda: MODELS[settings.model](
            score, settings, source_size=source_size, target_size=target_size
        ),
        seed,
    )
    return model.to(settings.device)


def drawn(make: Callable[[], _M], seed: int) -> _M:
    """Make a model whose parameters are drawn from `seed`, and from nothing else.

    Args:
        make: makes the model.
    """
    with torch.random.fork_rng(devices=[]):
        model = make()
        torch.manual_seed(seed)
        model.draw()
    return model


def build_model(score: str, data: Encoded, settings: Settings, seed: int) -> Model:
    """Make `new_model` with the vocabularies of `data`."""
    sizes = len(data.source_vocabulary), len(data.target_vocabulary)
    return new_model(settings, score, *sizes, seed)


def check_fits(model: str, data: Encoded) -> None:
    """Check that a model can produce the targets of the data.

    Raises:
        InputError: it cannot; the message has the reason in one line.
    """
    if (model == "pointer") != data.places:
        raise InputError(
            f"--model {model}: expected targets as "
            f"{'places of the source' if model == 'pointer' else 'tokens of their own'}; encode "
            f"the task with places={model == 'pointer'}"
        )
    if data.places:
        unknown = sum(UNK in pair.target for pair in chain(data.train, data.valid_pairs))
        if unknown:
            count = len(data.train) + len(data.valid_pairs)
            raise InputError(
                "--model pointer: expected targets made of tokens of their sources, got others in "
                f"{unknown:,} of {counted(count, 'pair')}; give another --unit, or another --model"
            )
    for item in chain(data.train, data.valid_pairs) if model in ("tagger", "classifier") else ():
        source, labels = len(item.source), len(item.target) - 1
        if model == "tagger" and labels != source:
            raise InputError(
                f"--model tagger: expected a label for every token, got {labels} for "
                f"{counted(source, 'token')}; give units with equal numbers of tokens, or another "
                "--model"
            )
        if model == "classifier" and labels != 1:
            raise InputError(
                f"--model classifier: expected one label for a sequence, got {labels} tokens; give "
                "--target-unit label, or another --model"
            )
