"""Two primitives of JAX with functions as parameters.

`linear`: a linear map with an explicit transpose. JAX derives forward and reverse mode from a
tangent and its transpose. A function with such a tangent has custom derivatives in reverse mode,
and forward mode too; `jax.custom_vjp` refuses forward mode.

`unless_exported`: a choice at lowering, the first stage that knows of an export.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from anyscore.ops import Array

Named: TypeAlias = dict[str, Array]
_Flat: TypeAlias = Callable[..., list[Array]]
"""A function of arrays, one by one."""


def linear(
    of: Callable[[Any, Named], list[Array]],
    transpose: Callable[[Any, list[Array]], Named],
    residuals: Any,
    x: Named,
    like: list[Array],
) -> list[Array]:
    """Return of(residuals, x), linear in x; the transpose is transpose(residuals, y).

    residuals: a pytree. x: tangents by name, from `jax.custom_jvp` with symbolic zeros; `of` gets
    only the tangents that are no symbolic zeros. The result has the types of the arrays `like`.
    """
    x = moved(x)
    if not x:
        return [jnp.zeros_like(y) for y in like]
    known, known_tree = jax.tree.flatten(residuals)
    moving, x_tree = jax.tree.flatten(x)
    n = len(known)

    def of_flat(*xs: Array) -> list[Array]:
        return of(jax.tree.unflatten(known_tree, xs[:n]), jax.tree.unflatten(x_tree, xs[n:]))

    def transpose_flat(*xs: Array) -> list[Array]:
        found = transpose(jax.tree.unflatten(known_tree, xs[:n]), list(xs[n:]))
        return jax.tree.leaves({name: found[name] for name in x})

    types = tuple(map(jax.typeof, like))
    params = {"of": of_flat, "transpose": transpose_flat, "n": n, "types": types}
    found: list[Array] = _linear.bind(*known, *moving, **params)
    return found


def moved(x: Named) -> Named:
    """Return the tangents that are no symbolic zeros."""
    return {name: y for name, y in x.items() if not isinstance(y, SymbolicZero)}


def unless_exported(
    of: Callable[[Any], Any], otherwise: Callable[[Any], Any], operands: Any
) -> Any:
    """Return of(operands); if `jax.export` lowers the call, the equal otherwise(operands).

    An exported program may run in a process without these kernels.
    """
    given, tree = jax.tree.flatten(operands)
    traced, shapes = jax.make_jaxpr(of, return_shape=True)(operands)

    def flat(*xs: Array) -> list[Array]:
        return jax.tree.leaves(otherwise(jax.tree.unflatten(tree, xs)))

    found = _choose(traced, flat, given)
    return jax.tree.unflatten(jax.tree.structure(shapes), found)


def _choose(traced: Any, otherwise: _Flat, xs: Sequence[Array]) -> list[Array]:
    # JAX searches traced parameters for operations that depend on devices.
    params = {"traced": traced, "of": jaxpr_as_fun(traced), "otherwise": otherwise}
    found: list[Array] = _choice.bind(*xs, **params, types=tuple(traced.out_avals))
    return found


def _primitive(name: str) -> Any:
    """Return a primitive that computes its parameter `of`; `types` are the types of its results."""
    primitive: Any = Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(lambda *xs, of, **_: of(*xs))
    primitive.def_abstract_eval(lambda *_, types, **__: list(types))
    return primitive


_linear = _primitive("anyscore_linear")
_choice = _primitive("anyscore_unless_exported")


def _front(x: Array, axis: int | None) -> Array:
    return x if axis is None else jnp.moveaxis(x, axis, 0)


def _linear_jvp(
    xs: Sequence[Array], tangents: Sequence[Any], *, of: _Flat, n: int, **params: Any
) -> tuple[list[Array], list[Array]]:
    """Return the tangent: in x the map itself, in other inputs JAX's derivative of the map."""
    moving = [i for i in range(n) if not _still(tangents[i])]

    def by_residuals(*some: Array) -> list[Array]:
        given = list(xs)
        for i, x in zip(moving, some, strict=True):
            given[i] = x
        return of(*given)

    parts = []
    if moving:
        primals, ahead = zip(*((xs[i], tangents[i]) for i in moving), strict=True)
        parts.append(jax.jvp(by_residuals, primals, ahead)[1])
    if not moving or not all(map(_still, tangents[n:])):
        parts.append(_linear.bind(*xs[:n], *map(_filled, tangents[n:]), of=of, n=n, **params))
    found = parts[0] if len(parts) == 1 else list(map(operator.add, *parts))
    return _linear.bind(*xs, of=of, n=n, **params), found


_filled: Callable[[Any], Array] = ad.instantiate_zeros


def _still(tangent: Any) -> bool:
    return isinstance(tangent, ad.Zero) or tangent.dtype == jax.dtypes.float0


def _linear_transpose(
    ys: Sequence[Any], *xs: Any, transpose: _Flat, n: int, **_: Any
) -> list[Array | None]:
    found = transpose(*xs[:n], *map(_filled, ys))
    pairs = zip(xs[n:], found, strict=True)
    return [None] * n + [y if isinstance(x, ad.UndefinedPrimal) else None for x, y in pairs]


def _linear_batched(
    xs: Sequence[Array],
    axes: Sequence[int | None],
    *,
    of: _Flat,
    transpose: _Flat,
    n: int,
    types: Sequence[Any],
) -> tuple[list[Array], list[int]]:
    """Batch all of x and all results, so that the transpose need not sum."""
    size = next(x.shape[axis] for x, axis in zip(xs, axes, strict=True) if axis is not None)
    known = [_front(*pair) for pair in zip(xs[:n], axes[:n], strict=True)]
    moving = [
        jnp.broadcast_to(x, (size, *x.shape)) if axis is None else _front(x, axis)
        for x, axis in zip(xs[n:], axes[n:], strict=True)
    ]
    of_known = [None if axis is None else 0 for axis in axes[:n]]
    own = jax.vmap(of, (*of_known, *[0] * len(moving)), axis_size=size)
    back = jax.vmap(transpose, (*of_known, *[0] * len(types)), axis_size=size)
    given = *known, *moving
    made = tuple(jax.make_jaxpr(own)(*given).out_avals)
    found = _linear.bind(*given, of=own, transpose=back, n=n, types=made)
    return found, [0] * len(found)


def _choice_batched(
    xs: Sequence[Array], axes: Sequence[int | None], *, of: _Flat, otherwise: _Flat, **_: Any
) -> tuple[list[Array], list[int]]:
    size = next(x.shape[axis] for x, axis in zip(xs, axes, strict=True) if axis is not None)
    own, other = (jax.vmap(f, tuple(axes), axis_size=size) for f in (of, otherwise))
    found = _choose(jax.make_jaxpr(own)(*xs), other, xs)
    return found, [0] * len(found)


def _lower_choice(context: Any, *xs: Any, of: _Flat, otherwise: _Flat, **_: Any) -> Any:
    exported = context.module_context.lowering_parameters.for_export
    chosen = otherwise if exported else of
    return mlir.lower_fun(chosen, multiple_results=True)(context, *xs)


ad.primitive_jvps[_linear] = _linear_jvp
ad.primitive_transposes[_linear] = _linear_transpose
batching.primitive_batchers[_linear] = _linear_batched
batching.primitive_batchers[_choice] = _choice_batched
mlir.register_lowering(_linear, mlir.lower_fun(lambda *xs, of, **_: of(*xs), multiple_results=True))
mlir.register_lowering(_choice, _lower_choice)
