"""Replace the multi-head layers of a PyTorch model, in place, to use another score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor, nn

from anyscore.layers.parameters import AnyScore
from anyscore.layers.select import choose_layers
from anyscore.masks.sequences import Sequences
from anyscore.torch.multihead import MultiHeadAttention

_SAID = "bias", "dropout", "batch_first", "kv_heads", "d_q", "d_k", "d_v", "device", "dtype"


class Replaced(MultiHeadAttention):
    """A `MultiHeadAttention` with the call of `torch.nn.MultiheadAttention`."""

    _tokens = "query", "key", "value"

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        mask: Any = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend. Return (output, weights before dropout; None without need_weights).

        mask: the `Sequences` that `Layer` builds from jagged nested tensors.

        Raises:
            TypeError, ValueError: as `MultiHeadAttention`; or nested tensors together with
                key_padding_mask, attn_mask or batch_first=False.
        """
        others = key_padding_mask is not None or attn_mask is not None
        if isinstance(mask, Sequences) and (others or not self.batch_first):
            raise ValueError(
                "query is a nested tensor, which has its own lengths: leave out key_padding_mask "
                "and attn_mask, and make the layer with batch_first=True."
            )
        result = super().forward(
            query,
            key,
            value,
            mask=mask,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )
        return cast("tuple[Tensor, Tensor | None]", result)


def replace(
    model: nn.Module,
    score: AnyScore = "scaled_dot",
    layers: Sequence[int | str] | int | str | None = None,
    **options: Any,
) -> nn.Module:
    """Replace each `torch.nn.MultiheadAttention` of a model by anyscore's, with any score.

    The model is changed in place; `torch.nn.Transformer`, its encoders and its decoders are such
    models. Projections keep their values. The score takes projected queries and keys, with new
    parameters in each head. Calls of the model stay the same. Create the optimiser afterwards: the
    parameters are new objects with other names in the state dict. Subclasses with their own
    `forward` are not replaced.

    Args:
        model: any module. If the model is a multi-head layer itself, use the returned module.
        score, options: as for `anyscore.torch.MultiHeadAttention`.
        layers: numbers or names of multi-head layers, in the order of `model.named_modules()`, or
            names of parts of the model with such layers. By default None, all.

    Returns:
        The model.

    Raises:
        TypeError, ValueError, IndexError: The model is no module, or has no such layers. The score
            or an option is unknown. A layer has add_bias_kv, add_zero_attn or parametrized
            weights. The model is then unchanged.

    >>> import torch
    >>> from anyscore.torch import replace
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> model = replace(torch.nn.TransformerEncoder(layer, 3), "additive", layers=[0, 2])
    >>> [name for name, _ in model.named_parameters() if "w_v" in name]
    ['layers.0.self_attn.attention.w_v.weight', 'layers.2.self_attn.attention.w_v.weight']
    >>> model(torch.ones(1, 5, 8)).shape
    torch.Size([1, 5, 8])
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}, expected a torch.nn.Module.")
    kinds = nn.MultiheadAttention, Replaced
    of_kind = {name: m for name, m in model.named_modules() if isinstance(m, kinds)}
    forwards = [kind.forward for kind in kinds]
    found = {name: m for name, m in of_kind.items() if type(m).forward in forwards}
    if not found:
        own = "".join(
            f" {name or 'It'} is a {type(m).__name__}, whose forward is its own: put "
            "anyscore.torch.MultiHeadAttention in yourself."
            for name, m in list(of_kind.items())[:1]
        )
        raise ValueError(
            f"{type(model).__name__} has no torch.nn.MultiheadAttention that could be replaced; "
            f"for models of transformers there is anyscore.hf.use.{own}"
        )
    for name in _SAID:
        if name in options:
            raise TypeError(f"{name}= is what the layers say: leave it out.")
    made: dict[nn.Module, nn.Module] = {}
    for name in choose_layers(found, layers):
        made[found[name]] = _make(name, found[name], score, options)
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):  # a shared layer under all its names
            if child is not None and child in made:
                setattr(parent, name, made[child])
    return made.get(model, model)


def _make(name: str, layer: Any, score: AnyScore, options: dict[str, Any]) -> Replaced:
    """Create the replacement of one layer, with the layer's parameters."""
    if isinstance(layer, Replaced):
        widths = [getattr(layer, x).in_features for x in ("W_q", "W_k", "W_v")]
        dropout = layer.attention.dropout
    else:
        for option, there in (
            ("add_bias_kv", layer.bias_k is not None),
            ("add_zero_attn", layer.add_zero_attn),
        ):
            if there:
                raise ValueError(f"{name or 'the layer'} has {option}=True, unknown to anyscore.")
        widths, dropout = [layer.embed_dim, layer.kdim, layer.vdim], layer.dropout
    like = layer.out_proj.weight
    ours = Replaced(
        layer.embed_dim,
        layer.num_heads,
        score=score,
        d_q=widths[0],
        d_k=widths[1],
        d_v=widths[2],
        dropout=dropout,
        bias=layer.out_proj.bias is not None,
        batch_first=layer.batch_first,
        device=like.device,
        dtype=like.dtype,
        **options,
    )
    state = {x: y for x, y in layer.state_dict().items() if not x.startswith("attention.")}
    missing = ours.load_state_dict(state, strict=False).missing_keys
    missing = [x for x in missing if not x.startswith("attention.")]
    if missing:
        raise ValueError(
            f"{name or 'the layer'} has no plain weights for {', '.join(missing)}: remove "
            "parametrizations, by torch.nn.utils.parametrize.remove_parametrizations, before."
        )
    trained = {x.split(".")[0]: y.requires_grad for x, y in layer.named_parameters()}
    of_all = trained.get("in_proj_weight", True)
    for w, theirs in zip("qkv", ("q_proj_weight", "k_proj_weight", "v_proj_weight"), strict=True):
        flag = trained.get(f"W_{w}", trained.get(theirs, of_all))
        getattr(ours, f"W_{w}").requires_grad_(flag)
    cast(nn.Module, ours.W_o).requires_grad_(like.requires_grad)
    return ours.train(layer.training)
