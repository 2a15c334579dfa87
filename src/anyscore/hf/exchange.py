"""Exchange the scores of attention layers in models of transformers."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from anyscore.backends.torch.modes import is_transformed
from anyscore.call.task import Call, Options
from anyscore.functional.attention import attend, attention
from anyscore.hf.attention import NAME, register
from anyscore.hf.layers import attention_layers, head_sizes
from anyscore.hf.record import attend_by_ours, description, own_configs, write_config
from anyscore.layers.last_weights import snapshot
from anyscore.layers.parameters import AnyScore, is_named
from anyscore.layers.score_spec import ScoreSpec
from anyscore.layers.select import choose_layers
from anyscore.ops import load
from anyscore.ops.checks import check_size, suggest
from anyscore.score import SCORES
from anyscore.torch.attention import Attention

M = TypeVar("M", bound=PreTrainedModel)

_OF_CALLS = "dropout", "heads", "kv_heads", "d_q", "d_k", "device", "dtype"
_BESIDE = "bias", "softcap", "sink", "normalizer", "impl"
_SIZES = "heads", "kv_heads", "head_dim"
_SCALES = {name for score in SCORES.values() for name, shape in score.shapes.items() if not shape}
_xp = load("torch")


class Exchanged(Attention):
    """The score of an attention layer of transformers, which replaces the scaled dot product.

    config_entry: the description of the exchange in the config.
    """

    config_entry: Mapping[str, Any]

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        softcap: float,
        sink: Tensor | None,
        **options: Any,
    ) -> Any:
        """Attend with the score; softcap and sink are by default those of the layer."""
        if self._bound is None:  # of a score without parameters, which asks for no sizes before
            self._bind(query.shape[-1], key.shape[-1])
        own = self._sink(query)
        arguments: dict[str, Any] = {
            "score": self._score(query),
            "softcap": self.softcap or softcap,
            "sink": sink if own is None else own,
            "normalizer": self.normalizer,
        }
        if self._last is not None:
            self._last = None
        if not self._forward_hooks or torch.compiler.is_compiling():
            return attention(query, key, value, impl=self.impl, **arguments, **options)
        weights, dropout = options.pop("return_weights", False), options.pop("dropout", 0.0)
        result, task = attend(
            Call(query, key, value, **arguments, **options),
            Options(dropout, return_scores=weights, impl=self.impl),
        )
        if not is_transformed(result.output):  # hooks of `record` read `last_weights`
            self._last = snapshot(_xp, task)
        return (result.output, result.weights) if weights else result.output


def use(
    model: M,
    score: AnyScore | None,
    layers: Sequence[int | str] | int | str | None = None,
    *,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    **options: Any,
) -> M:
    """Exchange the score of attention layers in a model of transformers, in place.

    The score takes the queries and keys of the dot product: by head, after the model's
    projections, normalisation and rotation. So "additive" is w·tanh(q + k), with one w for each
    head. The parameters are on the attention modules, under `anyscore`: in `model.parameters()`,
    state dicts and saved files. The exchange is recorded in `model.config.anyscore`, or in the
    config of the layer's part, such as `text_config`; `load` reads the record. The model gets its
    own copy of the config.

    Args:
        model: any model whose layers use `attn_implementation`, which becomes "anyscore". Another
            implementation, set later, computes dot products. Pass the whole model that will be
            saved, and choose a part by `layers`.
        score: a name of `anyscore.score.SCORES`, or another score of `anyscore.torch.Attention`,
            copied for each layer. None: the model's own score.
        layers: numbers or names of `attention_layers(model)`, or names of parts of the model with
            such layers, such as "encoder". By default None, all.
        heads, kv_heads, head_dim: sizes, for layers without such attributes. By default None.
        options: options of `anyscore.torch.Attention`: bias, softcap, sink, normalizer, impl, and
            the scales of the score. softcap and sink are by default those of the model; dropout
            always is.

    Returns:
        The model.

    Raises:
        TypeError, ValueError, IndexError: The model is not of transformers, or has no such layers.
            The score or an option is unknown. A layer lacks a size, or contradicts it. The model
            is then unchanged.

    >>> from anyscore.hf import use
    >>> from transformers import LlamaConfig, LlamaModel
    >>> config = LlamaConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=2)
    >>> model = use(LlamaModel(config), "additive", layers=[1])
    >>> [(name, tuple(p.shape)) for name, p in model.named_parameters() if "anyscore" in name]
    [('layers.1.self_attn.anyscore.w_v.weight', (2, 4))]
    """
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    check_size(**sizes)
    options |= {size: int(n) for size, n in sizes.items() if n is not None}
    made = _make_all(model, score, layers, options)
    register()
    own_configs(model)
    _install(model, made)
    attend_by_ours(model)
    write_config(model)
    return model


def exchange(model: PreTrainedModel, score: str, layer: str, options: Mapping[str, Any]) -> None:
    """Exchange the score of one layer by the record of a config; do not change the config."""
    _install(model, _make_all(model, score, layer, options))


def _make_all(
    model: PreTrainedModel, score: AnyScore | None, layers: Any, options: Mapping[str, Any]
) -> dict[str, Exchanged | None]:
    """Create the scores of chosen layers of a model. options: sizes included."""
    found = attention_layers(model)
    chosen = choose_layers(found, layers)
    for name in _OF_CALLS:
        if name in options and name not in _SIZES:
            raise TypeError(f"{name}= is what the model says: leave it out.")
    own = getattr(score, "shapes", ()) if isinstance(score, type) else ()  # the user's
    known = (*_SIZES, *_BESIDE, *sorted(_SCALES.union(own)))
    for name in options:
        if name not in known:
            hint = suggest(name, known, "leave it out. ")
            raise TypeError(f"unknown option {name!r}: {hint}use() takes {', '.join(known)}.")
    given = {size: options.get(size) for size in _SIZES}
    of_score = {name: x for name, x in options.items() if name not in _SIZES}
    made = {name: _make(name, found[name], score, given, of_score) for name in chosen}
    for layer in made.values():
        if layer is not None:
            layer.config_entry = description(score, options)
    return made


def _install(model: PreTrainedModel, made: Mapping[str, Exchanged | None]) -> None:
    """Set the scores of layers of a model; None restores the layer's own score."""
    for name, score in made.items():
        layer = model.get_submodule(name)
        layer._modules.pop(NAME, None)
        if score is not None:
            layer.add_module(NAME, score.train(layer.training))


