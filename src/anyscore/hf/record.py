"""Exchanged scores in the configs of a model of transformers.

The config of the layer's part, such as `text_config`, records the layer, under its name in the
part. So the part can be loaded alone or in the whole.
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
    """Replace the configs of a model by copies, in all modules: other models may share them."""
    copies: dict[int, Any] = {}
    copy.deepcopy(model.config, copies)
    for module in model.modules():
        for name, x in vars(module).items():
            if isinstance(x, PreTrainedConfig) and id(x) in copies:
                vars(module)[name] = copies[id(x)]


def attend_by_ours(model: PreTrainedModel) -> None:
    """Set `attn_implementation="anyscore"` for all attention layers and their models' masks.

    `set_attn_implementation` is not used: it refuses classes by patterns of their source, though
    their layers call the attention function.
    """
    for name, layer in attention_layers(model).items():
        for module in (layer, *(holder for holder, _ in _holders(model, name))):
            config = getattr(module, "config", None)
            if isinstance(config, PreTrainedConfig):
                config._attn_implementation_internal = NAME


def write_config(model: PreTrainedModel) -> None:
    """Write the scores of a model's layers into its configs."""
    configs = {id(config): config for config in _configs(model.config)}
    for config in configs.values():
        vars(config).pop(NAME, None)
    first: dict[int, Any] = {}  # config → the outermost model that holds it
    for module in model.modules():
        if isinstance(module, PreTrainedModel) and id(module.config) in configs:
            first.setdefault(id(module.config), module)
    for name, layer in attention_layers(model).items():
        exchanged: Any = layer._modules.get(NAME)
        if exchanged is None:
            continue
        for holder, key in _holders(model, name):
            if first.get(id(holder.config)) is holder:
                record = getattr(holder.config, NAME, {})
                setattr(holder.config, NAME, {**record, key: exchanged.config_entry})
                break


def read_config(model: PreTrainedModel, name: str) -> Mapping[str, Any] | None:
    """Return the record of an attention layer in a model's configs; None if not exchanged."""
    for holder, key in _holders(model, name):
        entry: Mapping[str, Any] | None = (getattr(holder.config, NAME, None) or {}).get(key)
        if entry is not None:
            return entry
    return None


def description(score: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of an exchange for a config; its score is None if it has no name."""
    names = {known: name for name, known in SCORES.items()}
    name = score if isinstance(score, str) else names.get(score) if is_named(score) else None
    plain = all(x is None or isinstance(x, str | bool | int | float) for x in options.values())
    if name is None or not plain:
        return {"score": None}
    return {"score": name, "options": dict(options)} if options else {"score": name}


def _configs(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    """Yield a config and the configs of its parts."""
    yield config
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if isinstance(part, PreTrainedConfig):
            yield from _configs(part)


def _holders(model: PreTrainedModel, name: str) -> Iterator[tuple[PreTrainedModel, str]]:
    """Yield (model, name of the layer in the model), from the innermost model outwards."""
    parts = name.split(".")
    for n in range(len(parts) - 1, -1, -1):
        holder: nn.Module = model.get_submodule(".".join(parts[:n]))
        if isinstance(holder, PreTrainedModel):
            yield holder, name_in_base(holder, ".".join(parts[n:]))


def name_in_base(model: PreTrainedModel, name: str) -> str:
    """Return the name of a layer in the base model, which models with other heads share."""
    prefix = f"{model.base_model_prefix}."
    return name.removeprefix(prefix) if model.base_model is not model else name
