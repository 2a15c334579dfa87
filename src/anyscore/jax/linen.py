"""The layers as modules of Flax linen, as in *Dive into Deep Learning*.

from anyscore.jax.linen import AdditiveAttention

attention = AdditiveAttention(num_hiddens=8, dropout=0.1)
(output, weights), params = attention.init_with_output(key, queries, keys, values, valid_lens)
output, weights = attention.apply(params, queries, keys, values, valid_lens)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, fields
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
from jax import Array

from anyscore import jax as plain
from anyscore.jax.layer import Layer, Params
from anyscore.layers import course, heads
from anyscore.layers.parameters import AnyScore
from anyscore.layers.texts import with_texts
from anyscore.modifiers.normalizers import Normalizer
from anyscore.score.base import Init

try:
    from flax import linen as nn
except ImportError as error:
    raise ImportError(
        "anyscore.jax.linen has modules of Flax, which is not installed: pip install flax"
    ) from error

__all__ = [
    "AdditiveAttention", "Attention", "DotProductAttention", "MLPAttention", "MultiHeadAttention",
    "SelfAttention",
]  # fmt: skip

M = TypeVar("M", bound="type[nn.Module]")


class Module(nn.Module, kw_only=True):
    """Layer of `anyscore.jax` as a module.

    {linen}
    """

    kind: ClassVar[type[Layer]]

    impl: str = "auto"
    softcap: float = 0.0
    sink: bool | float | None = None
    normalizer: Normalizer = "softmax"
    dtype: Any = "float32"
    sigma: float | None = None
    tau: float | None = None
    nu: float | None = None
    scale: float | None = None
    negative_slope: float | None = None

    def numpy_parameters(self, variables: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """Return the parameters as NumPy arrays, half precision as float32.

        Args:
            variables: the variables from `init`.

        Returns:
            A mapping from names, common to all frameworks, to arrays.
        """
        arrays: dict[str, np.ndarray[Any, Any]] = self._layer().numpy_parameters(
            _flat(variables.get("params", {}))
        )
        return arrays

    def load_numpy_parameters(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return variables from arrays of `numpy_parameters` of a layer of any framework.

        Args:
            arrays: a mapping from names to arrays, as for the layer of `anyscore.jax`.

        Returns:
            The variables for `apply`.

        Raises:
            ValueError: The names are those of another layer.
        """
        loaded = self._layer().load_numpy_parameters(arrays)
        return {"params": _tree(loaded, lambda x, kernel: x.T if kernel else x)}

    def _run(
        self, inputs: tuple[Any, ...], training: bool, return_weights: bool, **masking: Any
    ) -> Any:
        layer = self._layer(*inputs)
        drops = training and self.dropout > 0
        return layer.apply(
            self._values(layer, *inputs),
            *inputs,
            training=training,
            dropout_seed=self.make_rng("dropout") if drops else None,
            return_weights=return_weights,
            **masking,
        )

    def _layer(self, *inputs: Any) -> Any:
        """Return the layer of `anyscore.jax`, for these inputs."""
        arguments = {x.name: getattr(self, x.name) for x in fields(self)} | self._widths(*inputs)
        of_flax = "parent", "name"
        return self.kind(
            **{x: y for x, y in arguments.items() if y is not None and x not in of_flax}
        )

    def _widths(self, *inputs: Any) -> dict[str, int]:
        """Return the sizes that these inputs give to the layer."""
        return {}

    @nn.compact
    def _values(self, layer: Layer, *inputs: Any) -> Params:
        """Return the parameters by anyscore's names; `init` creates them."""
        tree = _tree(layer.initializers(*inputs), partial(partial, _drawn, layer))
        return _flat(_created(self, tree))


class _OfQueries(Module, kw_only=True):
    """A module that is called with queries, keys and values."""

    def __call__(
        self,
        queries: Any,
        keys: Any = None,
        values: Any = None,
        valid_lens: Any = None,
        training: bool = False,
        *,
        return_weights: bool = True,
        **masking: Any,
    ) -> Any:
        """Return (output, weights), or the output alone without `return_weights`."""
        inputs = queries, keys, values
        return self._run(inputs, training, return_weights, valid_lens=valid_lens, **masking)


