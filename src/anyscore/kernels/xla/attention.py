"""The C++ core as calls of XLA, for JAX: forward and backward of one record of operands.

Operands have the shapes of `call.operands`, and all are of full rank. Dropout takes a seed (..., 2)
of 32-bit words, the low one first, a counter (...) of 32-bit words, and perhaps an origin (..., 2)
of 32-bit words. All have leading dimensions, so a problem draws the same numbers in every batch.
Edges of a graph have leading dimensions of 1, shared by all problems.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import jax
import numpy as np

from anyscore.call.operands import Operands, Results, Settings
from anyscore.kernels import cpu
from anyscore.kernels.xla.call import FfiCall, Shape
from anyscore.kernels.xla.devices import run
from anyscore.ops import Array, acc_dtype, load

_problem: str | None = None
try:
    for _name, _target in cpu.xla_targets().items():
        jax.ffi.register_ffi_target(f"anyscore_{_name}", _target, platform="cpu")
except Exception as error:
    _problem = f"the C++ core cannot be registered with XLA ({error})"

Make: TypeAlias = Callable[
    [str, Settings, tuple[str, ...], tuple[tuple[str, Shape], ...], str], FfiCall
]
"""Returns a call from the fields of an `FfiCall`, of the core or of equivalent kernels."""


def problem() -> str | None:
    """Return why the core cannot be called, None if it can."""
    return _problem


def forward(x: Operands, s: Settings, make: Make = FfiCall) -> Results:
    """Return attention, in the dtype of sums."""
    given = x._replace(colptr=None, order=None, row=None).present()  # for gradients only
    return x.results_from(s, _call(make, "forward", s, given, x.result_shapes(s).present()))


def backward(
    x: Operands, s: Settings, results: Results, upstream: Results, make: Make = FfiCall
) -> Operands:
    """Return the gradients of the present factors, in the shapes of operands and dtype of sums.

    results: of `forward`, see `cpu.backward`. upstream: the gradients of the results.
    """
    factors = x.factors
    shapes = {name: y.shape for name, y in factors.present().items()}
    given = x._replace(packed=None).present() | results.present()
    given |= {f"d_{name}": y for name, y in upstream.present().items()}
    return factors.fill(_call(make, "backward", s, given, shapes))


def prepare_keys(pair: str, b: Array) -> Array:
    """Return packed keys (*lead, T_k + 1, h), an operand of `forward`, of b (*lead, T_k, h).

    The result has the dtype of sums.
    """
    *lead, keys, width = b.shape
    s = Settings(pair, 1.0, 1, 0.0, 1, tuple(lead))
    return _call(FfiCall, "prepare_keys", s, {"b": b}, {"packed": (*lead, keys + 1, width)})[0]


def append_keys(pair: str, b: Array, packed: Array, start: Array, count: int) -> Array:
    """Return packed with `count` new rows of b, from row `start` () on: see `cpu.append_keys`."""
    like = jax.ShapeDtypeStruct(packed.shape, packed.dtype)  # type: ignore[no-untyped-call]
    call = jax.ffi.ffi_call(
        "anyscore_append_keys", like, vmap_method="sequential", input_output_aliases={1: 0}
    )
    names = "b packed start"
    return call(b, packed, start, pair=pair, names=names, count=np.int64(count))


def sparse(normalizer: str, scores: Array) -> Array:
    """Return the weights of "sparsemax" or "entmax15" for scores (*lead, T_q, T_k)."""
    s = Settings(normalizer, 1.0, 1, 0.0, 1, scores.shape[:-2])
    return _call(FfiCall, "sparse", s, {"scores": scores}, {"weights": scores.shape})[0]


def _call(
    make: Make, function: str, s: Settings, given: Mapping[str, Array], shapes: Mapping[str, Shape]
) -> list[Array]:
    """Return the results, of the given shapes, of a function of the core on arrays by name."""
    dtype = acc_dtype(load("jax"), *given.values())
    return run(make(function, s, tuple(given), tuple(shapes.items()), dtype), *given.values())