def _make(
    name: str,
    layer: nn.Module,
    score: Any,
    given: Mapping[str, int | None],
    options: Mapping[str, Any],
) -> Exchanged | None:
    """Create the score of one layer, with parameters on the layer's device and in its dtype."""
    if score is None:
        if options:
            raise TypeError(f"{', '.join(options)}: of a score, got score=None.")
        return None
    arguments = dict(options)
    if is_named(score):
        arguments = {"projected": True, **options}
        scales = {x: y for x, y in options.items() if x not in _BESIDE}
        spec = ScoreSpec(score, projected=True, sink=options.get("sink"), **scales)
        if spec.names:
            sizes = head_sizes(name, layer, given)
            arguments |= {"heads": sizes["heads"], "kv_heads": sizes["kv_heads"]}
            arguments |= dict.fromkeys(("d_q", "d_k"), sizes["head_dim"])
    elif options.get("sink") is True:
        arguments["heads"] = head_sizes(name, layer, given)["heads"]
    if is_named(score) or options.get("sink") is True:
        weights = (p for p in layer.parameters() if p.is_floating_point())
        like = next(weights, torch.empty(0))
        arguments |= {"device": like.device, "dtype": like.dtype}
    try:
        return Exchanged(score if is_named(score) else copy.deepcopy(score), **arguments)
    except ValueError as problem:
        raise ValueError(f"{name}: {problem}") from None
    except TypeError as problem:
        raise TypeError(f"{name}: {problem}") from None
