"""Load models of transformers with exchanged scores."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from transformers import PreTrainedModel

from anyscore.hf.attention import NAME, register
from anyscore.hf.exchange import exchange
from anyscore.hf.layers import attention_layers
from anyscore.hf.record import name_in_base, read_config
from anyscore.ops.checks import brief
from anyscore.torch.weight import Weight

M = TypeVar("M", bound=PreTrainedModel)

_BY_HAND = "make the model from its config, use() the same score, and load the state dict."


def load(cls: type[M], name: Any, **options: Any) -> M:
    """Load a model whose scores `use` exchanged: `cls.from_pretrained(name, …)`, with its scores.

    `from_pretrained` alone creates the original model. It leaves out the parameters of the scores,
    with a warning. Parameters of scores that the files lack get the initial values of `use`.

    Args:
        cls: a model class of transformers, or an automatic class such as `AutoModelForCausalLM`.
        name, options: as for `cls.from_pretrained`: a folder, dtype, device_map, config, options
            of the config, ….

    Returns:
        The model, with `attn_implementation="anyscore"` unless the options name another, which
        computes dot products. With output_loading_info=True, (model, loading information).

    Raises:
        TypeError: cls is no such class.
        ValueError: The record of scores in the config is invalid, or a score was not given by
            name. Or the files have parameters of scores without a record, because `use` got only a
            part of the saved model. Then create the model from its config, call `use` with the
            same score, and load the state dict.

    >>> from tempfile import TemporaryDirectory
    >>> from anyscore.hf import load, use
    >>> from transformers import LlamaConfig, LlamaModel
    >>> sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    >>> config = LlamaConfig(vocab_size=10, **sizes)
    >>> model = use(LlamaModel(config), "additive")
    >>> with TemporaryDirectory() as folder:
    ...     model.save_pretrained(folder)
    ...     again = load(LlamaModel, folder)
    >>> again.layers[0].self_attn.anyscore.w_v.weight.equal(
    ...     model.layers[0].self_attn.anyscore.w_v.weight
    ... )
    True
    """
    prepared: Any = _prepared(cls)
    register()
    if options.get("attn_implementation") is None:
        options["attn_implementation"] = NAME
    wanted = options.pop("output_loading_info", False)
    model, info = prepared.from_pretrained(name, output_loading_info=True, **options)
    model.__class__ = getattr(type(model), "_plain", type(model))
    _check_all_said(model, info["unexpected_keys"])
    for key in (*info["missing_keys"], *(x[0] for x in info["mismatched_keys"])):
        owner = model.get_submodule(key.rpartition(".")[0]) if f".{NAME}." in key else None
        if isinstance(owner, Weight):  # transformers cannot initialise a `Weight`
            owner.reset_parameters()
    return cast(M, (model, info) if wanted else model)


class _Mapping:
    """The mapping of an automatic class, with each model class replaced by `_prepared`."""

    def __init__(self, mapping: Any) -> None:
        self._mapping = mapping

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mapping, name)

    def __contains__(self, config: Any) -> bool:
        return config in self._mapping

    def __iter__(self) -> Any:
        return iter(self._mapping)

    def __getitem__(self, config: Any) -> Any:
        found = self._mapping[config]
        return tuple(map(_prepared, found)) if isinstance(found, tuple) else _prepared(found)


def _prepared(cls: Any) -> type:
    """Return a subclass whose models exchange scores by their config, right after creation."""
    is_class = isinstance(cls, type)
    if is_class and getattr(cls, "_model_mapping", None) is not None:
        return type(cls.__name__, (cls,), {"_model_mapping": _Mapping(cls._model_mapping)})
    if not is_class or not issubclass(cls, PreTrainedModel):
        raise TypeError(
            f"cls is {brief(cls)}, expected a model class of transformers, or an automatic one as "
            "AutoModelForCausalLM."
        )

    def made(model: Any, *args: Any, **kwargs: Any) -> None:
        cls.__init__(model, *args, **kwargs)
        for module in model.modules():
            if isinstance(module, PreTrainedModel):
                _check_config(module.config)
        for layer in attention_layers(model):
            entry = read_config(model, layer)
            if entry is None:
                continue
            if entry["score"] is None:
                raise ValueError(
                    f"the score of {layer} was no name, so that the config cannot say it: "
                    f"{_BY_HAND}"
                )
            exchange(model, entry["score"], layer, entry.get("options", {}))

    names = {"__init__": made, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type(cls.__name__, (cls,), {**names, "_plain": cls})


def _check_config(config: Any) -> None:
    """Check the record of scores in a config: a user may have edited the file."""
    record = getattr(config, NAME, None)
    whole = [] if record is None else [record]
    entries = list(record.values()) if isinstance(record, dict) else whole
    for entry in entries:
        if not (
            isinstance(entry, dict)
            and isinstance(entry.get("score", entry), str | None)
            and isinstance(entry.get("options", {}), dict)
        ):
            raise ValueError(
                f"the config says {brief(entry)} of the scores: expected a score by its name and "
                "options for each layer, as use() writes them; put back the config that was saved."
            )


def _check_all_said(model: PreTrainedModel, unexpected: Any) -> None:
    """Check that the files hold no parameters of scores that the config does not record."""
    there = {key.split(f".{NAME}.")[0] for key in unexpected if f".{NAME}." in key}
    if not there:
        return
    for name in attention_layers(model):
        if there & {name, name_in_base(model, name), f"{model.base_model_prefix}.{name}"}:
            raise ValueError(
                f"the files have the score of {name}, which their config does not say: it is said "
                "in the config of the model that use() gets, so give it the whole that is saved. "
                f"To load these, {_BY_HAND}"
            )
