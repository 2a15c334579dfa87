"""Another score in attention layers of a model of transformers; saved and loaded with it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel
from transformers.models.auto.auto_factory import _get_model_class

from anyscore.chosen_layers import choose_layers
from anyscore.functional import attention
from anyscore.hf.attention import NAME, register
from anyscore.hf.layers import attention_layers, head_sizes
from anyscore.layers import SCORES, AnyScore, is_named
from anyscore.score_spec import ScoreSpec
from anyscore.torch.attention import Attention

M = TypeVar("M", bound=PreTrainedModel)

_OF_CALLS = "dropout", "heads", "kv_heads", "d_q", "d_k", "device", "dtype"
_BESIDE = "softcap", "normalizer", "impl", "sink", "bias", "hidden", "projected"
_OF_FILES = "cache_dir", "local_files_only", "revision", "subfolder", "token", "trust_remote_code"


class Exchanged(Attention):
    """The score of an attention layer of transformers, in the place of its scaled dot product."""

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
        """Attend by the score, and by the cap and the sink of the layer if the score has none."""
        if self._bound is None:  # of a score without parameters, which asks for no sizes before
            self._bind(query.shape[-1], key.shape[-1])
        own = self._sink(query)
        return attention(
            query,
            key,
            value,
            score=self._score(query),
            softcap=self.softcap or softcap,
            sink=sink if own is None else own,
            normalizer=self.normalizer,
            impl=self.impl,
            **options,
        )


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
    """Exchange the score of attention layers of a model of transformers, in place.

    The score meets what the dot product met: queries and keys of heads, projected, normalised and
    rotated as the model does. So "additive" is w·tanh(q + k), with w for each head; the matrices
    before it are those of the model. Its parameters are on the attention modules, under
    `anyscore`: in `model.parameters()`, state dicts and saved files. What was exchanged is said in
    `model.config.anyscore`, by which `load` makes it again.

    Args:
        model: any model whose layers attend by `attn_implementation`, which becomes "anyscore".
        score: a name of `anyscore.layers.SCORES`, or what else `anyscore.torch.Attention` takes,
            copied for each layer; None for the model's own.
        layers: numbers or names among `attention_layers(model)`, or of a part of the model that
            has them inside, as "encoder"; all if None.
        heads, kv_heads, head_dim: sizes of layers that do not say them.
        options: of `anyscore.torch.Attention`: bias, softcap, sink, normalizer, impl, and the
            scales of the score. A cap and a sink are by default those of the model, its dropout
            always is.

    Returns:
        The model.

    Raises:
        TypeError, ValueError, IndexError: it is no model of transformers or has no such layers; an
            unknown score or option; a score with parameters for sizes that a layer does not say.
            The model is then as it was.

    >>> from transformers import LlamaConfig, LlamaModel
    >>> config = LlamaConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=2)
    >>> model = use(LlamaModel(config), "additive", layers=[1])
    >>> [(name, tuple(p.shape)) for name, p in model.named_parameters() if "anyscore" in name]
    [('layers.1.self_attn.anyscore.w_v.weight', (2, 4))]
    """
    found = attention_layers(model)
    chosen = choose_layers(found, layers)
    for name in _OF_CALLS:
        if name in options:
            raise TypeError(f"{name}= is what the model says: leave it out.")
    given = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    made = {name: _make(name, found[name], score, given, options) for name in chosen}
    register()
    model.set_attn_implementation(NAME)
    record = dict(getattr(model.config, NAME, None) or {})
    said = {size: n for size, n in given.items() if n is not None}
    for name, layer in made.items():
        key = _in_base(model, name)
        if layer is None:
            found[name]._modules.pop(NAME, None)
            record.pop(key, None)
        else:
            found[name].add_module(NAME, layer.train(found[name].training))
            record[key] = _recorded(score, {**said, **options})
    if record:
        setattr(model.config, NAME, record)
    elif hasattr(model.config, NAME):
        delattr(model.config, NAME)
    return model


def load(cls: type[M], name: Any, **options: Any) -> M:
    """Load a model whose scores were exchanged by `use`, as `cls.from_pretrained(name, …)` does.

    `from_pretrained` alone makes the model as transformers knows it, and leaves the parameters of
    the scores out, with a warning.

    Args:
        cls: a model class of transformers, or an automatic one as `AutoModelForCausalLM`.
        name, options: as of `cls.from_pretrained`: a folder, dtype, device_map, ….

    Returns:
        The model, with `attn_implementation="anyscore"` unless the options say another.

    Raises:
        ValueError: a score was no name; make the model from its config, `use` the same score, and
            load the state dict.
    """
    register()
    config = options.pop("config", None)
    if config is None:
        of_files = {x: options[x] for x in _OF_FILES if x in options}
        config = AutoConfig.from_pretrained(name, **of_files)
    known: Any = cls
    if getattr(cls, "_model_mapping", None) is not None:
        known = _get_model_class(config, known._model_mapping)  # type: ignore[no-untyped-call]
    record = getattr(config, NAME, None) or {}
    for layer, entry in record.items():
        if entry["score"] is None:
            raise ValueError(
                f"the score of {layer} was no name, so that the config cannot say it: make the "
                "model from its config, use() the same score, and load the state dict."
            )

    def made(model: Any, *args: Any, **kwargs: Any) -> None:
        known.__init__(model, *args, **kwargs)
        _use_again(model, record)

    names = {"__init__": made, "__module__": known.__module__, "__qualname__": known.__qualname__}
    prepared = type(known.__name__, (known,), names)
    options.setdefault("attn_implementation", NAME)
    model = prepared.from_pretrained(name, config=config, **options)  # type: ignore[attr-defined]
    model.__class__ = known
    return cast(M, model)


def _use_again(model: Any, record: Mapping[str, Mapping[str, Any]]) -> None:
    """Exchange the scores that a config says, in the layers that the model has."""
    for name in attention_layers(model):
        entry = record.get(_in_base(model, name))
        if entry is not None:
            use(model, entry["score"], [name], **entry.get("options", {}))


def _in_base(model: PreTrainedModel, name: str) -> str:
    """Give the name of a layer in the base model, which other heads share."""
    prefix = f"{model.base_model_prefix}."
    return name.removeprefix(prefix) if model.base_model is not model else name


def _recorded(score: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Describe an exchange for a config; the score is None if it cannot be told by name."""
    names = {known: name for name, known in SCORES.items()}
    name = score if isinstance(score, str) else names.get(score) if is_named(score) else None
    plain = all(x is None or isinstance(x, str | bool | int | float) for x in options.values())
    if name is None or not plain:
        return {"score": None}
    return {"score": name, "options": dict(options)} if options else {"score": name}


def _make(
    name: str,
    layer: nn.Module,
    score: Any,
    given: Mapping[str, int | None],
    options: Mapping[str, Any],
) -> Exchanged | None:
    """Make the score of one layer, its parameters where those of the layer are."""
    if score is None:
        if options:
            raise TypeError(f"{', '.join(options)}: of a score, got score=None.")
        return None
    arguments = dict(options)
    if is_named(score):
        arguments = {"projected": True, **options}
        scales = {x: y for x, y in arguments.items() if x not in _BESIDE}
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