class _Parameters(nn.Module):
    """The parameters of a part of a layer, as functions key → array by name."""

    tree: Any

    @nn.compact
    def __call__(self) -> dict[str, Any]:
        return _created(self, self.tree)


def _created(module: nn.Module, tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a module, which `init` creates."""
    return {
        name: module.param(name, x) if callable(x) else _Parameters(x, name=name)()
        for name, x in tree.items()
    }


def _drawn(layer: Layer, init: Array | Init, kernel: bool, key: Array) -> Array:
    """Return a parameter as Flax has it."""
    x = layer.draw(key, init)
    return x.T if kernel else x


def _tree(parameters: Mapping[str, Any], leaf: Callable[[Any, bool], Any]) -> dict[str, Any]:
    """Return Flax's tree of parameters by anyscore's names.

    leaf: (parameter, True if it is the transpose of a kernel) → leaf of the tree.
    """
    tree: dict[str, Any] = {}
    for path, x in parameters.items():
        *parts, name = path.split(".")
        branch = tree
        for part in parts:
            branch = branch.setdefault(part, {})
        kernel = name == "weight" and len(x.shape) == 2
        branch["kernel" if kernel else name] = leaf(x, kernel)
    return tree


def _flat(tree: Mapping[str, Any], start: str = "") -> Params:
    """Return the parameters of Flax's tree by anyscore's names."""
    flat: Params = {}
    for name, x in tree.items():
        if isinstance(x, Mapping):
            flat |= _flat(x, f"{start}{name}.")
        else:
            flat |= {f"{start}weight": x.T} if name == "kernel" else {start + name: x}
    return flat


def _with_book(arguments: Callable[[Any], Any]) -> Callable[[M], M]:
    """Decorate the constructor of a module by a decorator of `course`."""

    def decorate(module: M) -> M:
        module.__init__ = arguments(module.__init__)  # type: ignore[method-assign]
        return module

    return decorate


@with_texts
class Attention(_OfQueries):
    """`anyscore.jax.Attention` as a module of Flax linen.

    {linen}

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from anyscore.jax.linen import Attention
    >>> layer = Attention("additive", hidden=8)
    >>> inputs = jnp.ones((2, 1, 20)), jnp.ones((2, 10, 2)), jnp.ones((2, 10, 4))
    >>> params = layer.init(jax.random.key(0), *inputs)
    >>> output, weights = layer.apply(params, *inputs, valid_lens=jnp.array([2, 6]))
    >>> output.shape, weights.shape
    ((2, 1, 4), (2, 1, 10))
    """

    kind = plain.Attention

    score: AnyScore = "scaled_dot"
    _: KW_ONLY
    hidden: int | None = None
    d_q: int | None = None
    d_k: int | None = None
    dropout: float = 0.0
    bias: bool = False
    heads: int | None = None
    kv_heads: int | None = None
    projected: bool = False

    def scores(self, queries: Any, keys: Any, valid_lens: Any = None, **masking: Any) -> Array:
        """Return the matrix of scores: `layer.apply(params, …, method="scores")`.

        Args:
            queries, keys, valid_lens, masking: as for `anyscore.jax.Attention.scores`, without the
                parameters.

        Returns:
            Scores (..., T_q, T_k).

        Raises:
            TypeError, ValueError: As `anyscore.jax.Attention.scores`.
        """
        layer = self._layer()
        scores: Array = layer.scores(
            self._values(layer, queries, keys), queries, keys, valid_lens, **masking
        )
        return scores


@with_texts
class DotProductAttention(_OfQueries):
    """`anyscore.jax.DotProductAttention` as a module of Flax linen.

    {linen}

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from anyscore.jax.linen import DotProductAttention
    >>> attention, keys = DotProductAttention(dropout=0.5), jnp.ones((2, 10, 2))
    >>> values = jnp.arange(40.0).reshape(1, 10, 4).repeat(2, axis=0)
    >>> inputs = jnp.ones((2, 1, 2)), keys, values, jnp.array([2, 6])
    >>> (output, weights), params = attention.init_with_output(jax.random.key(0), *inputs)
    >>> output[:, 0]
    Array([[ 2.,  3.,  4.,  5.],
           [10., 11., 12., 13.]], dtype=float32)
    """

    kind = plain.DotProductAttention

    dropout: float = 0.0
    _: KW_ONLY
    heads: int | None = None
    kv_heads: int | None = None


@_with_book(course.additive)
@with_texts
class AdditiveAttention(_OfQueries):
    """`anyscore.jax.AdditiveAttention` as a module of Flax linen.

    {linen}

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from anyscore.jax.linen import AdditiveAttention
    >>> attention = AdditiveAttention(num_hiddens=8, dropout=0.1)
    >>> inputs = jnp.ones((2, 1, 20)), jnp.ones((2, 10, 2))
    >>> params = attention.init(jax.random.key(0), *inputs)
    >>> jax.tree.map(jnp.shape, params["params"]["W_q"])
    {'kernel': (20, 8)}
    """

    kind = plain.AdditiveAttention

    num_hiddens: int
    dropout: float = 0.0
    _: KW_ONLY
    query_size: int | None = None
    key_size: int | None = None
    bias: bool = False
    heads: int | None = None
    kv_heads: int | None = None


@_with_book(course.mlp)
@with_texts
class MLPAttention(_OfQueries):
    """`anyscore.jax.MLPAttention` as a module of Flax linen.

    {linen}

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from anyscore.jax.linen import MLPAttention
    >>> attention, inputs = MLPAttention(units=8), (jnp.ones((2, 1, 20)), jnp.ones((2, 10, 2)))
    >>> (output, weights), params = attention.init_with_output(jax.random.key(0), *inputs)
    >>> output.shape
    (2, 1, 2)
    """

    kind = plain.MLPAttention

    units: int
    dropout: float = 0.0
    _: KW_ONLY
    query_size: int | None = None
    key_size: int | None = None
    bias: bool = False
    heads: int | None = None
    kv_heads: int | None = None


@with_texts
class SelfAttention(Module):
    """`anyscore.jax.SelfAttention` as a module of Flax linen; it is called with x.

    {linen}

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from anyscore.jax.linen import SelfAttention
    >>> layer, x = SelfAttention(8, 3, score="gaussian"), jnp.ones((2, 5, 8))
    >>> (output, weights), params = layer.init_with_output(jax.random.key(0), x)
    >>> output.shape, weights.shape
    ((2, 5, 8), (2, 5, 5))
    """

    kind = plain.SelfAttention

    embedding_size: int
    d_k: int
    _: KW_ONLY
    d_v: int | None = None
    score: AnyScore = "scaled_dot"
    dropout: float = 0.0
    bias: bool = True
    project_output: bool = False

    def __call__(
        self,
        x: Any,
        valid_lens: Any = None,
        training: bool = False,
        *,
        return_weights: bool = True,
        **masking: Any,
    ) -> Any:
        """Return (output, weights), or the output alone without `return_weights`."""
        return self._run((x,), training, return_weights, valid_lens=valid_lens, **masking)


@_with_book(course.multi_head)
@with_texts
class MultiHeadAttention(_OfQueries):
    """`anyscore.jax.MultiHeadAttention` as a module of Flax linen.

    {linen}

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from anyscore.jax.linen import MultiHeadAttention
    >>> attention, x = MultiHeadAttention(100, 5, 0.5), jnp.ones((2, 4, 100))
    >>> (output, weights), params = attention.init_with_output(jax.random.key(0), x, x, x)
    >>> output.shape, weights.shape
    ((2, 4, 100), (2, 5, 4, 4))
    """

    kind = plain.MultiHeadAttention

    embedding_size: int
    n_heads: int
    dropout: float = 0.0
    bias: bool = True
    _: KW_ONLY
    kv_heads: int | None = None
    score: AnyScore = "scaled_dot"
    d_q: int | None = None
    d_k: int | None = None
    d_v: int | None = None
    project_output: bool = True

    def _widths(self, *inputs: Any) -> dict[str, int]:
        tensors = heads.complete(*inputs) if inputs else ()
        sizes = zip(("d_q", "d_k", "d_v"), tensors, strict=False)
        return {
            name: x.shape[-1]
            for name, x in sizes
            if getattr(self, name) is None and len(getattr(x, "shape", ())) > 0
        }
