"""A trained model on disk: its numbers as safetensors, all else as JSON beside them."""

from __future__ import annotations

import json
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
from anyscore.lab.run_folder import part_of, write_whole
from anyscore.lab.train.model import Model
from anyscore.lab.train.models import new_model, shapes
from anyscore.lab.train.settings import Settings
from anyscore.ops.checks import shown

_FORMAT = 2
_CONFIG, _TENSORS = "model.json", "model.safetensors"


@dataclass(frozen=True)
class Run:
    """A trained model of a trial, and what is needed to use it.

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
        "format": _FORMAT,
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
    text = json.dumps(config, ensure_ascii=False, indent=1)
    write_whole(folder / _CONFIG, text.encode())


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
    config = _read_config(folder / _CONFIG)
    try:
        source_vocabulary = Vocabulary.from_json(config["source_vocabulary"])
        target_vocabulary = Vocabulary.from_json(config["target_vocabulary"])
        settings = Settings(**config["settings"] | {"device": "cpu"})
        settings.check()
        sizes = len(source_vocabulary), len(target_vocabulary)
        _check_shapes(folder / _TENSORS, settings, config["score"], sizes)
        model = new_model(settings, config["score"], *sizes, seed=0)
        model.load_state_dict(load_file(folder / _TENSORS))
        model.eval()
        longest = config.get("longest_source")
        return Run(
            model=model,
            source_vocabulary=source_vocabulary,
            target_vocabulary=target_vocabulary,
            source_tokeniser=tokeniser_from_json(config["source_tokeniser"]),
            target_tokeniser=tokeniser_from_json(config["target_tokeniser"]),
            limit=_count(config["limit"], limit_for(LONGEST)),
            longest_source=_count(longest, LONGEST) if longest is not None else None,
            config=config,
        )
    # Anything may stand in a damaged file, and what meets it first may raise anything.
    except (Exception, safetensors.SafetensorError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{folder}: the model is damaged ({reason}); remove the folder, and it is trained again"
        ) from None


def _read_config(file: Path) -> dict[str, Any]:
    """Read the JSON file of a model; raise InputError if it is damaged."""
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{file}: cannot be read ({reason}); remove its folder") from None
    if not isinstance(config, dict):
        raise InputError(
            f"{file}: expected an object, found {type(config).__name__}; the file is damaged"
        )
    if config.get("format") != _FORMAT:
        raise InputError(
            f"{file}: expected format {_FORMAT}, found {config.get('format')!r}; use the "
            f"release of anyscore that wrote it ({config.get('anyscore')}), or train again"
        )
    return config


def _check_shapes(
    tensors: Path, settings: Settings, score: str, vocabularies: tuple[int, int]
) -> None:
    """Raise ValueError if a file's tensors are not those of a model; make neither.

    The settings are read from another file, and must not ask for more than this one has.
    """
    with safetensors.safe_open(tensors, framework="pt") as file:
        names = file.keys()
        found = {name: tuple(file.get_slice(name).get_shape()) for name in names}
    if settings.layers > len(found):
        raise ValueError(f"{len(found)} tensors are not those of {settings.layers} layers")
    expected = shapes(settings, score, *vocabularies)
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            there, wanted = found.get(name, "nothing"), expected.get(name, "nothing")
            raise ValueError(f"{shown(name)}: expected the shape {wanted}, found {there}")


def _count(x: object, most: int) -> int:
    """Return x if it is a whole number from 1 to `most`; raise ValueError if not."""
    if not isinstance(x, int) or isinstance(x, bool) or not 1 <= x <= most:
        raise ValueError(f"expected a whole number from 1 to {most:,}, found {shown(x)}")
    return x
