"""Exchanged scores, as the configs of a model of transformers say them.

A layer is said in the config of the part that it belongs to, as `text_config`, by its name in that
part: so the part is loaded alone as well as in the whole.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from anyscore.hf.attention import NAME
from anyscore.hf.layers import attention_layers
from anyscore.layers.parameters import is_named
from anyscore.score import SCORES


def own_configs(model: PreTrainedModel) -> None:
    """Give a model copies of its configs, in all its modules: other models may hold the same."""
    copies: dict[int, Any] = {}
    copy.deepcopy(model.config, copies)
    for module in model.modules():
        for name, x in vars(module).items():
            if isinstance(x, PreTrainedConfig) and id(x) in copies:
                vars(module)[name] = copies[id(x)]


def attend_by_ours(model: PreTrainedModel) -> None:
    """Let all attention layers of a model, and the masks of the models around them, be ours.

    `set_attn_implementation` refuses classes by what their source looks like; it is the layers that
    matter.
    """
    for name, layer in attention_layers(model).items():
        for module in (layer, *(holder for holder, _ in _holders(model, name))):
            config = getattr(module, "config", None)
            if isinstance(config, PreTrainedConfig):
                config._attn_implementation_internal = NAME


def say(model: PreTrainedModel) -> None:
    """Write into the configs of a model which scores its layers have."""
    said = {id(config): config for config in _configs(model.config)}
    for config in said.values():
        vars(config).pop(NAME, None)
    first: dict[int, Any] = {}  # of the models that hold the same config it is the outermost
    for module in model.modules():
        if isinstance(module, PreTrainedModel) and id(module.config) in said:
            first.setdefault(id(module.config), module)
    for name, layer in attention_layers(model).items():
        exchanged: Any = layer._modules.get(NAME)
        if exchanged is None:
            continue
        for holder, key in _holders(model, name):
            if first.get(id(holder.config)) is holder:
                record = getattr(holder.config, NAME, {})
                setattr(holder.config, NAME, {**record, key: exchanged.said})
                break


def said_of(model: PreTrainedModel, name: str) -> Mapping[str, Any] | None:
    """Read what the configs of a model say of an attention layer; None if it is not exchanged."""
    for holder, key in _holders(model, name):
        entry: Mapping[str, Any] | None = (getattr(holder.config, NAME, None) or {}).get(key)
        if entry is not None:
            return entry
    return None


def description(score: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Describe an exchange for a config; the score is None if it cannot be told by name."""
    names = {known: name for name, known in SCORES.items()}
    name = score if isinstance(score, str) else names.get(score) if is_named(score) else None
    plain = all(x is None or isinstance(x, str | bool | int | float) for x in options.values())
    if name is None or not plain:
        return {"score": None}
    return {"score": name, "options": dict(options)} if options else {"score": name}


def _configs(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    """Yield a config and those of parts in it."""
    yield config
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if isinstance(part, PreTrainedConfig):
            yield from _configs(part)


def _holders(model: PreTrainedModel, name: str) -> Iterator[tuple[PreTrainedModel, str]]:
    """Yield the models around a layer, from the innermost on, and the name of the layer in each."""
    parts = name.split(".")
    for n in range(len(parts) - 1, -1, -1):
        holder: nn.Module = model.get_submodule(".".join(parts[:n]))
        if isinstance(holder, PreTrainedModel):
            yield holder, in_base(holder, ".".join(parts[n:]))


def in_base(model: PreTrainedModel, name: str) -> str:
    """Give the name of a layer in the base model, which other heads share."""
    prefix = f"{model.base_model_prefix}."
    return name.removeprefix(prefix) if model.base_model is not model else name
