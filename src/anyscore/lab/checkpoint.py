"""A trained model on disk: its numbers as safetensors, all else as JSON beside them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import load_file, save

from anyscore import __version__
from anyscore.lab.encoding import Encoded
from anyscore.lab.errors import InputError
from anyscore.lab.files import write_whole
from anyscore.lab.model import Translator
from anyscore.lab.tokens import Unit, Vocabulary
from anyscore.lab.training import Settings

_FORMAT = 1


@dataclass(frozen=True)
class Run:
    """One score's trained model and what is needed to use it.

    Attributes:
        model: on the CPU, in evaluation mode.
        unit: what tokens are (`tokens.tokenise`).
        limit: how many tokens an output may have.
        config: everything in the JSON file.
    """

    model: Translator
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    unit: Unit
    limit: int
    config: dict[str, Any]


def build_model(score: str, data: Encoded, settings: Settings) -> Translator:
    """The model of a score in its initial state, on the settings' device."""
    model = Translator(
        score,
        source_size=len(data.source_vocabulary),
        target_size=len(data.target_vocabulary),
        hidden=settings.hidden,
        dropout=settings.dropout,
        seed=settings.seed,
    )
    return model.to(settings.device)


def save_run(
    folder: Path, model: Translator, data: Encoded, settings: Settings, task: dict[str, Any]
) -> None:
    """Write `<score>.safetensors` and `<score>.json` into `folder`, each of them whole.

    Raises:
        RunFailure: when the disk is full or a file cannot be written.
    """
    config = {
        "format": _FORMAT,
        "anyscore": __version__,
        "score": model.score,
        "hidden": settings.hidden,
        "dropout": settings.dropout,
        "seed": settings.seed,
        "epochs": settings.epochs,
        "batch_size": settings.batch_size,
        "learning_rate": settings.learning_rate,
        "task": task,
        "unit": data.unit,
        "limit": data.limit,
        "source_vocabulary": data.source_vocabulary.to_json(),
        "target_vocabulary": data.target_vocabulary.to_json(),
    }
    tensors = {name: x.detach().cpu().contiguous() for name, x in model.state_dict().items()}
    write_whole(folder / f"{model.score}.safetensors", save(tensors))
    text = json.dumps(config, ensure_ascii=False, indent=1)
    write_whole(folder / f"{model.score}.json", text.encode())


def load_run(folder: str | Path, score: str) -> Run:
    """The model that `save_run` wrote for `score`.

    Raises:
        InputError: when the folder holds no such model, or a damaged one.
    """
    folder = Path(folder)
    config_file, tensor_file = folder / f"{score}.json", folder / f"{score}.safetensors"
    for file in (config_file, tensor_file):
        if not file.is_file():
            known = sorted(found.stem for found in folder.glob("*.safetensors"))
            there = f"it has {', '.join(known)}" if known else "it has no model at all"
            raise InputError(f"{folder}: no model of the score {score!r} in this run; {there}")
    try:
        config = json.loads(config_file.read_text(encoding="utf-8"))
        if config["format"] != _FORMAT:
            raise InputError(
                f"{config_file}: expected format {_FORMAT}, found {config['format']}; use the "
                f"release of anyscore that wrote it ({config['anyscore']}), or train again"
            )
        source_vocabulary = Vocabulary.from_json(config["source_vocabulary"])
        target_vocabulary = Vocabulary.from_json(config["target_vocabulary"])
        model = Translator(
            config["score"],
            source_size=len(source_vocabulary),
            target_size=len(target_vocabulary),
            hidden=config["hidden"],
            dropout=config["dropout"],
        )
        model.load_state_dict(load_file(tensor_file))
        model.eval()
        return Run(
            model=model,
            source_vocabulary=source_vocabulary,
            target_vocabulary=target_vocabulary,
            unit=config["unit"],
            limit=config["limit"],
            config=config,
        )
    except (OSError, ValueError, KeyError, RuntimeError, safetensors.SafetensorError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{folder}: the model of {score!r} is damaged ({reason})") from None
