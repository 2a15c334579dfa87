"""Sizes, projections and masks of the layers that project queries, keys and values themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

from anyscore import backends
from anyscore.call.lowering import Lowered, lower_mask
from anyscore.functional.cache.prepare import PreparedKeys
from anyscore.layers.parameters import AnyScore, is_named
from anyscore.masks.lowered import zero_unread
from anyscore.masks.objects import Keep, Mask, parts
from anyscore.ops import Array, Ops, framework
from anyscore.ops.checks import check_size, check_tensors
from anyscore.score.base import Init

Project: TypeAlias = Callable[[Array, str], Array]
"""(x, name) → x Wᵀ + bias, of one of the `linears` of a layer."""


class HeadSizes:
    """The sizes of a multi-head layer, checked.

    linears: name → (outputs, inputs) of its projections, weight (outputs, inputs). output_width: of
    the layer. score: the sizes as arguments of its `ScoreSpec`.

    Raises TypeError, ValueError: sizes that are no integers ≥ 1, or heads that do not divide.
    """

    def __init__(
        self,
        embedding_size: int,
        n_heads: int,
        *,
        kv_heads: int | None = None,
        d_q: int | None = None,
        d_k: int | None = None,
        d_v: int | None = None,
        project_output: bool = True,
        output_width: int | None = None,
    ) -> None:
        check_size(embedding_size=embedding_size, n_heads=n_heads, kv_heads=kv_heads)
        check_size(d_q=d_q, d_k=d_k, d_v=d_v, output_width=output_width)
        kv_heads = n_heads if kv_heads is None else kv_heads
        if embedding_size % n_heads or n_heads % kv_heads:
            raise ValueError(
                f"n_heads={n_heads} must divide embedding_size={embedding_size}, and "
                f"kv_heads={kv_heads} must divide n_heads."
            )
        head = embedding_size // n_heads
        self.n_heads, self.kv_heads = n_heads, kv_heads
        self.output_width = output_width or embedding_size
        self.linears = {
            "W_q": (n_heads * head, d_q or embedding_size),
            "W_k": (kv_heads * head, d_k or embedding_size),
            "W_v": (kv_heads * head, d_v or embedding_size),
        }
        if project_output:
            self.linears["W_o"] = self.output_width, embedding_size
        self.score: dict[str, Any] = {"d_q": head, "d_k": head, "projected": True}
        self.score |= {"heads": n_heads, "kv_heads": kv_heads}

    def attend(
        self,
        xp: Ops,
        project: Project,
        attention: Callable[..., Array],
        queries: Array,
        keys: Array | PreparedKeys,
        values: Array,
    ) -> Array:
        """Compute the layer of what `mask_inputs` gave: output (batch, T_q, output_width).

        attention: queries, keys and values of heads (batch, heads, T, d) → output.
        """

        def projected(x: Any, name: str, heads: int) -> Any:
            return x if isinstance(x, PreparedKeys) else split(xp, project(x, name), heads)

        q = projected(queries, "W_q", self.n_heads)
        k = projected(keys, "W_k", self.kv_heads)
        v = projected(values, "W_v", self.kv_heads)
        output = merge(xp, attention(q, k, v))
        return project(output, "W_o") if "W_o" in self.linears else output


class QKVSizes:
    """The sizes of a layer with one projection to queries, keys and values, as `HeadSizes`.

    widths: of the three.

    Raises TypeError, ValueError: sizes that are no integers ≥ 1.
    """

    def __init__(
        self, embedding_size: int, d_k: int, *, d_v: int | None = None, project_output: bool = False
    ) -> None:
        check_size(embedding_size=embedding_size, d_k=d_k, d_v=d_v)
        d_v = embedding_size if d_v is None else d_v
        self.widths, self.output_width = (d_k, d_k, d_v), embedding_size if project_output else d_v
        self.linears = {"qkv": (sum(self.widths), embedding_size)}
        if project_output:
            self.linears["W_o"] = embedding_size, d_v
        self.score: dict[str, Any] = {"d_q": d_k, "d_k": d_k, "projected": True}

    def attend(self, xp: Ops, project: Project, attention: Callable[..., Array], x: Array) -> Array:
        """Compute the layer of x (..., T, d): output (..., T, output_width).

        attention: queries, keys and values (..., T, d) → output.
        """
        y, cuts = project(x, "qkv"), pairwise(accumulate(self.widths, initial=0))
        output = attention(*(y[..., start:stop] for start, stop in cuts))
        return project(output, "W_o") if "W_o" in self.linears else output


def inner_sizes(sizes: HeadSizes | QKVSizes, score: AnyScore, sink: Any) -> dict[str, Any]:
    """Give the sizes that the inner attention is made with: all for a score that is given by name.

    Of others a sink that is learned takes the heads.
    """
    if is_named(score):
        return dict(sizes.score)
    heads = sizes.score.get("heads")
    return {"heads": heads} if heads and sink is True else {}


def initializers(linears: Mapping[str, tuple[int, int]], bias: bool) -> dict[str, Init]:
    """Map the parameters of linear layers to their initial values, uniform up to 1/√inputs.

    So `torch.nn.Linear` initialises them.
    """
    inits = {}
    for name, (outputs, inputs) in linears.items():
        inits[f"{name}.weight"] = Init((outputs, inputs), bound=inputs**-0.5)
        if bias:
            inits[f"{name}.bias"] = Init((outputs,), bound=inputs**-0.5)
    return inits


def linear(xp: Ops, values: Mapping[str, Array], x: Array, name: str) -> Array:
    """Project x (..., inputs) by one of `linears`: x Wᵀ + bias (..., outputs)."""
    y = xp.matmul(x, xp.transpose(values[f"{name}.weight"]))
    bias = values.get(f"{name}.bias")
    return y if bias is None else y + bias


def split(xp: Ops, x: Array, heads: int) -> Array:
    """Split x (..., T, heads · d) into heads (..., heads, T, d)."""
    *lead, width = xp.shape(x)
    return xp.swapaxes(xp.reshape(x, (*lead, heads, width // heads)), -3, -2)


def merge(xp: Ops, x: Array) -> Array:
    """Merge the heads of x (..., heads, T, d) to (..., T, heads · d)."""
    *lead, heads, tokens, width = xp.shape(x)
    return xp.reshape(xp.swapaxes(x, -3, -2), (*lead, tokens, heads * width))


def complete(queries: Any, keys: Any, values: Any) -> tuple[Any, Any, Any]:
    """Return queries, keys and values: keys are by default the queries, and values the keys.

    Raises ValueError: prepared keys without values.
    """
    keys = queries if keys is None else keys
    if values is None and isinstance(keys, PreparedKeys):
        raise ValueError("prepared keys are projected already: pass values beside them.")
    return queries, keys, keys if values is None else values


def mask_inputs(
    xp: Ops,
    n_heads: int,
    queries: Array,
    keys: Array | PreparedKeys,
    values: Array,
    valid_lens: Any,
    mask: Any,
    parameters: Iterable[Array],
) -> tuple[Array, Array | PreparedKeys, Array, Mask | None]:
    """Check the inputs of a multi-head layer, lower their mask, and zero the rows that it leaves.

    Where derivatives may be asked for, rows of queries, keys and values (batch, T, d) that no head
    attends with or to become 0, so that sums over tokens, which the gradients of projections are,
    do not read them. So do they in half precision, whose products may read the rows beside.

    parameters: of the projections. Returns queries, keys, values and the mask, lowered.

    Raises TypeError, ValueError: tensors or masks of other shapes or dtypes.
    """
    tensors = {"queries": queries, "keys": keys, "values": values}
    for name, x in tensors.items():
        if not isinstance(x, PreparedKeys) and len(xp.shape(x)) < 3:
            raise ValueError(f"{name} has shape {xp.shape(x)}, expected (batch, tokens, width).")
    for part in parts(mask):
        if isinstance(part, Keep) and len(getattr(part.keep, "shape", ())) == 3:
            raise ValueError(
                f"mask has shape {tuple(part.keep.shape)}, expected (T_q, T_k) or four axes "
                "with heads third from the end: for a mask without heads pass mask[:, None]."
            )
    q, k, v = (
        x.key if isinstance(x, PreparedKeys) else x[..., None, :, :] for x in tensors.values()
    )
    sizes = check_tensors(xp, q, k, v)
    sizes = replace(sizes, lead=(*sizes.lead[:-1], n_heads))
    lowered = lower_mask(xp, sizes, q, mask, valid_lens)
    if lowered is None:
        return queries, keys, values, None
    if _reads_all_rows(xp, (q, k, v, *parameters)):
        attending, attended = lowered.attending_attended
        q, of_queries = zero_unread(xp, q, attending)
        v, of_values = zero_unread(xp, v, attended)
        queries, values, shared = q[..., 0, :, :], v[..., 0, :, :], of_queries or of_values
        if not isinstance(keys, PreparedKeys):
            k, of_keys = zero_unread(xp, k, attended)
            keys, shared = k[..., 0, :, :], shared or of_keys
        # Where heads have masks of their own, one head may attend a row that another does not.
        lowered.unread_is_finite = not shared
    return queries, keys, values, Lowered(lowered)


def _reads_all_rows(xp: Ops, tensors: tuple[Array, ...]) -> bool:
    """Check if rows that nobody attends may reach others in projections of these tensors."""
    backend = backends.load(framework(tensors[0]) or "")
    _, autocast = backend.precision(tensors[0])
    wide = (autocast or xp.dtype(tensors[0])) in ("float32", "float64")
    return not wide or backend.differentiable(tensors)
