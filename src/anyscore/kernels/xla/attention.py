"""The C++ core as calls of XLA, for JAX.

Operands go by name, shaped as in `kernels.cpu` and all of full rank: leading dimensions of 1 where
they broadcast. Dropout takes seed (..., 2), words of which the low one is first, and counter (...),
which numbers the problems. told: pair, scale, groups and dropout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from anyscore.kernels import cpu
from anyscore.kernels.xla.devices import Call, Shape, run
from anyscore.ops import Array

_problem: str | None = None
try:
    for _name, _target in cpu.xla_targets().items():
        jax.ffi.register_ffi_target(f"anyscore_{_name}", _target, platform="cpu")
except Exception as error:
    _problem = f"the C++ core cannot be registered with XLA ({error})"

_OF_KEYS = "b", "key_bias", "value", "packed"
"""The operands that have the heads of keys."""


def problem() -> str | None:
    """Why these cannot be called, None if they can."""
    return _problem


def forward(operands: Mapping[str, Array], lead: Shape, **told: Any) -> list[Array]:
    """Output, in the dtype of sums, and log-sum-exp."""
    rows = (*lead, operands["a"].shape[-2])
    results = {"output": (*rows, operands["value"].shape[-1]), "lse": rows}
    return _call("forward", operands, lead, results, told)


def backward(operands: Mapping[str, Array], lead: Shape, **told: Any) -> dict[str, Array]:
    """Gradients of a, b, weight, key_bias and value, those that are given, in the dtype of sums."""
    names = [x for x in ("a", "b", "weight", "key_bias", "value") if x in operands]
    results = {name: operands[name].shape for name in names}
    return dict(zip(names, _call("backward", operands, lead, results, told), strict=True))


def weights(operands: Mapping[str, Array], lead: Shape, **told: Any) -> Array:
    """exp(s − lse), 0 where masked, (*lead, T_q, T_k) in the dtype of sums."""
    shape = (*operands["lse"].shape, operands["b"].shape[-2])
    return _call("weights", operands, lead, {"weights": shape}, told)[0]


def prepare_keys(pair: str, b: Array) -> Array:
    """What `forward` may be given as packed for b (*lead, T_k, h): (*lead, T_k + 1, h)."""
    *lead, keys, width = b.shape
    results = {"packed": (*lead, keys + 1, width)}
    return _call("prepare_keys", {"b": b}, tuple(lead), results, {"pair": pair, "groups": 1})[0]


def _call(
    target: str,
    operands: Mapping[str, Array],
    lead: Shape,
    results: Mapping[str, Shape],
    told: Mapping[str, Any],
) -> list[Array]:
    wide = any(x.dtype == np.float64 for x in operands.values())
    sums = np.dtype("float64" if wide else "float32")
    groups = told["groups"]
    told = {**told, "groups": np.int64(groups), "names": " ".join(operands)}
    call = Call(
        f"anyscore_{target}",
        tuple(sorted(told.items())),
        lead,
        groups,
        tuple((shape, sums) for shape in results.values()),
        tuple(name in _OF_KEYS for name in operands),
        tuple(name in _OF_KEYS for name in results),
    )
    return run(call, *operands.values())
