"""Which device a run trains on."""

from __future__ import annotations

import torch

from anyscore.lab.errors import InputError


def find_device(name: str) -> str:
    """The device that `name` ("auto", "cpu", "cuda", "cuda:1", "mps") stands for on this machine.

    Raises:
        InputError: when there is no such device, or PyTorch cannot use it here.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda", "mps") or (":" in name and not number.isdecimal()):
        raise InputError(f"--device: expected auto, cpu, cuda, cuda:N or mps, got {name!r}")
    if kind == "cuda":
        count = torch.cuda.device_count()
        if not count:
            raise InputError(
                "--device: PyTorch finds no CUDA GPU here; use --device cpu, or install a PyTorch "
                "built for CUDA"
            )
        if number and int(number) >= count:
            raise InputError(f"--device: expected cuda:0 to cuda:{count - 1}, got {name!r}")
    elif number and int(number):
        raise InputError(f"--device: there is one {kind} device, got {name!r}; use {kind}")
    elif kind == "mps" and not torch.backends.mps.is_available():
        raise InputError("--device: PyTorch finds no Apple GPU here; use --device cpu")
    return name
