"""Sizes, projections and masks of layers with projections of queries, keys and values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

from anyscore import backends
from anyscore.call.lowering import Lowered, lower_mask
from anyscore.functional.cache.prepare import PreparedKeys
from anyscore.functional.sharded import Agreement, facts_of_inputs
from anyscore.layers.parameters import AnyScore, is_named
from anyscore.masks.lowered import zero_unread
from anyscore.masks.objects import BooleanMask, Mask, parts
from anyscore.ops import Array, Ops, framework
from anyscore.ops.checks import check_size, check_tensors, widths
from anyscore.score.base import Init

Project: TypeAlias = Callable[[Array, str], Array]
"""(x, name) → x Wᵀ + bias, with W and bias of the linear layer `name`."""


class HeadSizes:
    """The sizes of a multi-head layer, checked.

    head: width of a head. linears: name of a projection → shape (outputs, inputs) of its weight.
    output_width: width of the output. score: the sizes as arguments of the layer's `ScoreSpec`.

    Raises:
        TypeError, ValueError: sizes that are no integers ≥ 1, or heads that do not divide.
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
        self.n_heads, self.kv_heads = n_heads, kv_heads
        self.head = head = embedding_size // n_heads
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
        """Project the results of `mask_inputs` and attend: output (batch, T_q, output_width).

        attention: (queries, keys, values), each (batch, heads, T, d) → output.

        Raises:
            ValueError: tokens of another width than the layer's.
        """

        def projected(x: Any, name: str) -> Any:
            if isinstance(x, PreparedKeys):
                return x
            if (width := x.shape[-1]) != self.linears[name][1]:
                self._check_width(width, name)
            return self.split(xp, project(x, name), name)

        q, k, v = projected(queries, "W_q"), projected(keys, "W_k"), projected(values, "W_v")
        self._check_shares(q, k, v)
        output = merge(xp, attention(q, k, v))
        return project(output, "W_o") if "W_o" in self.linears else output

    def split(self, xp: Ops, x: Array, name: str) -> Array:
        """Split a projection x (..., T, heads · d) into heads (..., heads, T, d).

        d is the width of a head of the layer. Some of the heads may be there: tensor parallelism
        and pruning leave whole ones.

        Raises:
            ValueError: the width is that of no heads.
        """
        *lead, width = xp.shape(x)
        heads, head = self.n_heads if name == "W_q" else self.kv_heads, self.head
        if width != heads * head:
            if not width or width % head:
                raise ValueError(
                    f"{name} gives {width} numbers, expected those of {heads} heads of {head}: "
                    f"a part of them has a multiple of {head}."
                )
            heads = width // head
        return xp.swapaxes(xp.reshape(x, (*lead, heads, head)), -3, -2)

    def _check_width(self, width: Any, name: str) -> None:
        """Refuse another width of an input of the projection `name`, unless it is symbolic.

        Raises:
            ValueError: the width is another one.
        """
        expected = self.linears[name][1]
        if isinstance(width, int):
            tokens = {"W_q": "queries", "W_k": "keys", "W_v": "values"}[name]
            size = name.replace("W", "d")
            raise ValueError(
                f"{tokens} have width {width}, expected {expected}: give the layer {size}={width}."
            )

    def _check_shares(self, q: Array, k: Any, v: Array) -> None:
        """Check that queries, keys and values have the same share of the heads.

        Raises:
            ValueError: the shares differ.
        """
        k = k.key if isinstance(k, PreparedKeys) else k
        here = q.shape[-3], k.shape[-3], v.shape[-3]
        full = self.n_heads, self.kv_heads, self.kv_heads
        if here != full and any(
            n * full[0] != here[0] * m for n, m in zip(here, full, strict=True)
        ):
            raise ValueError(
                f"W_q, W_k and W_v give {here[0]}, {here[1]} and {here[2]} heads, expected the "
                f"same share of {full[0]}, {full[1]} and {full[2]}."
            )


