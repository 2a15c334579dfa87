"""The C++ core as calls of XLA, for JAX: forward and backward of one record of operands.

Operands are shaped as `call.operands` says, and all of full rank. Dropout takes a seed (..., 2)
of 32-bit words, the low one first, and a counter (...) of 32-bit words: both have leading
dimensions, so that a problem draws the same numbers whatever it is batched with. Edges of a graph
have leading dimensions of 1: all problems have the same.
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
"""Makes a call of the fields of an `FfiCall`: of the core, or of kernels that compute the same."""


def problem() -> str | None:
    """Return why the core cannot be called, None if it can."""
    return _problem


def forward(x: Operands, s: Settings, make: Make = FfiCall) -> Results:
    """Compute attention; the results are in the dtype of sums."""
    given = x._replace(colptr=None, order=None, row=None).present()  # which gradients need
    return x.results_from(s, _call(make, "forward", s, given, x.result_shapes(s).present()))


def backward(
    x: Operands, s: Settings, results: Results, upstream: Results, make: Make = FfiCall
) -> Operands:
    """Compute the gradients of the factors, of those that are there.

    results: of `forward`, as `cpu.backward` takes them. upstream: the gradients of those. Returns
    gradients of the shapes of their operands, in the dtype of sums.
    """
    factors = x.factors
    shapes = {name: y.shape for name, y in factors.present().items()}
    given = x._replace(packed=None).present() | results.present()
    given |= {f"d_{name}": y for name, y in upstream.present().items()}
    return factors.fill(_call(make, "backward", s, given, shapes))


def prepare_keys(pair: str, b: Array) -> Array:
    """Compute what `forward` may be given as `packed` for b (*lead, T_k, h): (*lead, T_k + 1, h).

    The result has the dtype of sums.
    """
    *lead, keys, width = b.shape
    s = Settings(pair, 1.0, 1, 0.0, 1, tuple(lead))
    return _call(FfiCall, "prepare_keys", s, {"b": b}, {"packed": (*lead, keys + 1, width)})[0]


def append_keys(pair: str, b: Array, packed: Array, start: Array, count: int) -> Array:
    """Compute packed with `count` new rows of b, from row `start` () on: `cpu.append_keys`."""
    like = jax.ShapeDtypeStruct(packed.shape, packed.dtype)  # type: ignore[no-untyped-call]
    call = jax.ffi.ffi_call(
        "anyscore_append_keys", like, vmap_method="sequential", input_output_aliases={1: 0}
    )
    names = "b packed start"
    return call(b, packed, start, pair=pair, names=names, count=np.int64(count))


def sparse(normalizer: str, scores: Array) -> Array:
    """Compute the weights of "sparsemax" or "entmax15" of scores (*lead, T_q, T_k)."""
    s = Settings(normalizer, 1.0, 1, 0.0, 1, scores.shape[:-2])
    return _call(FfiCall, "sparse", s, {"scores": scores}, {"weights": scores.shape})[0]


def _call(
    make: Make, function: str, s: Settings, given: Mapping[str, Array], shapes: Mapping[str, Shape]
) -> list[Array]:
    """Run a function of the core on arrays by name; returns its results, of these shapes."""
    dtype = acc_dtype(load("jax"), *given.values())
    return run(make(function, s, tuple(given), tuple(shapes.items()), dtype), *given.values())
