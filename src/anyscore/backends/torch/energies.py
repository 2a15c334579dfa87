"""Energies of a step of location-sensitive attention as PyTorch operators of the C++ core.

`anyscore::energies` and `::energies_backward` support traced tensors, but neither derivatives nor
vmap.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anyscore.backends.torch.operators import array, library
from anyscore.kernels import cpu

_X = "Tensor keys, Tensor features, Tensor stacked, Tensor vector, Tensor spans"


def runs(keys: Tensor) -> bool:
    """Return whether the core computes energies of keys on this device and of this dtype."""
    known = keys.dtype in (torch.float32, torch.float64)
    return known and keys.device.type == "cpu" and cpu.problem() is None


def _energies(*x: Tensor) -> Tensor:
    made = x[0].new_zeros(x[0].shape[:2])
    cpu.energies(_arrays(x), array(made), torch.get_num_threads())
    return made


def _energies_backward(*args: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    (keys, features, stacked, *_), upstream, of_keys = args[:5], args[5], args[6]
    made = torch.zeros_like(features), torch.empty_like(stacked)
    of_vector = keys.new_empty(len(keys), keys.shape[2])
    to = (None if of_keys is None else array(of_keys), *map(array, (*made, of_vector)))
    cpu.energies_backward(
        _arrays(args[:5]), array(upstream.contiguous()), to, torch.get_num_threads()
    )
    return *made, of_vector.sum(0)


def _arrays(x: tuple[Tensor, ...]) -> tuple[object, ...]:
    return tuple(array(y.contiguous()) for y in x)


def _fake_energies(*x: Tensor) -> Tensor:
    return x[0].new_empty(x[0].shape[:2])


def _fake_backward(*args: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(args[1]), torch.empty_like(args[2]), torch.empty_like(args[3])


_DEFINED = {
    "energies": (f"({_X}) -> Tensor", _energies, _fake_energies),
    "energies_backward": (
        f"({_X}, Tensor upstream, Tensor(a!)? of_keys) -> (Tensor, Tensor, Tensor)",
        _energies_backward,
        _fake_backward,
    ),
}
for _name, (_signature, _run, _fake) in _DEFINED.items():
    library.define(_name + _signature, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    library.impl(_name, _run, "CPU")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"anyscore::{_name}", _fake, lib=library)

energies = torch.ops.anyscore.energies.default
"""e (B, T_k) of keys (B, T_k, h), features (B, T_k, m), stacked (B, m, h), vector (h,) and spans
(B, 2) of int64; 0 outside of these: Σ_d v_d tanh(k_jd + Σ_m f_jm S_md).
"""
energies_backward = torch.ops.anyscore.energies_backward.default
"""The gradients of features, stacked and vector, from these five tensors and the gradients of e.
Gradients of keys are added to `of_keys`, unless it is None.
"""
