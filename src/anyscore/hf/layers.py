"""The attention layers of a model of transformers, and their sizes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from numbers import Integral
from typing import Any

from torch import nn
from transformers import PreTrainedModel

_WIDTHS = "qk_head_dim", "head_dim", "attention_head_size", "key_value_proj_dim"
_HEADS = "num_heads", "num_attention_heads", "n_heads"


def attention_layers(model: Any) -> dict[str, nn.Module]:
    """Map names to the modules of a model that use `attn_implementation`.

    Names and order are those of `model.named_modules()`. In an encoder-decoder, the modules of the
    encoder come first; each layer of the decoder then has self-attention and cross-attention.

    Args:
        model: a model of transformers.

    Returns:
        A dictionary from names to modules.

    Raises:
        TypeError: The model is not of transformers.
        ValueError: The model has no such layer.

    >>> from anyscore.hf import attention_layers
    >>> from transformers import LlamaConfig, LlamaModel
    >>> config = LlamaConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=2)
    >>> list(attention_layers(LlamaModel(config)))
    ['layers.0.self_attn', 'layers.1.self_attn']
    """
    if not isinstance(model, PreTrainedModel):
        for inner in ("get_base_model()", "module", "_orig_mod"):
            around = getattr(model, inner.removesuffix("()"), None)
            if inner.endswith("()") and around is not None:
                around = around()
            if isinstance(around, PreTrainedModel):
                raise TypeError(
                    f"model is a {type(model).__name__} around a model of transformers: give "
                    f"model.{inner}."
                )
        raise TypeError(
            f"model is a {type(model).__name__}, expected a model of transformers; for modules of "
            "PyTorch there is anyscore.torch.replace."
        )
    modules = model.named_modules()
    found = {
        name: m
        for name, m in modules
        if not isinstance(m, PreTrainedModel) and _attends(type(m))  # type: ignore[arg-type]
    }
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no attention layer that asks transformers for its "
            "attention function (ALL_ATTENTION_FUNCTIONS), so that none can be exchanged."
        )
    return found


@functools.lru_cache(maxsize=256)  # it holds the classes of users' modules
def _attends(cls: type[nn.Module]) -> bool:
    """Check if a class calls the attention function, in its own methods or a parent's."""
    return any(
        "ALL_ATTENTION_FUNCTIONS" in function.__code__.co_names
        for base in cls.__mro__
        if issubclass(base, nn.Module) and base is not nn.Module
        for function in _functions(base)
    )


def _functions(cls: type) -> Iterator[Any]:
    """Yield the functions of a class body, without their decorators."""
    for x in vars(cls).values():
        function = inspect.unwrap(x) if callable(x) else x
        if inspect.isfunction(function):
            yield function


def head_sizes(name: str, layer: nn.Module, given: Mapping[str, int | None]) -> dict[str, int]:
    """Return heads, kv_heads and head_dim (width of queries and keys) of an attention layer.

    given: sizes from the user; None if not given.

    Raises:
        ValueError: a given size contradicts the layer; or a size is known neither way.
    """
    config = getattr(layer, "config", None)
    heads = _first(*(getattr(layer, x, None) for x in _HEADS))
    groups = _first(getattr(layer, "num_key_value_groups", None))
    known = {"heads": heads, "head_dim": _first(*(getattr(layer, x, None) for x in _WIDTHS))}
    heads = _first(given.get("heads"), heads, getattr(config, "num_attention_heads", None))
    if heads is not None and groups is not None:
        known["kv_heads"] = heads // groups
    for size, n in known.items():
        if n is not None and given.get(size) not in (None, n):
            raise ValueError(f"{size}={given[size]}, but {name} says {n}: leave it out.")
    sizes = {
        "heads": heads,
        "kv_heads": _first(given.get("kv_heads"), known.get("kv_heads"), heads),
        "head_dim": _first(given.get("head_dim"), known["head_dim"]),
    }
    missing = " and ".join(f"{size}=" for size, n in sizes.items() if n is None)
    if missing:
        raise ValueError(
            f"the score has parameters of the layer's sizes, but {name}, a {type(layer).__name__}, "
            f"does not say them all: give {missing}."
        )
    return {size: n for size, n in sizes.items() if n is not None}


def _first(*numbers: Any) -> int | None:
    """Return the first integer; None if there is none."""
    return next(
        (int(n) for n in numbers if isinstance(n, Integral) and not isinstance(n, bool)), None
    )
