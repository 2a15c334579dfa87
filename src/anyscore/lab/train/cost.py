"""The cost of a training step with each score: time, measured side by side, and memory."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from anyscore.lab.data.encoding import Encoded
from anyscore.lab.train.batches import Pairs
from anyscore.lab.train.model import Model
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.training import (
    epoch_batches,
    new_optimiser,
    own_randomness,
    training_step,
)

_WARM_UP = 2  # warm-up rounds
_ROUNDS = 25
_SECONDS = 2.0  # per score; beyond it `_FEWEST` rounds are enough
_FEWEST = 3


def step_times(
    models: dict[str, Model], data: Encoded, settings: Settings
) -> dict[str, list[float]]:
    """Measure training steps (forward, backward, update) of each model, round by round.

    The models take turns, each on the same batch. Other load and the processor's temperature then
    slow all models alike. The batches are the first of the first epoch. The models are trained a
    little: they are of no use afterwards.

    Returns:
        Milliseconds of each step, by the model's name.
    """
    device = torch.device(settings.device)
    with own_randomness(0, device):
        rate = settings.learning_rate
        optimisers = {name: new_optimiser(model, rate) for name, model in models.items()}
        pairs = Pairs(data.train, device)
        first = islice(epoch_batches(pairs, settings.batch_size, 0, 1), _ROUNDS)
        batches = cycle([pairs.batch(rows) for rows in first])
        names = list(models)
        times: dict[str, list[float]] = {name: [] for name in names}
        began = now(device)
        for number, batch in enumerate(islice(batches, _WARM_UP + _ROUNDS)):
            shift = number % len(models)  # all are first equally often
            for name in [*names[shift:], *names[:shift]]:
                start = now(device)
                training_step(models[name], batch, optimisers[name])
                if number >= _WARM_UP:
                    times[name].append(1000 * (now(device) - start))
            late = now(device) - began > _SECONDS * len(models)
            if late and number + 1 >= _WARM_UP + _FEWEST:
                break
    return times


def peak_memory(model: Model, data: Encoded, settings: Settings) -> float | None:
    """Measure the most that forward and backward hold at once, in MiB; see `peak_memory_mib`.

    Measured on the batch of an epoch with the most query-key pairs, without the optimiser. The
    epoch is the same for all trials.
    """
    device = torch.device(settings.device)
    pairs = Pairs(data.train, device)
    sources, targets = pairs.sources.lengths, pairs.targets.lengths
    rows = max(
        epoch_batches(pairs, settings.batch_size, 0, 1),
        key=lambda rows: len(rows) * int(sources[rows].max()) * int(targets[rows].max()),
    )
    batch = pairs.batch(rows)
    model.train()

    def step() -> None:
        model.loss(batch).backward()  # type: ignore[no-untyped-call]

    with own_randomness(0, device):
        try:
            return peak_memory_mib(step, device)
        finally:
            model.zero_grad()


def now(device: torch.device) -> float:
    """Return the seconds of a steady clock, once the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


def peak_memory_mib(step: Callable[[], object], device: torch.device) -> float | None:
    """Measure the most that `step` holds at once, beyond what was held before, in MiB.

    On a GPU this is what PyTorch's allocator says. On the CPU the growth of the process would be
    mostly chance, because freed pages are reused. So the tensors are counted: every operation's
    results, for their lifetime. Buffers inside a single operation are not seen. Returns None for
    other devices.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before: int = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        torch.cuda.synchronize(device)
        peak: int = torch.cuda.max_memory_allocated(device)
        return float((peak - before) / 2**20)
    if device.type != "cpu":
        return None
    live = _LiveTensors()
    with live:
        step()
    return live.peak / 2**20


def parameters(module: nn.Module) -> int:
    """Return how many numbers a module learns."""
    return sum(parameter.numel() for parameter in module.parameters())


class _LiveTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the storages that operations make while it is entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0
        self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if _is_tensor(leaf)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if _is_tensor(leaf):
                storage = leaf.untyped_storage()
                key = storage._cdata
                if key not in inputs and key not in self._known:
                    self._known.add(key)
                    self.bytes += storage.nbytes()
                    weakref.finalize(storage, self._gone, key, storage.nbytes())
        self.peak = max(self.peak, self.bytes)
        return result

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.bytes -= size


def _is_tensor(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