class QKVSizes:
    """The sizes of a layer with one fused projection; attributes as for `HeadSizes`.

    widths: widths of queries, keys and values.

    Raises:
        TypeError, ValueError: sizes that are no integers ≥ 1.
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
        """Project x (..., T, d) and attend: output (..., T, output_width).

        attention: (queries, keys, values), each (..., T, d) → output.

        Raises:
            ValueError: x has fewer than two axes.
        """
        widths(x=x)
        y, cuts = project(x, "qkv"), pairwise(accumulate(self.widths, initial=0))
        output = attention(*(y[..., start:stop] for start, stop in cuts))
        return project(output, "W_o") if "W_o" in self.linears else output


def inner_sizes(sizes: HeadSizes | QKVSizes, score: AnyScore, sink: Any) -> dict[str, Any]:
    """Return the size arguments of the inner attention: all of them for a named score.

    Any other score takes no sizes. A learned sink takes the number of heads.
    """
    if is_named(score):
        return dict(sizes.score)
    heads = sizes.score.get("heads")
    return {"heads": heads} if heads and sink is True else {}


def initializers(linears: Mapping[str, tuple[int, int]], bias: bool) -> dict[str, Init]:
    """Map parameters of linear layers to their initialisation: uniform in ±1/√inputs.

    `torch.nn.Linear` uses the same initialisation.
    """
    inits = {}
    for name, (outputs, inputs) in linears.items():
        inits[f"{name}.weight"] = Init((outputs, inputs), bound=inputs**-0.5)
        if bias:
            inits[f"{name}.bias"] = Init((outputs,), bound=inputs**-0.5)
    return inits


def linear(xp: Ops, values: Mapping[str, Array], x: Array, name: str) -> Array:
    """Return x Wᵀ + bias (..., outputs) for x (..., inputs) and the linear layer `name`."""
    y = xp.matmul(x, xp.transpose(values[f"{name}.weight"]))
    bias = values.get(f"{name}.bias")
    return y if bias is None else y + bias


def merge(xp: Ops, x: Array) -> Array:
    """Merge the heads of x (..., heads, T, d) to (..., T, heads · d)."""
    *lead, heads, tokens, width = xp.shape(x)
    return xp.reshape(xp.swapaxes(x, -3, -2), (*lead, tokens, heads * width))


def complete(queries: Any, keys: Any, values: Any) -> tuple[Any, Any, Any]:
    """Return (queries, keys, values): keys default to the queries, values to the keys.

    Raises:
        ValueError: prepared keys without values.
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
    across: Any = None,
) -> tuple[Array, Array | PreparedKeys, Array, Mask | None]:
    """Check the inputs of a multi-head layer, lower the mask, and zero rows that no head uses.

    A row of queries, keys or values (batch, T, d) is unused if the mask forbids all its pairs in
    every head. Unused rows become 0 if inputs may need gradients: the gradient of a projection
    sums over all rows, and a NaN in padding would reach the sum. Unused rows become 0 in half
    precision too: its matrix products may read neighbouring rows.

    parameters: the parameters of the projections. across: the layout of the tokens on several
    ranks, None on one. Return (queries, keys, values, lowered mask).

    Raises:
        TypeError, ValueError: tensors or masks of other shapes or dtypes.
        NotImplementedError: each rank has all queries.
    """
    with nullcontext() if across is None else Agreement(across, queries) as agreement:
        if agreement is not None:
            check_projected_across(across)
        tensors = {"queries": queries, "keys": keys, "values": values}
        for name, x in tensors.items():
            if not isinstance(x, PreparedKeys) and len(xp.shape(x)) < 3:
                raise ValueError(
                    f"{name} has shape {xp.shape(x)}, expected (batch, tokens, width)."
                )
        for part in parts(mask):
            if isinstance(part, BooleanMask) and len(getattr(part.keep, "shape", ())) == 3:
                raise ValueError(
                    f"mask has shape {tuple(part.keep.shape)}, expected (T_q, T_k) or four axes "
                    "with heads third from the end: for a mask without heads pass mask[:, None]."
                )
        if mask is valid_lens is agreement is None and not isinstance(keys, PreparedKeys):
            check_tensors(xp, queries, keys, values)
            return queries, keys, values, None
        q, k, v = (
            x.key if isinstance(x, PreparedKeys) else x[..., None, :, :] for x in tensors.values()
        )
        sizes = check_tensors(xp, q, k, v)
        sizes = replace(sizes, lead=(*sizes.lead[:-1], n_heads))
        reads_all_rows = _reads_all_rows(xp, (q, k, v, *parameters))
        sharded = None if agreement is None else agreement.shards(sizes)
        lowered = lower_mask(xp, sizes, q, mask, valid_lens, sharded)
        if agreement is not None and sharded is not None:
            rows = {"queries": q, "keys": k, "values": v}
            gradients = {"gradients": str(reads_all_rows)}
            inputs = partial(facts_of_inputs, xp, rows, mask, valid_lens, lowered, sharded)
            agreement.agree(lambda: inputs() | gradients)
        if lowered is None:
            return queries, keys, values, None
        if reads_all_rows:
            attending, attended = lowered.attending_attended
            attended = attended if sharded is None else sharded.own_keys(xp, attended)
            q, of_queries = zero_unread(xp, q, attending)
            v, of_values = zero_unread(xp, v, attended)
            queries, values, shared = q[..., 0, :, :], v[..., 0, :, :], of_queries or of_values
            if not isinstance(keys, PreparedKeys):
                k, of_keys = zero_unread(xp, k, attended)
                keys, shared = k[..., 0, :, :], shared or of_keys
            # If masks differ between heads, one head may attend a row that another head masks.
            lowered.unread_is_finite = not shared
        return queries, keys, values, Lowered(lowered)


def check_projected_across(across: Any) -> None:
    """Check the layouts of a layer with projections.

    Raises:
        NotImplementedError: each rank has all queries: gradients of projections would be mixed.
    """
    if isinstance(across, tuple) and across[:1] == (None,):
        raise NotImplementedError(
            "a layer with projections does not take across=(None, layout): project queries and "
            "keys by layers of your own, and call attention."
        )


def _reads_all_rows(xp: Ops, tensors: tuple[Array, ...]) -> bool:
    """Check if unused rows may reach other rows, or gradients, in projections of these tensors."""
    backend = backends.load(framework(tensors[0]) or "")
    _, autocast = backend.precision(tensors[0])
    wide = (autocast or xp.dtype(tensors[0])) in ("float32", "float64")
    return not wide or backend.differentiable(tensors)
