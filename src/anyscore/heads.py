"""What layers share that project queries, keys and values themselves, in one head or several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

from anyscore.cache import PreparedKeys
from anyscore.checks import check_size, check_tensors
from anyscore.intervals import zero_unread
from anyscore.masks import Keep, Mask, parts
from anyscore.ops import Array, Ops
from anyscore.score import Init
from anyscore.task import Lowered, lower_mask

Project: TypeAlias = Callable[[Array, str], Array]
"""(x, name) → x Wᵀ + bias, of one of the `linears` of a layer."""


class HeadSizes:
    """The sizes of a multi-head layer, checked.

    linears: name → (outputs, inputs) of its projections, weight (outputs, inputs). output_width: of
    the layer. score: what its `ScoreSpec` is told of them.
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
        """The whole layer, of what `read` gave.

        attention: queries, keys and values of heads (batch, heads, T, d) → output.
        """

        def projected(x: Any, name: str, n: int) -> Any:
            return x if isinstance(x, PreparedKeys) else split(xp, project(x, name), n)

        q = projected(queries, "W_q", self.n_heads)
        k = projected(keys, "W_k", self.kv_heads)
        v = projected(values, "W_v", self.kv_heads)
        output = merge(xp, attention(q, k, v))
        return project(output, "W_o") if "W_o" in self.linears else output


class QKVSizes:
    """The sizes of a layer with one projection to queries, keys and values; as of `HeadSizes`.

    widths: of the three.
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
        """The whole layer, of x (..., T, d); attention: queries, keys and values → output."""
        y, cuts = project(x, "qkv"), pairwise(accumulate(self.widths, initial=0))
        output = attention(*(y[..., start:stop] for start, stop in cuts))
        return project(output, "W_o") if "W_o" in self.linears else output


def starts(linears: Mapping[str, tuple[int, int]], bias: bool) -> dict[str, Init]:
    """The parameters of linear layers by name, and how they start: uniform up to 1/√inputs."""
    made = {}
    for name, (outputs, inputs) in linears.items():
        made[f"{name}.weight"] = Init((outputs, inputs), bound=inputs**-0.5)
        if bias:
            made[f"{name}.bias"] = Init((outputs,), bound=inputs**-0.5)
    return made


def linear(xp: Ops, values: Mapping[str, Array], x: Array, name: str) -> Array:
    """x Wᵀ + bias, of the parameters of one of `linears`."""
    y = xp.matmul(x, xp.transpose(values[f"{name}.weight"]))
    bias = values.get(f"{name}.bias")
    return y if bias is None else y + bias


def split(xp: Ops, x: Array, heads: int) -> Array:
    """(..., T, heads · d) → (..., heads, T, d)."""
    *lead, width = xp.shape(x)
    return xp.swapaxes(xp.reshape(x, (*lead, heads, width // heads)), -3, -2)


def merge(xp: Ops, x: Array) -> Array:
    """(..., heads, T, d) → (..., T, heads · d)."""
    *lead, heads, tokens, width = xp.shape(x)
    return xp.reshape(xp.swapaxes(x, -3, -2), (*lead, tokens, heads * width))


def read(
    xp: Ops,
    n_heads: int,
    queries: Array,
    keys: Array | PreparedKeys,
    values: Array,
    valid_lens: Any,
    mask: Any,
) -> tuple[Array, Array | PreparedKeys, Array, Mask | None]:
    """The three (batch, T, d) with the rows zeroed that no head reads, and the mask, lowered.

    So projections and their gradients do not read them either.
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
    by_queries, of_keys = lowered.used
    zeroed = [zero_unread(xp, x, y) for x, y in ((q, by_queries), (k, of_keys), (v, of_keys))]
    q, k, v = (x[..., 0, :, :] for x, _ in zeroed)
    # Where heads have masks of their own, what one head reads another may not.
    lowered.unread_is_finite = not any(shared for _, shared in zeroed)
    return q, keys if isinstance(keys, PreparedKeys) else k, v, Lowered(lowered)
