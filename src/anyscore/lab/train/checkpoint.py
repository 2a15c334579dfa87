"""A trained model on disk: its numbers as safetensors, all else as JSON beside them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import load_file, save

from anyscore import __version__
from anyscore.lab.data.encoding import Encoded, limit_for
from anyscore.lab.data.options import LONGEST
from anyscore.lab.data.tokenisers import Tokeniser, tokeniser_from_json
from anyscore.lab.data.tokens import Vocabulary
from anyscore.lab.errors import InputError
from anyscore.lab.forms import PLAIN, TEXT, count, each, having, maybe, named
from anyscore.lab.records import FORMAT, read_record, write_record
from anyscore.lab.run_folder import part_of, write_whole
from anyscore.lab.train.model import Model
from anyscore.lab.train.models import new_model, shapes
from anyscore.lab.train.settings import Settings
from anyscore.ops.checks import brief

_CONFIG, _TENSORS = "model.json", "model.safetensors"
_FORM = having(
    {
        "score": TEXT,
        "settings": named(PLAIN),
        "source_vocabulary": each(TEXT),
        "target_vocabulary": each(TEXT),
        "source_tokeniser": named(PLAIN),
        "target_tokeniser": named(PLAIN),
        "limit": count(limit_for(LONGEST)),
    },
    {"longest_source": maybe(count(LONGEST))},
)


@dataclass(frozen=True)
class Run:
    """A trained model of a trial, with its vocabularies and tokenisers.

    Attributes:
        model: on the CPU, in evaluation mode.
        source_vocabulary, target_vocabulary: tokens to numbers and back, for each side.
        source_tokeniser, target_tokeniser: text to tokens and back, for each side.
        limit: the most tokens of an output.
        longest_source: the most tokens of a source in training; None if that was not kept.
        config: everything in the JSON file.
    """

    model: Model
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    source_tokeniser: Tokeniser
    target_tokeniser: Tokeniser
    limit: int
    longest_source: int | None
    config: dict[str, Any]


def save_run(
    folder: Path, model: Model, data: Encoded, settings: Settings, facts: dict[str, Any]
) -> None:
    """Write `model.safetensors` and `model.json` into `folder`, each of them whole.

    Args:
        facts: of the trial, kept in the JSON file.

    Raises:
        RunFailure: the disk is full or a file cannot be written.
    """
    config = {
        "format": FORMAT,
        "anyscore": __version__,
        "score": model.score,
        "settings": asdict(settings),
        "trial": facts,
        "source_tokeniser": data.source_tokeniser.to_json(),
        "target_tokeniser": data.target_tokeniser.to_json(),
        "limit": data.limit,
        "longest_source": int(data.train.sources.lengths.max()),
        "source_vocabulary": data.source_vocabulary.to_json(),
        "target_vocabulary": data.target_vocabulary.to_json(),
    }
    tensors = {name: x.detach().cpu().contiguous() for name, x in model.state_dict().items()}
    write_whole(folder / _TENSORS, save(tensors))
    write_record(folder / _CONFIG, config, indent=1)


def load_run(folder: str | Path) -> Run:
    """Load the model that `save_run` wrote into `folder`, a trial's.

    Raises:
        InputError: the folder holds no model, a damaged one, or one of a newer release.
    """
    folder = Path(folder)
    for name in (_CONFIG, _TENSORS):
        if not part_of(folder, name).is_file():
            raise InputError(
                f"{folder}: expected the folder of a trial (RUN/trials/NAME), found no {name} in it"
            )
    config = read_record(_FORM, folder, _CONFIG, advice="remove its folder", oldest=FORMAT)
    try:
        source_vocabulary = Vocabulary(config["source_vocabulary"])
        target_vocabulary = Vocabulary(config["target_vocabulary"])
        settings = Settings(**config["settings"] | {"device": "cpu"})
        settings.check()
        sizes = len(source_vocabulary), len(target_vocabulary)
        _check_shapes(folder / _TENSORS, settings, config["score"], sizes)
        model = new_model(settings, config["score"], *sizes, seed=0)
        model.load_state_dict(load_file(folder / _TENSORS))
        model.eval()
        return Run(
            model=model,
            source_vocabulary=source_vocabulary,
            target_vocabulary=target_vocabulary,
            source_tokeniser=tokeniser_from_json(config["source_tokeniser"]),
            target_tokeniser=tokeniser_from_json(config["target_tokeniser"]),
            limit=config["limit"],
            longest_source=config.get("longest_source"),
            config=config,
        )
    # A damaged file may have any content, and any function above may raise any exception.
    except (Exception, safetensors.SafetensorError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{folder}: the model is damaged ({reason}); remove the folder, and it is trained again"
        ) from None


def _check_shapes(
    tensors: Path, settings: Settings, score: str, vocabularies: tuple[int, int]
) -> None:
    """Raise ValueError if a file's tensors are not those of a model; make neither.

    The settings are read from another file, and must not ask for more than this one has.
    """
    with safetensors.safe_open(tensors, framework="pt") as file:
        names = file.keys()
        stored = {name: tuple(file.get_slice(name).get_shape()) for name in names}
    if settings.layers > len(stored):
        raise ValueError(f"{len(stored)} tensors are not those of {settings.layers} layers")
    expected = shapes(settings, score, *vocabularies)
    for name in sorted(expected.keys() | stored.keys()):
        if expected.get(name) != stored.get(name):
            there, wanted = stored.get(name, "nothing"), expected.get(name, "nothing")
            raise ValueError(f"{brief(name)}: expected the shape {wanted}, found {there}")
